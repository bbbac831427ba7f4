"""Who is best: paired ratios with intervals, and which ranks a solver can have.

A figure of a solver is a geometric mean over tasks of its cost relative to that of `BASE`; a task's cost is the
geometric mean over the solver's seeds, and over its measurements where several are joined. So it does not depend on who
else is on the board. A failure counts as the plan of the base for the task: that is what a user has whose solver fails,
and a solver could have returned that plan itself. Tasks of which the base has no plan are left out. Where the base has
none at all, no task is left out, and a failure counts nothing.

A solver is complete when it has a record for every task and seed that was asked for. Only complete solvers are ranked,
only over `MIN_TASKS` tasks or more, none that solved nothing, and none with failures that count nothing. A solver's
ranks go from 1 plus the number of solvers that are clearly ahead of it to the number of all without those that are
clearly behind, see `statistics.py`. Solvers without ranks are averaged over the tasks that they have records of. One
that solved nothing has no figures at all: they would be those of the base.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections import Counter
from dataclasses import dataclass

import numpy as np

from shardgym.arrays import Floats
from shardgym.leaderboard.boards import Board, SolverResults
from shardgym.leaderboard.statistics import (
    MIN_TASKS,
    Interval,
    clearly_ahead,
    detectable_ratio,
    mean_interval,
    rank_ranges,
)

#: What all boards are relative to: a fast rule that halves tables where whole ones do not fit or balance.
BASE = "lpt"

#: With fewer tasks, a table says how far apart two solvers must be.
FEW_TASKS = 20

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
        ranks: the best and the worst that it can have; None for a solver that is not ranked.
        tasks: that its means are taken over.
        relative: geometric mean of its cost over that of the base.
        relative_interval: of `relative`; None for the base.
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
    ranks: tuple[int, int] | None
    tasks: int
    relative: float
    relative_interval: Interval | None
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
class Ranking:
    """The ranked solvers of a board.

    Attributes:
        board: what was ranked.
        rows: ranked solvers first.
        results: of the solvers in the order of `rows`.
        counted_ms: their costs with failures counted, each of shape (seeds, T), T being the tasks of the board, each
            measurement of a task one of its own; NaN for a solver that solved nothing.
        base_ms: cost of the base, geometric mean over its seeds, NaN where it has no plan, shape (T,).
        num_tasks: that means are taken over, whatever the number of measurements: those of which the base has a plan,
            all where it has none.
        detectable: how many times the cost of another a solver's has to be for the two to be told apart, where there
            are few tasks, see `detectable_ratio`; infinite where these are too few for any two, NaN where there is
            nothing to say.
    """

    board: Board
    rows: tuple[Row, ...]
    results: tuple[SolverResults, ...]
    counted_ms: tuple[Floats, ...]
    base_ms: Floats
    num_tasks: int
    detectable: float

    @property
    def has_base(self) -> bool:
        """Whether ratios to the base are known."""
        return bool(np.isfinite(self.base_ms).any())

    @functools.cached_property
    def reference_ms(self) -> Floats:
        """What charts are relative to: costs of the base, or where it has none, of the best plan of each task, (T,)."""
        if self.has_base:
            return self.base_ms
        known = [np.where(np.isfinite(own), own, np.inf) for own in self.counted_ms]
        best: Floats = np.concatenate(known).min(axis=0)
        return best

    def relative_costs(self) -> list[float]:
        """Return the geometric mean of each row's cost over `reference_ms`, over the tasks that it has a plan of."""
        if self.has_base:
            return [row.relative for row in self.rows]
        scale = np.log(self.reference_ms)
        return [math.exp(_mean(_over_seeds(np.log(own)) - scale)) for own in self.counted_ms]


