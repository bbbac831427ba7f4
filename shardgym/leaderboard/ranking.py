"""Who is best: paired ratios with intervals, and which ranks a solver can have.

A figure of a solver is a geometric mean over tasks of its cost relative to that of `BASE`; a task's cost is the
geometric mean over the solver's seeds. The figure therefore does not depend on the board's other solvers. A failure
counts as the base's plan for the task, the fallback of a user whose solver fails, which the solver could have returned
itself. Tasks without a plan by the base are left out. If the base has no plan at all, no task is left out, and failures
do not count.

A solver is complete when it has a record for every task and each of its seeds. Ranks go to complete solvers that solved
something and have no failures that do not count, over at least `MIN_TASKS` tasks. They range from 1 plus the number of
solvers that are clearly ahead to the number of all solvers minus those that are clearly behind, see `statistics.py`.
Solvers without ranks are averaged over the tasks for which they have records. A solver that solved nothing has no
figures, because they would be the base's.
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
from shardgym.leaderboard.statistics import MIN_TASKS, Interval, clearly_ahead, mean_interval, rank_ranges

#: What all boards are relative to: a fast rule that halves tables where whole ones do not fit or balance.
BASE = "lpt"

#: The published heuristics. `random` is not one.
HEURISTICS = ("size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")


@dataclass(frozen=True)
class Row:
    """One solver of a ranking. Figures that do not exist are NaN, intervals None."""

    solver: str  #: its name
    ranks: tuple[int, int] | None  #: the best and the worst that it can have; None for a solver that is not ranked
    tasks: int  #: tasks that its means are taken over
    relative: float  #: geometric mean of its cost over that of the base
    relative_interval: Interval | None  #: of `relative`; None for the base
    mean_ms: float  #: arithmetic mean cost, for illustration
    failures: dict[str, int]  #: number of records per status other than "ok"
    success: float  #: share of its records that are ok
    completeness: float  #: share of the tasks that were asked for, with each of its seeds, that have a record
    num_seeds: int  #: how many seeds it has records of
    #: Standard deviation over seeds of the logarithm of the geometric mean: relative; NaN for one seed.
    seed_spread: float
    median_s: float  #: median time per plan
    median_cpu_s: float  #: median processor time per plan; NaN where some record has none
    over_bound: float  #: geometric mean of its cost over a lower bound, on tasks with a known bound


@dataclass(frozen=True)
class Ranking:
    """The ranked solvers of a board."""

    board: Board  #: what was ranked
    rows: tuple[Row, ...]  #: ranked solvers first
    base_ms: Floats  #: cost of the base, geometric mean over its seeds, NaN where it has no plan, shape (T,)
    num_tasks: int  #: that means are taken over: those with a plan of the base, or all if it has none

    @property
    def has_base(self) -> bool:
        """Whether ratios to the base are known."""
        return bool(np.isfinite(self.base_ms).any())


def rank(board: Board) -> Ranking:
    """Rank the solvers of a board; see the module for the rules."""
    everyone = SolverResults.of_board(board)
    counted, base_ms = counted_costs(everyone, board.num_tasks)
    has_base = bool(np.isfinite(base_ms).any())
    kept = np.isfinite(base_ms) if has_base else np.ones(board.num_tasks, dtype=bool)
    num_tasks = int(kept.sum())
    base_logs = np.log(base_ms[kept])

    logs: dict[str, Floats] = {}
    ranked: set[str] = set()
    for own in everyone:
        of_seeds = np.log(counted[own.solver])[:, kept]
        logs[own.solver] = of_seeds
        if own.is_complete and num_tasks >= MIN_TASKS and np.isfinite(of_seeds).all():
            ranked.add(own.solver)
    mean_log = {solver: _mean(over_seeds(own) - (base_logs if has_base else 0.0)) for solver, own in logs.items()}
    place = {solver: (solver not in ranked, math.isnan(mean), mean, solver) for solver, mean in mean_log.items()}
    order = sorted(everyone, key=lambda own: place[own.solver])

    compared = [own.solver for own in order if own.solver in ranked]
    ranks: dict[str, tuple[int, int]] = {}
    if compared:
        ahead = clearly_ahead(np.array([over_seeds(logs[solver]) for solver in compared]))
        ranks = dict(zip(compared, rank_ranges(ahead), strict=True))
    return Ranking(
        board=board,
        rows=tuple(
            _row(own, logs[own.solver], base_logs, board.bound_ms[kept], ranks.get(own.solver)) for own in order
        ),
        base_ms=base_ms,
        num_tasks=num_tasks,
    )


def counted_costs(everyone: Sequence[SolverResults], num_tasks: int) -> tuple[dict[str, Floats], Floats]:
    """Return costs with failures counted as the plan of the base.

    Args:
        everyone: the solvers of a board.
        num_tasks: number of tasks that were asked for, T.

    Returns:
        By solver, costs in ms, NaN for one that solved nothing, shape (S, T); and those of the base, geometric mean
        over its seeds, NaN where it has no plan, shape (T,).
    """
    of_base = [np.exp(over_seeds(np.log(own.seed_ms))) for own in everyone if own.solver == BASE]
    base_ms = of_base[0] if of_base else np.full(num_tasks, np.nan)
    counted = {}
    for own in everyone:
        solved_nothing = not np.isfinite(own.seed_ms).any()
        counted[own.solver] = np.where(own.failed & (not solved_nothing), base_ms, own.seed_ms)
    return counted, base_ms


def _row(
    results: SolverResults, logs: Floats, base_logs: Floats, bound_ms: Floats, ranks: tuple[int, int] | None
) -> Row:
    """Return the figures of one solver from logarithms of costs, its own, (seeds, T), and the base's, (T,)."""
    own = over_seeds(logs)
    interval = None
    if ranks is not None and results.solver != BASE and np.isfinite(base_logs).all():
        interval = mean_interval(own - base_logs)
    records = results.records
    failures = Counter[str](record.status for record in records if record.status != "ok")
    cpu_times = [record.cpu_time_s for record in records if record.cpu_time_s is not None]
    return Row(
        solver=results.solver,
        ranks=ranks,
        tasks=int(np.isfinite(own).sum()),
        relative=math.exp(_mean(own - base_logs)),
        relative_interval=interval and Interval(math.exp(interval.low), math.exp(interval.high)),
        mean_ms=_mean(np.exp(own)),
        failures=dict(failures),
        success=1 - failures.total() / len(records) if records else math.nan,
        completeness=len(records) / results.seed_ms.size if results.seed_ms.size else math.nan,
        num_seeds=len(logs),
        seed_spread=float(np.std(logs.mean(axis=1), ddof=1)) if len(logs) > 1 and logs.size else math.nan,
        median_s=statistics.median(record.solve_time_s for record in records) if records else math.nan,
        median_cpu_s=statistics.median(cpu_times) if 0 < len(cpu_times) == len(records) else math.nan,
        over_bound=math.exp(_mean(own - np.log(bound_ms))),
    )


def over_seeds(logs: Floats) -> Floats:
    """Return means over the seeds that have a record, NaN where none has, of logs of shape (seeds, T): shape (T,)."""
    known = np.isfinite(logs)
    count = known.sum(axis=0)
    means: Floats = np.where(count > 0, np.where(known, logs, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)
    return means


def _mean(values: Floats) -> float:
    """Return the mean of the values that are known; NaN where there are none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else math.nan
