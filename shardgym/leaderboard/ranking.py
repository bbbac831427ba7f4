"""Who is best: common tasks, relative costs, ranks and ties. A pure function of the records.

Policy for failures. A solver is complete when it has a record for every task and seed that was asked for; only complete
solvers are ranked. Means are taken over the common tasks: those that every complete solver has solved, leaving out
of this requirement solvers that solved less than nine tenths as many tasks as the best, so that a solver which fails
nearly everywhere does not empty the comparison. Such a solver, and an incomplete one, is averaged over the common
tasks that it did solve. Complete solvers are ranked by the tasks they solved, then by the geometric mean of their
costs. When no solver is complete yet, the same rules apply to all, without ranks.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Bools, Floats
from shardgym.evaluation.result import Result
from shardgym.leaderboard.boards import Board
from shardgym.leaderboard.optimality import TaskBounds, task_bounds

#: Of the bootstrap intervals. Solvers with fewer common tasks get none: so few say next to nothing about their spread.
RESAMPLES = 10_000
MIN_TASKS = 6
SEED = 0
#: Resamples drawn at once, to bound memory.
_CHUNK = 1000

#: Share of the tasks that the best solved which a solver must have solved to decide what tasks are common.
COMPARABLE = 0.9

#: The published heuristics; costs are given relative to the best of them. `random` is not one.
HEURISTICS = ("size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Say whether a value lies in the interval, ends included."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Row:
    """One solver of a ranking. Figures that do not exist are NaN.

    Attributes:
        solver: its name.
        rank: from 1; None for a solver that is not complete, and when nobody solved anything.
        tied: not distinguishable from rank 1: as many tasks solved, and the interval of `gap` contains 0 or there are
            too few tasks for one.
        tasks: common tasks that it solved; the means are over these.
        mean_ms: mean cost.
        relative: geometric mean of its cost over that of the best heuristic.
        gap: geometric mean of its cost over that of rank 1, less 1.
        gap_interval: 95 % bootstrap interval of `gap` over tasks; None for rank 1 and for too few tasks.
        success: share of recorded tasks that it solved.
        completeness: share of the tasks and seeds asked for that have a record.
        median_s: median time per plan.
        bound_gap: geometric mean of its cost over the task's lower bound, less 1; NaN where the judge has none.
        failures: number of records per status other than "ok".
    """

    solver: str
    rank: int | None
    tied: bool
    tasks: int
    mean_ms: float
    relative: float
    gap: float
    gap_interval: Interval | None
    success: float
    completeness: float
    median_s: float
    bound_gap: float
    failures: dict[str, int]


@dataclass(frozen=True)
class Ranking:
    """The ranked solvers of a board.

    Attributes:
        board: what was ranked.
        rows: ranked solvers first.
        num_common: tasks that means are taken over.
        best_heuristic: what `relative` is relative to; None when no heuristic solved the common tasks.
        bounds: of its tasks; None where the judge has none.
    """

    board: Board
    rows: tuple[Row, ...]
    num_common: int
    best_heuristic: str | None
    bounds: TaskBounds | None


@dataclass(frozen=True)
class SolverResults:
    """One solver's results on the tasks of a board, T of them.

    Attributes:
        solver: its name.
        records: its results.
        num_requested: how many records were requested, one per task and seed.
        has_record: whether there is a record, shape (T,).
        solved: whether all records of the task are ok, shape (T,).
        cost_ms: mean over seeds, NaN where not solved, shape (T,).
    """

    solver: str
    records: Sequence[Result]
    num_requested: int
    has_record: Bools
    solved: Bools
    cost_ms: Floats

    @classmethod
    def of(cls, solver: str, records: Sequence[Result], board: Board) -> SolverResults:
        """Sort a solver's records by task."""
        by_task: dict[int, list[Result]] = defaultdict(list)
        for record in records:
            by_task[record.task_index].append(record)
        per_task = [by_task[task] for task in board.tasks]
        solved = [bool(found) and all(r.status == "ok" for r in found) for found in per_task]
        costs = [
            np.mean([r.total_ms for r in found]) if ok else np.nan for found, ok in zip(per_task, solved, strict=True)
        ]
        return cls(
            solver=solver,
            records=records,
            num_requested=len(board.tasks) * len(board.seeds[solver]),
            has_record=np.array([bool(found) for found in per_task], dtype=bool),
            solved=np.array(solved, dtype=bool),
            cost_ms=np.array(costs, dtype=np.float64),
        )

    @property
    def is_complete(self) -> bool:
        """Whether every task has a record for every seed that was asked for."""
        return len(self.records) == self.num_requested

    @property
    def num_solved(self) -> int:
        """Tasks solved."""
        return int(self.solved.sum())


