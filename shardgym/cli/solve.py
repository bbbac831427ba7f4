"""solve: one plan for one task."""

import logging
import time
from pathlib import Path

import click

from shardgym.cli.common import (
    ABOVE_0,
    NOTATION,
    answer,
    aside,
    count,
    json_option,
    notes_of,
    open_cost,
    open_solver,
    say,
    writes,
)
from shardgym.cli.plan_files import TASK_AND_PLAN, read_plan, read_task
from shardgym.errors import InfeasiblePlanError, InputError
from shardgym.evaluation.solver import call_solver, takes, warm_up
from shardgym.files import write_whole
from shardgym.plans.migration import migration
from shardgym.plans.plan import ShardingPlan

#: Seconds between lines about better plans.
PAUSE_S = 5.0

_logger = logging.getLogger("shardgym.solve")


@click.command("solve", epilog=TASK_AND_PLAN)
@click.argument("task_name", metavar="TASK")
@click.option("--solver", "solver_name", required=True, metavar="NAME", help=f"{NOTATION}; a name or module:Class.")
@click.option("--oracle", "oracle_name", default="roofline", metavar="NAME", help="Cost that the solver queries.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the solver.")
@click.option("--time-limit", type=ABOVE_0, metavar="SECONDS", help="Limit, for solvers that take one.")
@click.option(
    "--initial-plan", "initial_path", metavar="PLAN",
    help="Plan to start from; it may be for other statistics of the same tables.",
)  # fmt: skip
@writes("plan")
@json_option
def solve(
    task_name: str,
    solver_name: str,
    oracle_name: str,
    seed: int,
    time_limit: float | None,
    initial_path: str | None,
    output: Path,
    as_json: bool,
) -> int:
    """Make one plan for one task and write it to a file.

    On Ctrl-C the command writes the best plan so far and exits with 1. The exit code is also 1 if there is no feasible
    plan, or if the oracle cannot price the plan, which is written all the same.
    """
    task = read_task(task_name)
    solver = open_solver(solver_name)
    initial_plan = None
    if initial_path is not None:
        if not takes(solver.solve, "initial_plan"):
            raise InputError(f"--initial-plan: solver '{solver_name:.80}' cannot start from a plan: leave it out")
        initial_plan = read_plan(initial_path, task, same_tables=True)
        try:
            initial_plan.validate(task)
        except InfeasiblePlanError as error:
            raise InputError(f"--initial-plan {initial_path}: expected a feasible plan, but {error}") from None
    interrupted = False
    with open_cost(oracle_name) as oracle:
        with aside(as_json):
            warm_up(solver, task, oracle)
            told = BestPlan()
            options = {"time_limit_s": time_limit, "initial_plan": initial_plan, "observer": told.observe}
            start = time.perf_counter()
            try:
                plan = call_solver(solver, task, oracle, seed, **options)
            except KeyboardInterrupt:
                if told.plan is None:
                    raise
                say("interrupted: this is the best plan so far")
                plan, interrupted = told.plan, True
        seconds = time.perf_counter() - start
        plan.validate(task)
        (cost,) = oracle.evaluate(task, [plan])
    write_whole(output, plan.to_json(indent=2) + "\n")
    bound_ms = getattr(solver, "lower_bound_ms", None)  # of a solver that proves one
    moves = None if initial_plan is None else migration(task, initial_plan, plan)
    page = {
        "plan": str(output),
        "shards": len(plan.shards),
        "solve_time_s": seconds,
        "oracle": oracle_name,
        "oracle_cost": cost.to_dict(),
        "lower_bound_ms": bound_ms,
        "moved": None if moves is None else moves.bytes_by_link,
    }
    price = f"{cost.total_ms:.3f} ms per step by {oracle_name}, {cost.origin}" if cost.feasible else "without a cost"
    size = f"{count(len(plan.shards), 'shard')} on {count(task.num_devices, 'device')}"
    texts = [f"{output}: {size} in {seconds:.3f} s, {price}"]
    if moves is not None:
        texts.append(moves.sentence(task.topology))
    if bound_ms is not None and cost.feasible:
        best = f"at most {cost.total_ms / bound_ms - 1:.2%} above the best"
        texts.append(f"lower bound for plans of these kinds: {bound_ms:.3f} ms; this one is {best}")
    answer(as_json, page, "\n".join([*texts, *notes_of([("", cost)])]))
    if not cost.feasible:
        tiers = any(plan.kind_of(table.name, task) == "tiers" for table in task.tables)
        remedy = "--oracle replay,ids=expected" if tiers else "an --oracle that can"
        say(f"shardgym: {output} holds the plan, but {oracle_name} cannot price it: {cost.reason}; give {remedy}")
    return 1 if interrupted or not cost.feasible else 0


class BestPlan:
    """The best plan that a solver has reported; improvements are logged, at most one per `PAUSE_S`."""

    def __init__(self) -> None:
        self.plan: ShardingPlan | None = None
        self._start = self._logged_at = time.monotonic()

    def observe(self, plan: ShardingPlan, cost_ms: float) -> None:
        """Record a new best plan; the solver calls this."""
        self.plan = plan
        now = time.monotonic()
        if now - self._logged_at >= PAUSE_S:
            self._logged_at = now
            _logger.info("solving for %.0f s, best so far %.3f ms per step", now - self._start, cost_ms)
