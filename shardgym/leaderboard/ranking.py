"""Who is best: paired ratios, ranks with intervals, and ties among all solvers.

A figure of a solver is a geometric mean over tasks of its cost relative to that of `BASE`, or of the best solver; a
task's cost is the geometric mean over the solver's seeds. A failure counts what `FailureCosts` says, so that all means
are over the same tasks. Tasks that nobody solved are left out.

A solver is complete when it has a record for every task and seed that was asked for. Only complete solvers are ranked,
only over `MIN_TASKS` tasks or more, and none that solved nothing. Going down by cost, a solver shares the rank of the
first one of that rank while they are tied: the 95 % interval of their paired difference includes zero. Solvers without
a rank are averaged over the tasks that they have records of. One that solved nothing has no figures at all: they would
be those of the base.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardgym.arrays import Floats
from shardgym.leaderboard.boards import Board, SolverResults
from shardgym.leaderboard.statistics import (
    MIN_TASKS,
    Interval,
    clearly_better,
    percentile_interval,
    rank_intervals,
    resampled_means,
    shared_ranks,
)

#: What all boards are relative to: a fast rule that halves tables where whole ones do not fit or balance.
BASE = "lpt"

#: Times the slowest plan of a task: what a failure counts where the base has no plan either. It must exceed 1, or a
#: solver would gain by failing where its plan is the slowest.
WORST_FACTOR = 2.0

#: What a learned solver has to beat: one step of lookahead in the environment that plans like its own come from, of
#: whole tables, of shards of columns, or of any kinds. Nothing is learned for it.
FLOOR = "lookahead"
COLUMN_FLOOR = "lookahead_columns"
ANY_FLOOR = "lookahead_any"

#: The published heuristics. `random` is not one.
HEURISTICS = ("size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")


@dataclass(frozen=True)
class Row:
    """One solver of a ranking. Figures that do not exist are NaN, intervals None.

    Attributes:
        solver: its name.
        rank: from 1; None for a solver that is not ranked.
        tied: another solver has the same rank.
        rank_interval: of its place when tasks and seeds are drawn anew.
        tasks: that its means are taken over.
        relative: geometric mean of its cost over that of the base.
        relative_interval: of `relative`; None for the base.
        gap: geometric mean of its cost over that of the first solver, less 1.
        gap_interval: of `gap`; None for the first solver.
        mean_ms: arithmetic mean cost, for illustration.
        failures: number of records per status other than "ok".
        success: share of its records that are ok.
        completeness: share of the tasks and seeds asked for that have a record.
        num_seeds: seeds that it was asked for.
        floor: what it has to beat, see `FLOOR`; None where it is not learned, or that has no plan on
            the board.
        of_floor: geometric mean of its cost over that of the floor.
        of_floor_interval: of `of_floor`.
        seed_spread: standard deviation over seeds of the logarithm of the geometric mean: relative; NaN for one seed.
        median_s: median time per plan.
        median_cpu_s: median processor time per plan; NaN where some record has none.
    """

    solver: str
    rank: int | None
    tied: bool
    rank_interval: Interval | None
    tasks: int
    relative: float
    relative_interval: Interval | None
    gap: float
    gap_interval: Interval | None
    mean_ms: float
    failures: dict[str, int]
    success: float
    completeness: float
    num_seeds: int
    floor: str | None
    of_floor: float
    of_floor_interval: Interval | None
    seed_spread: float
    median_s: float
    median_cpu_s: float

    @property
    def beats_floor(self) -> bool:
        """Whether it is cheaper than its floor beyond the 95 % interval."""
        return self.of_floor_interval is not None and self.of_floor_interval.high < 1


@dataclass(frozen=True)
class FailureCosts:
    """What a failure counts.

    It is the cost of the base's plan of the task: that is what a user has whose solver fails, and a solver could have
    returned that plan itself. Where the base has no record of the task, or failed as well, it is `WORST_FACTOR` times
    the cost of the slowest plan that anybody has.

    Attributes:
        ms: by task of the board; NaN where nobody failed, and where nobody has a plan; shape (T,).
        num_base: tasks that some solver failed where it is the cost of the base.
        num_worst: tasks where it is `WORST_FACTOR` times that of the slowest plan.
    """

    ms: Floats
    num_base: int
    num_worst: int

    @classmethod
    def of(cls, everyone: Sequence[SolverResults], num_tasks: int) -> FailureCosts:
        """Work out the costs of the tasks that some solver of a board failed."""
        base_ms = np.full(num_tasks, np.nan)
        slowest_ms = np.full(num_tasks, -np.inf)
        failed = np.zeros(num_tasks, dtype=bool)
        for results in everyone:
            failed |= results.failed.any(axis=0)
            slowest_ms = np.fmax(slowest_ms, np.fmax.reduce(results.seed_ms, axis=0, initial=-np.inf))
            if results.solver == BASE:
                base_ms = np.exp(_over_seeds(np.log(results.seed_ms)))
        by_base = failed & np.isfinite(base_ms)
        by_worst = failed & ~by_base & np.isfinite(slowest_ms)
        ms = np.where(by_base, base_ms, np.where(by_worst, WORST_FACTOR * slowest_ms, np.nan))
        return cls(ms, int(by_base.sum()), int(by_worst.sum()))


@dataclass(frozen=True)
class Ranking:
    """The ranked solvers of a board.

    Attributes:
        board: what was ranked.
        rows: ranked solvers first.
        results: of the solvers in the order of `rows`.
        counted_ms: their costs with failures counted, each of shape (seeds, T), T being the tasks of the board; NaN
            for a solver that solved nothing.
        base_ms: cost of the base, geometric mean over its seeds, NaN where it has no record, shape (T,).
        failures: what failed tasks count.
        num_tasks: that means are taken over: all but those that nobody solved.
    """

    board: Board
    rows: tuple[Row, ...]
    results: tuple[SolverResults, ...]
    counted_ms: tuple[Floats, ...]
    base_ms: Floats
    failures: FailureCosts
    num_tasks: int

    @property
    def has_base(self) -> bool:
        """Whether ratios to the base are known."""
        return bool(np.isfinite(self.base_ms).any())


def rank(board: Board) -> Ranking:
    """Rank the solvers of a board; see the module for the rules."""
    everyone = SolverResults.of_board(board)
    failures = FailureCosts.of(everyone, len(board.tasks))
    counted = {own.solver: np.where(own.failed, failures.ms, own.seed_ms) for own in everyone}
    kept = np.ones(len(board.tasks), dtype=bool)
    for own in everyone:
        kept &= ~own.failed.any(axis=0) | np.isfinite(failures.ms)
    base_ms = np.full(len(board.tasks), np.nan)
    if BASE in counted:
        base_ms = np.exp(_over_seeds(np.log(counted[BASE])))

    logs = {solver: np.log(costs[:, kept]) for solver, costs in counted.items()}
    base_logs = np.log(base_ms[kept])
    scale = base_logs if np.isfinite(base_logs).all() else np.zeros(int(kept.sum()))
    complete = {own.solver for own in everyone if own.is_complete and not own.failed.all()}
    mean_log = {solver: _mean(_over_seeds(own) - scale) for solver, own in logs.items()}
    place = {solver: (solver not in complete, math.isnan(mean), mean, solver) for solver, mean in mean_log.items()}
    order = sorted(everyone, key=lambda own: place[own.solver])
    for own in everyone:
        if not np.isfinite(own.seed_ms).any():
            counted[own.solver] = np.full_like(own.seed_ms, np.nan)
            logs[own.solver] = np.full_like(logs[own.solver], np.nan)
    leader = order[0].solver if complete else None
    bootstrap = None
    if complete and kept.sum() >= MIN_TASKS:
        bootstrap = Bootstrap.of({own.solver: logs[own.solver] for own in order if own.solver in complete}, base_logs)
    return Ranking(
        board=board,
        rows=tuple(_row(own, logs, base_logs, leader, bootstrap) for own in order),
        results=tuple(order),
        counted_ms=tuple(counted[own.solver] for own in order),
        base_ms=base_ms,
        failures=failures,
        num_tasks=int(kept.sum()),
    )


@dataclass(frozen=True)
class Bootstrap:
    """Complete solvers when tasks and seeds are drawn anew.

    Attributes:
        means: by solver, and of the base where it is known, mean logarithms of costs, shape (RESAMPLES,).
        ranks: see `shared_ranks`.
        rank_intervals: of the places of the solvers.
    """

    means: dict[str, Floats]
    ranks: dict[str, int]
    rank_intervals: dict[str, Interval]

    @classmethod
    def of(cls, logs: dict[str, Floats], base_logs: Floats) -> Bootstrap:
        """Draw anew.

        Args:
            logs: logarithms of costs by solver, best first, each of shape (seeds, T).
            base_logs: of the base, for where it is none of these, shape (T,).
        """
        solvers = list(logs)
        if np.isfinite(base_logs).all():
            logs = {BASE: base_logs[None]} | logs
        means = dict(zip(logs, resampled_means(list(logs.values())).T, strict=True))
        of_solvers = np.stack([means[solver] for solver in solvers], axis=1)
        ranks = shared_ranks(clearly_better(of_solvers))
        return cls(
            means, dict(zip(solvers, ranks, strict=True)), dict(zip(solvers, rank_intervals(of_solvers), strict=True))
        )

    def ratio_interval(self, solver: str, other: str | None) -> Interval | None:
        """Return the interval of the ratio of two solvers' costs; None where one was not drawn or they are the same."""
        if solver == other or other not in self.means or solver not in self.ranks:
            return None
        low, high = percentile_interval(self.means[solver] - self.means[other])
        return Interval(math.exp(low), math.exp(high))