def rank(board: Board) -> Ranking:
    """Rank the solvers of a board; see the module for the rules."""
    by_solver: dict[str, list[Result]] = defaultdict(list)
    for result in board.results:
        by_solver[result.solver].append(result)
    everyone = [SolverResults.of(solver, by_solver[solver], board) for solver in board.solvers]

    candidates = [s for s in everyone if s.is_complete] or everyone
    most_solved = max((s.num_solved for s in candidates), default=0)
    comparable = [s for s in candidates if s.num_solved and s.num_solved >= COMPARABLE * most_solved]
    common = np.full(len(board.tasks), bool(comparable))
    for results in comparable:
        common &= results.solved

    def mean_log(results: SolverResults) -> float:
        costs = results.cost_ms[common & results.solved]
        return float(np.log(costs).mean()) if costs.size else math.inf

    order = sorted(everyone, key=lambda s: (not s.is_complete, -s.num_solved, mean_log(s), s.solver))
    leader = order[0] if order and order[0].is_complete and order[0].num_solved else None
    heuristics = [s for s in comparable if s.solver in HEURISTICS and common.any()]
    best_heuristic = min(heuristics, key=mean_log, default=None)
    bounds = task_bounds(board)
    rows = [
        _row(results, place, common, leader, best_heuristic, bounds) for place, results in enumerate(order, start=1)
    ]
    return Ranking(board, tuple(rows), int(common.sum()), best_heuristic.solver if best_heuristic else None, bounds)


def _row(
    results: SolverResults, place: int, common: Bools, leader: SolverResults | None, best: SolverResults | None,
    bounds: TaskBounds | None,
) -> Row:  # fmt: skip
    own = common & results.solved
    costs = results.cost_ms[own]
    gap = math.nan
    interval = None
    if leader is not None:
        both = own & leader.solved
        logs = np.log(results.cost_ms[both] / leader.cost_ms[both])
        gap = math.expm1(float(logs.mean())) if logs.size else math.nan
        of_logs = None if results is leader else bootstrap_mean(logs)
        interval = of_logs and Interval(*(math.expm1(end) for end in of_logs))
    is_tied = (
        leader is not None
        and leader is not results
        and results.is_complete
        and results.num_solved == leader.num_solved
        and (interval is None or interval.contains(0.0))
    )
    records = results.records
    return Row(
        solver=results.solver,
        rank=place if results.is_complete and leader is not None else None,
        tied=is_tied,
        tasks=int(own.sum()),
        mean_ms=float(costs.mean()) if costs.size else math.nan,
        relative=mean_ratio(costs, best.cost_ms[own]) if best else math.nan,
        gap=gap,
        gap_interval=interval,
        success=results.num_solved / int(results.has_record.sum()) if results.has_record.any() else math.nan,
        completeness=len(records) / results.num_requested if results.num_requested else math.nan,
        median_s=statistics.median(r.solve_time_s for r in records) if records else math.nan,
        bound_gap=mean_ratio(costs, bounds.total_ms[own]) - 1 if bounds else math.nan,
        failures=dict(Counter(r.status for r in records if r.status != "ok")),
    )


def mean_ratio(costs: Floats, reference: Floats) -> float:
    """Return the geometric mean of costs / reference over tasks, both of shape (n,); NaN when n is 0."""
    return math.exp(float(np.log(costs / reference).mean())) if costs.size else math.nan


def bootstrap_mean(values: Floats) -> Interval | None:
    """Return the percentile interval of the mean of `values` when tasks are drawn anew with replacement.

    Efron & Tibshirani, An Introduction to the Bootstrap, chapter 13.

    Args:
        values: one per task, shape (n,).

    Returns:
        None for fewer than `MIN_TASKS` tasks.
    """
    if values.size < MIN_TASKS:
        return None
    rng = np.random.default_rng(SEED)
    means = np.concatenate([
        values[rng.integers(values.size, size=(min(_CHUNK, RESAMPLES - start), values.size))].mean(axis=1)
        for start in range(0, RESAMPLES, _CHUNK)
    ])  # fmt: skip
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(low), float(high))
