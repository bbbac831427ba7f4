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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardgym.arrays import Bools
from shardgym.leaderboard.board import Board
from shardgym.leaderboard.outcomes import Outcome, outcomes
from shardgym.leaderboard.statistics import Interval, bootstrap_mean, mean_ratio

#: Share of the tasks that the best solved which a solver must have solved to decide what tasks are common.
COMPARABLE = 0.9

#: The published heuristics; costs are told relative to the best of them. `random` is not one.
HEURISTICS = ("size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")


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
    failures: dict[str, int]


@dataclass(frozen=True)
class Ranking:
    """The ranked solvers of a board.

    Attributes:
        board: what was ranked.
        rows: ranked solvers first.
        num_common: tasks that means are taken over.
        best_heuristic: what `relative` is relative to; None when no heuristic solved the common tasks.
    """

    board: Board
    rows: tuple[Row, ...]
    num_common: int
    best_heuristic: str | None


def rank(board: Board) -> Ranking:
    """Rank the solvers of a board; see the module for the rules."""
    everyone = outcomes(board)
    comparable = _comparable(everyone)
    common = _common(comparable, len(board.tasks))
    order = sorted(everyone, key=lambda o: _sort_key(o, common))
    leader = order[0] if order and order[0].complete and order[0].num_solved else None
    best = _best_heuristic(comparable, common)
    rows = [_row(o, place, common, leader, best) for place, o in enumerate(order, start=1)]
    return Ranking(board, tuple(rows), int(common.sum()), best.solver if best else None)


def _comparable(everyone: Sequence[Outcome]) -> list[Outcome]:
    """Return the solvers that must have solved a task for it to be common."""
    candidates = [o for o in everyone if o.complete] or list(everyone)
    most = max((o.num_solved for o in candidates), default=0)
    return [o for o in candidates if o.num_solved and o.num_solved >= COMPARABLE * most]


def _common(comparable: Sequence[Outcome], num_tasks: int) -> Bools:
    common = np.full(num_tasks, bool(comparable))
    for outcome in comparable:
        common &= outcome.solved
    return common


def _sort_key(outcome: Outcome, common: Bools) -> tuple[bool, int, float, str]:
    costs = outcome.cost_ms[common & outcome.solved]
    mean = float(np.log(costs).mean()) if costs.size else math.inf
    return (not outcome.complete, -outcome.num_solved, mean, outcome.solver)


def _best_heuristic(comparable: Sequence[Outcome], common: Bools) -> Outcome | None:
    heuristics = [o for o in comparable if o.solver in HEURISTICS and common.any()]
    return min(heuristics, key=lambda o: float(np.log(o.cost_ms[common]).mean()), default=None)


def _row(outcome: Outcome, place: int, common: Bools, leader: Outcome | None, best: Outcome | None) -> Row:
    own = common & outcome.solved
    costs = outcome.cost_ms[own]
    gap, interval = _gap(outcome, leader, own)
    is_tied = (
        leader is not None and leader is not outcome and outcome.complete
        and outcome.num_solved == leader.num_solved and (interval is None or interval.contains(0.0))
    )  # fmt: skip
    return Row(
        solver=outcome.solver,
        rank=place if outcome.complete and leader is not None else None,
        tied=is_tied,
        tasks=int(own.sum()),
        mean_ms=float(costs.mean()) if costs.size else math.nan,
        relative=mean_ratio(costs, best.cost_ms[own]) if best else math.nan,
        gap=gap,
        gap_interval=interval,
        success=outcome.num_solved / int(outcome.recorded.sum()) if outcome.recorded.any() else math.nan,
        completeness=outcome.completeness,
        median_s=outcome.median_s,
        failures=dict(outcome.failures),
    )


def _gap(outcome: Outcome, leader: Outcome | None, own: Bools) -> tuple[float, Interval | None]:
    """Return the gap to the leader over the tasks that both solved, and its interval."""
    if leader is None:
        return math.nan, None
    both = own & leader.solved
    logs = np.log(outcome.cost_ms[both] / leader.cost_ms[both])
    gap = math.expm1(float(logs.mean())) if logs.size else math.nan
    interval = None if outcome is leader else bootstrap_mean(logs)
    return gap, interval and Interval(*(math.expm1(end) for end in interval))