def _row(
    results: SolverResults, all_logs: dict[str, Floats], base_logs: Floats, leader: str | None,
    bootstrap: Bootstrap | None
) -> Row:  # fmt: skip
    """Return the figures of one solver, T being the tasks that means are taken over.

    Args:
        results: of the solver.
        all_logs: logarithms of costs by solver, NaN where there is no record, each of shape (seeds, T).
        base_logs: of the base, NaN where unknown, shape (T,).
        leader: the complete solver with the lowest mean; None where none is complete.
        bootstrap: None where there are too few tasks.
    """
    solver = results.solver
    logs = all_logs[solver]
    own = _over_seeds(logs)
    gap = math.nan if leader is None else math.expm1(_mean(own - _over_seeds(all_logs[leader])))
    number = rank_interval = relative_interval = gap_interval = None
    tied = False
    if bootstrap is not None:
        number = bootstrap.ranks.get(solver)
        tied = list(bootstrap.ranks.values()).count(number or 0) > 1
        rank_interval = bootstrap.rank_intervals.get(solver)
        relative_interval = bootstrap.ratio_interval(solver, BASE)
        of_leader = bootstrap.ratio_interval(solver, leader)
        gap_interval = of_leader and Interval(of_leader.low - 1, of_leader.high - 1)
    floor = floor_of(results)
    of_floor = math.nan
    if floor in all_logs:
        of_floor = math.exp(_mean(own - _over_seeds(all_logs[floor])))
    if math.isnan(of_floor):
        floor = None
    records = results.records
    failures = Counter[str](record.status for record in records if record.status != "ok")
    cpu_times = [record.cpu_time_s for record in records if record.cpu_time_s is not None]
    return Row(
        solver=solver,
        rank=number,
        tied=tied,
        rank_interval=rank_interval,
        tasks=int(np.isfinite(own).sum()),
        relative=math.exp(_mean(own - base_logs)),
        relative_interval=relative_interval,
        gap=gap,
        gap_interval=gap_interval,
        mean_ms=_mean(np.exp(own)),
        failures=dict(failures),
        success=1 - failures.total() / len(records) if records else math.nan,
        completeness=len(records) / results.seed_ms.size if results.seed_ms.size else math.nan,
        num_seeds=len(logs),
        floor=floor,
        of_floor=of_floor,
        of_floor_interval=None if bootstrap is None else bootstrap.ratio_interval(solver, floor),
        seed_spread=float(np.std(logs.mean(axis=1), ddof=1)) if len(logs) > 1 and logs.size else math.nan,
        median_s=statistics.median(record.solve_time_s for record in records) if records else math.nan,
        median_cpu_s=statistics.median(cpu_times) if 0 < len(cpu_times) == len(records) else math.nan,
    )


def floor_of(results: SolverResults) -> str | None:
    """Return what a learned solver has to beat; None for others.

    A solver is learned where its records name weights.
    """
    plans = [record.plan for record in results.records if record.weights_digest and record.plan is not None]
    shards = [shard for plan in plans for shard in plan.shards]
    if not plans:
        return None
    if any(shard.rows[0] > 0 or len(shard.devices) > 1 for shard in shards):
        return ANY_FLOOR
    return COLUMN_FLOOR if any(shard.columns[0] > 0 for shard in shards) else FLOOR


def _over_seeds(logs: Floats) -> Floats:
    """Return means over the seeds that have a record, NaN where none has, of logs of shape (seeds, T): shape (T,)."""
    known = np.isfinite(logs)
    count = known.sum(axis=0)
    means: Floats = np.where(count > 0, np.where(known, logs, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)
    return means


def _mean(values: Floats) -> float:
    """Return the mean of the values that are known; NaN where there are none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else math.nan
