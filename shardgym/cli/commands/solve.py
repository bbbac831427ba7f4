"""Make one plan for one task and write it to a file.

The file appears whole or not at all; an existing one is only replaced with --force. Exit code 1 when there is no
feasible plan. On Ctrl-C the best plan so far is written, if the solver tells of any, and the exit code is 1 too.
"""

from __future__ import annotations

import contextlib
import sys
import time
from argparse import Namespace
from pathlib import Path

from shardgym.cli.inputs import DEFAULT_ORACLE, TASK_HELP, add_device, open_cost, open_solver, read_task
from shardgym.cli.named import NOTATION
from shardgym.cli.notes import notes
from shardgym.cli.output import check_free, count, print_json, say, write_result
from shardgym.cli.parser import Parser, natural, positive_number
from shardgym.costs.base import CostModel
from shardgym.plan import ShardingPlan
from shardgym.progress import remarks
from shardgym.solver import Solver, call_solver, warm_up
from shardgym.task import ShardingTask


def configure(parser: Parser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add("task", metavar="TASK", help=TASK_HELP)
    add("--solver", required=True, metavar="NAME", help=f"{NOTATION}, registered name or module:Class")
    add("-o", "--output", required=True, type=Path, metavar="PLAN.json", help="where the plan goes")
    add("--oracle", default=DEFAULT_ORACLE, metavar="NAME", help=f"the cost that the solver may query, {NOTATION} "
        "(%(default)s)")  # fmt: skip
    add_device(parser)
    add("--seed", type=natural, default=0, help="given to the solver (%(default)s)")
    add("--time-limit", type=positive_number, metavar="SECONDS", help="given to a solver that takes one")
    add("--force", action="store_true", help="overwrite an existing file")


def run(arguments: Namespace) -> int:
    """Solve, check, write."""
    check_free(arguments.output, arguments.force)
    task, solver = read_task(arguments.task), open_solver(arguments.solver)
    with open_cost(arguments.oracle, arguments.device) as oracle:
        # What a solver prints is not part of the result.
        with contextlib.redirect_stdout(sys.stderr), remarks(shown=not arguments.json):
            warm_up(solver, task, oracle)
            start = time.perf_counter()
            plan, code = _solve(solver, task, oracle, arguments)
        seconds = time.perf_counter() - start
        plan.validate(task)
        cost = oracle.evaluate(task, [plan])[0]
    check_free(arguments.output, arguments.force)
    write_result(arguments.output, plan.to_json(indent=2) + "\n")
    if arguments.json:
        print_json({"plan": str(arguments.output), "shards": len(plan.shards), "solve_time_s": seconds,
                    "oracle": arguments.oracle, "oracle_cost": cost.to_dict()})  # fmt: skip
    else:
        print(f"{arguments.output}: {count(len(plan.shards), 'shard')} on {count(task.num_devices, 'device')} "
              f"in {seconds:.3f} s, {cost.total_ms:.3f} ms per step by {arguments.oracle}")  # fmt: skip
        for line in notes([("", cost)]):
            print(line)
    return code


def _solve(solver: Solver, task: ShardingTask, oracle: CostModel, arguments: Namespace) -> tuple[ShardingPlan, int]:
    """Return the solver's plan and exit code 0; the best plan that it told of and 1 when it is interrupted."""
    told: list[ShardingPlan] = []

    def observer(plan: ShardingPlan, cost_ms: float) -> None:
        del cost_ms
        told[:] = [plan]

    options = {"time_limit_s": arguments.time_limit, "observer": observer}
    try:
        return call_solver(solver, task, oracle, arguments.seed, **options), 0
    except KeyboardInterrupt:
        if not told:
            raise
        say("interrupted: this is the best plan so far")
        return told[0], 1
