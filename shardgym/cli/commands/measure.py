"""Measure what plans for one task cost.

Several plans are measured interleaved in one run, so that they can be compared. Communication is measured where the
machine has as many devices as the task, else modelled, and the output says so. Exit code 1 when a plan is infeasible or
could not be measured.
"""

from __future__ import annotations

from argparse import Namespace

from shardgym.cli.inputs import MEASURED, TASK_HELP, add_device, open_cost, read_plan, read_task
from shardgym.cli.output import is_ascii_only, print_json, width
from shardgym.cli.parser import Parser
from shardgym.rendering import render_plan


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("task", metavar="TASK", help=TASK_HELP)
    parser.add_argument("plans", nargs="+", metavar="PLAN", help="plan files")
    parser.add_argument("--cost", default=MEASURED, metavar="NAME", help="cost model (%(default)s)")
    add_device(parser)


def run(arguments: Namespace) -> int:
    """Measure and print."""
    task = read_task(arguments.task)
    plans = [read_plan(path, task) for path in arguments.plans]
    with open_cost(arguments.cost, arguments.device) as cost:
        costs = cost.evaluate(task, plans)
    if arguments.json:
        print_json([
            {"file": path, "plan": plan.digest, "total_ms": c.total_ms if c.feasible else None, "cost": c.to_dict()}
            for path, plan, c in zip(arguments.plans, plans, costs, strict=True)
        ])  # fmt: skip
    else:
        for plan, c in zip(plans, costs, strict=True):
            print(render_plan(task, plan, c, width=width(), ascii_only=is_ascii_only()) + "\n")
    return 0 if all(c.feasible for c in costs) else 1
