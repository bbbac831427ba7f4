"""solve: one plan for one task."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from pathlib import Path

import click

from shardgym.cli.common import (
    DEFAULT_ORACLE,
    NOTATION,
    TASK_AND_PLAN,
    Command,
    check_free,
    count,
    force_option,
    json_option,
    natural,
    open_cost,
    open_solver,
    positive_number,
    print_json,
    print_notes,
    read_task,
    say,
)
from shardgym.cli.plan_files import read_plan
from shardgym.errors import InfeasiblePlanError, InputError
from shardgym.evaluation.solver import Solver, call_solver, takes, warm_up
from shardgym.files import write_whole
from shardgym.plans.migration import migration
from shardgym.plans.plan import ShardingPlan
from shardgym.progress import log_to_stderr
from shardgym.tasks.task import ShardingTask

#: Seconds between lines about better plans.
PAUSE_S = 5.0

_logger = logging.getLogger("shardgym.solve")


@click.command("solve", cls=Command, epilog=TASK_AND_PLAN)
@click.argument("task_name", metavar="TASK")
@click.option(
    "--solver", "solver_name", required=True, metavar="NAME", help=f"{NOTATION}, registered name or module:Class."
)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where the plan goes.")
@click.option(
    "--oracle",
    "oracle_name",
    default=DEFAULT_ORACLE,
    metavar="NAME",
    help=f"Cost that the solver may query, {NOTATION}.",
)
@click.option("--seed", type=natural, default=0, help="Given to the solver.")
@click.option("--time-limit", type=positive_number, metavar="SECONDS", help="Given to a solver that takes one.")
@click.option(
    "--initial-plan",
    "initial_path",
    metavar="PLAN",
    help="What the solver starts from, if it can; also a plan for other statistics of the same tables.",
)
@force_option
@json_option
def solve(
    task_name: str,
    solver_name: str,
    output: Path,
    oracle_name: str,
    seed: int,
    time_limit: float | None,
    initial_path: str | None,
    force: bool,
    as_json: bool,
) -> int:
    """Make one plan for one task and write it to a file.

    The file appears whole or not at all; an existing one is only replaced with --force. Exit code 1 when there is no
    feasible plan, and when the oracle cannot price the one that was found, which is written all the same. Better plans
    are logged on standard error as the solver tells of them. On Ctrl-C the best plan so far is written, if there is
    one, and the exit code is 1 too.
    """
    check_free(output, force)
    task = read_task(task_name)
    solver = open_solver(solver_name)
    initial_plan = None if initial_path is None else _read_initial_plan(initial_path, task, solver, solver_name)
    code = 0
    with open_cost(oracle_name) as oracle:
        # What a solver prints is not part of the result.
        with contextlib.redirect_stdout(sys.stderr), log_to_stderr(info=not as_json):
            warm_up(solver, task, oracle)
            start = time.perf_counter()
            best = BestPlan()
            options = {"time_limit_s": time_limit, "initial_plan": initial_plan, "observer": best.observe}
            try:
                plan = call_solver(solver, task, oracle, seed, **options)
            except KeyboardInterrupt:
                if best.plan is None:
                    raise
                say("interrupted: this is the best plan so far")
                plan = best.plan
                code = 1
        seconds = time.perf_counter() - start
        plan.validate(task)
        cost = oracle.evaluate(task, [plan])[0]
    check_free(output, force)
    write_whole(output, plan.to_json(indent=2) + "\n")
    # Of a solver that proves one, see `shardgym.evaluation.solver.Solver`.
    bound_ms = getattr(solver, "lower_bound_ms", None)
    moved = None
    if initial_plan is not None:
        moved = migration(task, initial_plan, plan)
    if as_json:
        shards = len(plan.shards)
        page = {"plan": str(output), "shards": shards, "solve_time_s": seconds, "oracle": oracle_name}
        page["lower_bound_ms"] = bound_ms
        page["moved"] = None if moved is None else moved.bytes_by_link
        print_json(page | {"oracle_cost": cost.to_dict()})
    else:
        price = (
            f"{cost.total_ms:.3f} ms per step by {oracle_name}, {cost.origin}" if cost.feasible else "without a cost"
        )
        print(
            f"{output}: {count(len(plan.shards), 'shard')} on {count(task.num_devices, 'device')} "
            f"in {seconds:.3f} s, {price}"
        )
        if moved is not None:
            print(moved.sentence(task.topology))
        if bound_ms is not None and cost.feasible:
            gap = cost.total_ms / bound_ms - 1
            print(
                f"lower bound of plans of these kinds: {bound_ms:.3f} ms; this one is at most {gap:.2%} above the best"
            )
        print_notes([("", cost)])
    if not cost.feasible:
        say(_without_cost(task, plan, output, oracle_name, str(cost.reason)))
        code = 1
    return code


def _without_cost(task: ShardingTask, plan: ShardingPlan, output: Path, oracle_name: str, reason: str) -> str:
    """Say in one line why a feasible plan has no cost by the oracle, that it was written, and what would price it."""
    tiers = any(plan.kind_of(table.name, task) == "tiers" for table in task.tables)
    remedy = "--oracle replay,ids=expected" if tiers else "an --oracle that does"
    return f"shardgym: {oracle_name} does not price the plan, which is in {output}: {reason}; give {remedy}"


def _read_initial_plan(path: str, task: ShardingTask, solver: Solver, solver_name: str) -> ShardingPlan:
    """Read a feasible plan for a solver that can start from one; raises `InputError` otherwise."""
    if not takes(solver.solve, "initial_plan"):
        raise InputError(
            f"--initial-plan: solver '{solver_name:.80}' starts from no plan: leave it out, or name a solver "
            "whose solve takes initial_plan, such as neuroshard_plus"
        )
    plan = read_plan(path, task, same_tables=True)
    try:
        plan.validate(task)
    except InfeasiblePlanError as error:
        raise InputError(f"--initial-plan {path}: expected a feasible plan, but {error}") from None
    return plan


class BestPlan:
    """The best plan that a solver has told of; every better one is logged, at most once in `PAUSE_S`."""

    def __init__(self) -> None:
        self.plan: ShardingPlan | None = None
        self._start = time.monotonic()
        self._logged_at = -math.inf

    def observe(self, plan: ShardingPlan, cost_ms: float) -> None:
        """Take note of a new best plan; for the solver to call."""
        self.plan = plan
        now = time.monotonic()
        if now - max(self._logged_at, self._start) >= PAUSE_S:
            self._logged_at = now
            _logger.info("solving for %.0f s, best so far %.3f ms per step", now - self._start, cost_ms)
