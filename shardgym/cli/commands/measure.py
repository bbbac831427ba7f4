"""Measure what plans for one task cost.

Several plans are measured interleaved in one run, so that they can be compared; a table of all ends the output. The
lowest total is marked "best" only if it differs from every other by more than 2 standard errors of the difference; else
it and those within are marked "tied".
Communication is measured where the machine has as many devices as the task, else modelled, and the output says so. Exit
code 1 when a plan is infeasible or could not be measured.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from tabulate import tabulate

from shardgym.cli.inputs import MEASURED, TASK_HELP, add_device, open_cost, read_plan, read_task
from shardgym.cli.named import NOTATION
from shardgym.cli.notes import notes
from shardgym.cli.output import is_ascii_only, print_json, width
from shardgym.cli.parser import Parser
from shardgym.costs.plan_cost import PlanCost
from shardgym.leaderboard.ties import RULE, TIED, marks
from shardgym.rendering import render_plan


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("task", metavar="TASK", help=TASK_HELP)
    parser.add_argument("plans", nargs="+", metavar="PLAN", help="plan files")
    parser.add_argument("--cost", default=MEASURED, metavar="NAME", help=f"cost model, {NOTATION} (%(default)s)")
    add_device(parser)


def run(arguments: Namespace) -> int:
    """Measure and print."""
    task = read_task(arguments.task)
    plans = [read_plan(path, task) for path in arguments.plans]
    with open_cost(arguments.cost, arguments.device) as cost:
        costs = cost.evaluate(task, plans)
    if arguments.json:
        print_json([
            {"file": path, "plan": plan.digest, "total_ms": c.total_ms if c.feasible else None, "mark": mark,
             "cost": c.to_dict()}
            for path, plan, c, mark in zip(arguments.plans, plans, costs, marks(costs), strict=True)
        ])  # fmt: skip
    else:
        for path, plan, c in zip(arguments.plans, plans, costs, strict=True):
            print(f"{path}:\n{render_plan(task, plan, c, width=width(), ascii_only=is_ascii_only())}\n")
        _summarise(list(zip(arguments.plans, costs, strict=True)))
    return 0 if all(c.feasible for c in costs) else 1


def _summarise(costs: Sequence[tuple[str, PlanCost]]) -> None:
    """Print the table of several plans, and the notes."""
    if len(costs) > 1:
        found = marks([cost for _, cost in costs])
        rows = [_row(path, cost, mark) for (path, cost), mark in zip(costs, found, strict=True)]
        headers, align = ["file", "total ms", "+- std error", ""], ["left", "right", "right", "left"]
        print(tabulate(rows, headers, "simple", colalign=align, disable_numparse=True))
        if TIED in found:
            print(RULE)
    for line in notes(costs):
        print(line)


def _row(path: str, cost: PlanCost, mark: str | None) -> list[str]:
    if not cost.feasible:
        return [path, "-", "-", "no cost"]
    error = cost.noise * cost.total_ms
    return [path, f"{cost.total_ms:.3f}", f"{error:.3f}", mark or ""]
