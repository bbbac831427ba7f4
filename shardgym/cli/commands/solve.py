"""Make one plan for one task and write it to a file.

The file appears whole or not at all; an existing one is only replaced with --force. Exit code 1 when there is no
feasible plan. Meanwhile the best cost so far is shown on standard error, if the solver tells of any. On Ctrl-C the best
plan so far is written, if there is one, and the exit code is 1 too.
"""

from __future__ import annotations

import contextlib
import sys
import time
from argparse import Namespace
from pathlib import Path

from shardgym.arguments import check_instance
from shardgym.cli.inputs import (
    DEFAULT_ORACLE,
    PLAN_HELP,
    TASK_HELP,
    add_device,
    open_cost,
    open_solver,
    read_plan,
    read_task,
)
from shardgym.cli.named import NOTATION
from shardgym.cli.notes import notes
from shardgym.cli.output import check_free, count, print_json, say, write_result
from shardgym.cli.parser import Parser, natural, positive_number
from shardgym.cli.solve_progress import SolveProgress
from shardgym.costs.base import CostModel
from shardgym.errors import InfeasiblePlanError, InputError
from shardgym.plan import ShardingPlan
from shardgym.progress import remarks
from shardgym.solver import Solver, call_solver, takes, warm_up
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
    add("--initial-plan", metavar="PLAN", help=f"what the solver starts from, if it can: {PLAN_HELP}")
    add("--force", action="store_true", help="overwrite an existing file")


def run(arguments: Namespace) -> int:
    """Solve, check, write."""
    check_free(arguments.output, arguments.force)
    task, solver = read_task(arguments.task), open_solver(arguments.solver)
    initial = _initial_plan(task, solver, arguments)
    with open_cost(arguments.oracle, arguments.device) as oracle:
        # What a solver prints is not part of the result.
        with contextlib.redirect_stdout(sys.stderr), remarks(shown=not arguments.json):
            warm_up(solver, task, oracle)
            start = time.perf_counter()
            plan, code = _solve(solver, task, oracle, initial, arguments)
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


def _initial_plan(task: ShardingTask, solver: Solver, arguments: Namespace) -> ShardingPlan | None:
    """Read `--initial-plan`; refuse it for a solver that would not look at it, and when nothing can start from it."""
    if arguments.initial_plan is None:
        return None
    if not takes(solver, "initial_plan"):
        raise InputError(
            f"--initial-plan: solver '{arguments.solver:.80}' starts from no plan: leave it out, or name a solver "
            "whose solve takes initial_plan, such as neuroshard_plus"
        )
    plan = read_plan(arguments.initial_plan, task)
    try:
        plan.validate(task)
    except InfeasiblePlanError as error:
        raise InputError(f"--initial-plan {arguments.initial_plan}: expected a feasible plan, but {error}") from None
    return plan


def _solve(
    solver: Solver, task: ShardingTask, oracle: CostModel, initial: ShardingPlan | None, arguments: Namespace
) -> tuple[ShardingPlan, int]:
    """Return the solver's plan and exit code 0; the best plan that it told of and 1 when it is interrupted."""
    told: list[ShardingPlan] = []

    def observer(plan: ShardingPlan, cost_ms: float) -> None:
        check_instance("what the solver tells its observer", plan, ShardingPlan, "observer(plan, cost_ms) takes a plan")
        told[:] = [plan]
        progress.told(cost_ms)

    options = {"time_limit_s": arguments.time_limit, "initial_plan": initial, "observer": observer}
    try:
        with SolveProgress(shown=not arguments.json, hint=_hint(solver, arguments)) as progress:
            return call_solver(solver, task, oracle, arguments.seed, **options), 0
    except KeyboardInterrupt:
        if not told:
            raise
        say("interrupted: this is the best plan so far")
        return told[0], 1


def _hint(solver: Solver, arguments: Namespace) -> str:
    """Return what to say of a solver that tells nothing: how to wait less, where that is in the user's hand."""
    if arguments.time_limit is not None or not takes(solver, "time_limit_s"):
        return ""
    return f"still solving; --time-limit SECONDS ends '{arguments.solver:.80}' early"
