"""solve: one plan for one task, and on standard error how the solver is doing meanwhile."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import click
from tqdm import tqdm

from shardgym.arguments import check_instance
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
from shardgym.progress import log_to_stderr, progress_bar
from shardgym.tasks.task import ShardingTask

#: Seconds between updates of the progress, and until a solver that reports nothing is remarked on.
UPDATE_S = 1.0
SILENT_S = 15.0

#: Seconds between lines of a log at least: after a better plan, and without one.
BETTER_S = 10.0
SAME_S = 60.0

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
@click.option(
    "--migration-ms-per-byte", "migration_price", type=positive_number, metavar="X",
    help="The initial plan is in use: each byte that moves adds X to the time of a step.",
)  # fmt: skip
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
    migration_price: float | None,
    force: bool,
    as_json: bool,
) -> int:
    """Make one plan for one task and write it to a file.

    The file appears whole or not at all; an existing one is only replaced with --force. Exit code 1 when there is no
    feasible plan, and when the oracle cannot price the one that was found, which is written all the same. Meanwhile the
    best cost so far is shown on standard error, if the solver tells of any. On Ctrl-C the best plan so far is written,
    if there is one, and the exit code is 1 too.
    """
    check_free(output, force)
    task = read_task(task_name)
    solver = open_solver(solver_name)
    if migration_price is not None and not takes(solver.solve, "migration_ms_per_byte"):
        raise InputError(
            f"--migration-ms-per-byte: solver '{solver_name:.80}' moves from no plan: leave it out, or name a solver "
            "whose solve takes migration_ms_per_byte, such as neuroshard_plus"
        )
    if migration_price is not None and initial_path is None:
        raise click.UsageError("--migration-ms-per-byte needs --initial-plan, the plan that is in use")
    initial_plan = None if initial_path is None else _read_initial_plan(initial_path, task, solver, solver_name)
    hint = ""
    if time_limit is None and takes(solver.solve, "time_limit_s"):
        hint = f"still solving; --time-limit SECONDS ends '{solver_name:.80}' early"
    code = 0
    with open_cost(oracle_name) as oracle:
        # What a solver prints is not part of the result.
        with contextlib.redirect_stdout(sys.stderr), log_to_stderr(info=not as_json):
            warm_up(solver, task, oracle)
            start = time.perf_counter()
            progress = SolveProgress(shown=not as_json, hint=hint)
            options = {
                "time_limit_s": time_limit, "initial_plan": initial_plan, "observer": progress.observe,
                "migration_ms_per_byte": migration_price,
            }  # fmt: skip
            try:
                with progress:
                    plan = call_solver(solver, task, oracle, seed, **options)
            except KeyboardInterrupt:
                if progress.best is None:
                    raise
                say("interrupted: this is the best plan so far")
                plan = progress.best
                code = 1
        seconds = time.perf_counter() - start
        plan.validate(task)
        cost = oracle.evaluate(task, [plan])[0]
    check_free(output, force)
    write_whole(output, plan.to_json(indent=2) + "\n")
    # Of a solver that proves one, see `shardgym.evaluation.solver.Solver`.
    bound_ms = getattr(solver, "lower_bound_ms", None)
    moved = None
    if migration_price is not None and initial_plan is not None:
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


class SolveProgress:
    """Shows the best cost so far and the seconds, from its own thread: a live line in a terminal, else lines of a log.

    What takes less than `UPDATE_S` shows nothing. Lines of a log are logged as information, which
    `shardgym.progress.log_to_stderr` prints. A log gets none as long as there is no cost.

    Args:
        shown: whether anything is shown at all.
        hint: what to say, once, of a solver that has reported nothing for `SILENT_S`; "" for nothing.

    Attributes:
        best: the best plan so far; None while the solver has reported none.
    """

    def __init__(self, *, shown: bool, hint: str = "") -> None:
        self._shown = shown
        self._hint = hint
        self.best: ShardingPlan | None = None
        self._best_ms: float | None = None
        self._logged_at_s = 0.0
        self._logged_ms: float | None = None
        self._bar: tqdm[Any] | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shardgym-solve-progress", daemon=True)

    def __enter__(self) -> Self:
        if self._shown:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop, and wipe the live line."""
        self._done.set()
        if self._shown:
            self._thread.join()
        if self._bar is not None:
            self._bar.close()

    def observe(self, plan: ShardingPlan, cost_ms: float) -> None:
        """Take note of a new best plan; for the solver to call."""
        check_instance("what the solver tells its observer", plan, ShardingPlan, "observer(plan, cost_ms) takes a plan")
        self.best = plan
        self._best_ms = float(cost_ms)

    def update(self, seconds: float) -> None:
        """Show the best cost so far, `seconds` after the start."""
        best_ms = self._best_ms
        text = f"solving for {seconds:.0f} s" + ("" if best_ms is None else f", best so far {best_ms:.3f} ms per step")
        if sys.stderr.isatty():
            if self._bar is None:
                self._bar = progress_bar(shown=True, bar_format="{desc}", leave=False, desc=text)
            self._bar.set_description_str(text)
        elif best_ms is not None:
            pause = SAME_S if best_ms == self._logged_ms else BETTER_S
            if seconds - self._logged_at_s >= pause:
                self._logged_at_s = seconds
                self._logged_ms = best_ms
                _logger.info(text)
        if self._hint and best_ms is None and seconds >= SILENT_S:
            _logger.info(self._hint)
            self._hint = ""

    def _watch(self) -> None:
        start = time.monotonic()
        while not self._done.wait(UPDATE_S):
            self.update(time.monotonic() - start)