def rank(board: Board) -> Ranking:
    """Rank the solvers of a board; see the module for the rules."""
    everyone = SolverResults.of_board(board)
    base_ms = np.full(len(board.tasks), np.nan)
    for own in everyone:
        if own.solver == BASE:
            base_ms = np.exp(_over_seeds(np.log(own.seed_ms)))
    has_base = bool(np.isfinite(base_ms).any())
    kept = np.isfinite(base_ms) if has_base else np.ones(len(board.tasks), dtype=bool)
    places = [[place for place in same if kept[place]] for same in board.same_tasks]
    places = [same for same in places if same]
    num_tasks = len(places)
    base_logs = over_measurements(np.log(base_ms), places)

    counted: dict[str, Floats] = {}
    logs: dict[str, Floats] = {}
    ranked: set[str] = set()
    for own in everyone:
        solved_nothing = not np.isfinite(own.seed_ms).any()
        counted[own.solver] = np.where(own.failed & (not solved_nothing), base_ms, own.seed_ms)
        of_seeds = over_measurements(np.log(counted[own.solver]), places)
        logs[own.solver] = of_seeds
        if own.is_complete and num_tasks >= MIN_TASKS and np.isfinite(of_seeds).all():
            ranked.add(own.solver)
    mean_log = {solver: _mean(_over_seeds(own) - (base_logs if has_base else 0.0)) for solver, own in logs.items()}
    place = {solver: (solver not in ranked, math.isnan(mean), mean, solver) for solver, mean in mean_log.items()}
    order = sorted(everyone, key=lambda own: place[own.solver])

    compared = [own.solver for own in order if own.solver in ranked]
    of_compared = np.array([_over_seeds(logs[solver]) for solver in compared])
    ranks: dict[str, tuple[int, int]] = {}
    if compared:
        ranks = dict(zip(compared, rank_ranges(clearly_ahead(of_compared)), strict=True))
    detectable = math.nan
    if len(compared) > 1 and num_tasks < FEW_TASKS:
        detectable = detectable_ratio(of_compared) or math.inf
    return Ranking(
        board=board,
        rows=tuple(_row(own, logs, base_logs, ranks) for own in order),
        results=tuple(order),
        counted_ms=tuple(counted[own.solver] for own in order),
        base_ms=base_ms,
        num_tasks=num_tasks,
        detectable=detectable,
    )


def ratio_interval(logs: Floats, other: Floats) -> Interval | None:
    """Return the interval of the ratio of two solvers' costs by their logarithms, both of shape (T,)."""
    interval = mean_interval(logs - other)
    return interval and Interval(math.exp(interval.low), math.exp(interval.high))


def _row(
    results: SolverResults, all_logs: dict[str, Floats], base_logs: Floats, ranks: dict[str, tuple[int, int]]
) -> Row:
    """Return the figures of one solver, T being the tasks that means are taken over.

    Args:
        results: of the solver.
        all_logs: logarithms of costs by solver, NaN where there is no record, each of shape (seeds, T).
        base_logs: of the base, NaN where unknown, shape (T,).
        ranks: of the solvers that are ranked.
    """
    solver = results.solver
    logs = all_logs[solver]
    own = _over_seeds(logs)
    relative_interval = of_floor_interval = None
    if solver in ranks and solver != BASE and np.isfinite(base_logs).all():
        relative_interval = ratio_interval(own, base_logs)
    floor = floor_of(results)
    of_floor = math.nan
    if floor in all_logs:
        of_floor = math.exp(_mean(own - _over_seeds(all_logs[floor])))
        if solver in ranks and floor in ranks:
            of_floor_interval = ratio_interval(own, _over_seeds(all_logs[floor]))
    if math.isnan(of_floor):
        floor = None
    records = results.records
    failures = Counter[str](record.status for record in records if record.status != "ok")
    cpu_times = [record.cpu_time_s for record in records if record.cpu_time_s is not None]
    return Row(
        solver=solver,
        ranks=ranks.get(solver),
        tasks=int(np.isfinite(own).sum()),
        relative=math.exp(_mean(own - base_logs)),
        relative_interval=relative_interval,
        mean_ms=_mean(np.exp(own)),
        failures=dict(failures),
        success=1 - failures.total() / len(records) if records else math.nan,
        completeness=len(records) / results.seed_ms.size if results.seed_ms.size else math.nan,
        num_seeds=len(logs),
        floor=floor,
        of_floor=of_floor,
        of_floor_interval=of_floor_interval,
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


def over_measurements(logs: Floats, places: list[list[int]]) -> Floats:
    """Return means over the measurements of each task: the last axis becomes that of tasks, whose places are given."""
    if not places:
        return logs[..., :0]
    means: Floats = np.stack([logs[..., same].mean(axis=-1) for same in places], axis=-1)
    return means


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
