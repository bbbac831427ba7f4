"""What a ranking is made of: groups of tasks, profiles, who beats whom; and what others say, costs or measurements."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Bools, Floats
from shardgym.costs.base import CostModel
from shardgym.costs.simulator.model_card import CLOSE
from shardgym.leaderboard.boards import LEAST_MS, Board
from shardgym.leaderboard.ranking import Ranking, over_measurements, ratio_interval
from shardgym.leaderboard.statistics import (
    Interval,
    performance_profile,
    probability_of_improvement,
    rank_agreement,
    share_ends,
)
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ShardingTask

#: Of performance profiles: a plan may cost so many times the best one.
FACTORS = (1.0, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0)
#: Shares of all memory that the tables of a task take: limits of groups.
_TIGHTNESS = (0.25, 0.5, 0.75)


class GroupRatio(NamedTuple):
    """A solver against the base on a group of tasks.

    Attributes:
        ratio: geometric mean of its cost over that of the base; NaN where unknown.
        interval: over the group's tasks; None for too few.
    """

    ratio: float
    interval: Interval | None


@dataclass(frozen=True)
class Details:
    """Of one ranking; solvers in the order of its rows, n of them.

    Attributes:
        solvers: their names.
        groups: number of tasks by group.
        ratios: against the base, by group, one per solver.
        profile: share of plans within `FACTORS` times the best plan of their task, shape (n, F).
        improvement: probability that a plan of one solver is cheaper than one of another, shape (n, n).
        improvement_ends: lower and upper ends of its 95 % intervals, shape (2, n, n); None for too few tasks.
    """

    solvers: tuple[str, ...]
    groups: dict[str, int]
    ratios: dict[str, tuple[GroupRatio, ...]]
    profile: Floats
    improvement: Floats
    improvement_ends: Floats | None

    @classmethod
    def of(cls, ranking: Ranking) -> Details:
        """Work out the details of the solvers that have all records."""
        chosen = [n for n, results in enumerate(ranking.results) if results.is_complete]
        groups = task_groups(ranking.board)
        failing = [ranking.results[n].failing_ms for n in chosen]
        improvement = probability_of_improvement(failing)
        ratios = {group: tuple(_group_ratio(ranking, n, tasks) for n in chosen) for group, tasks in groups.items()}
        return cls(
            solvers=tuple(ranking.results[n].solver for n in chosen),
            groups={
                group: sum(bool(tasks[same].any()) for same in ranking.board.same_tasks)
                for group, tasks in groups.items()
            },
            ratios=ratios,
            profile=performance_profile(failing, np.array(FACTORS)) if chosen else np.zeros((0, len(FACTORS))),
            improvement=improvement,
            improvement_ends=share_ends(improvement, len(ranking.board.same_tasks)) if chosen else None,
        )

    def improvement_interval(self, i: int, j: int) -> Interval | None:
        """Return the 95 % interval of `improvement` of solver i over solver j; None for too few tasks."""
        return None if self.improvement_ends is None else Interval(*self.improvement_ends[:, i, j].tolist())


def pareto_front(times: Floats, costs: Floats) -> Bools:
    """Say which solvers no other one dominates: none is at least as fast and as cheap, and better in one of the two.

    Args:
        times: seconds per plan by solver, shape (n,).
        costs: of plans, shape (n,); NaN for a solver that solved nothing, which is not among them.
    """
    no_worse = (times[:, None] <= times) & (costs[:, None] <= costs)
    better = (times[:, None] < times) | (costs[:, None] < costs)
    dominated: Bools = np.any(no_worse & better, axis=0)
    return ~dominated & ~np.isnan(costs)


def _group_ratio(ranking: Ranking, row: int, tasks: Bools) -> GroupRatio:
    """Compare the costs of a row with those of the base on some tasks of the board."""
    kept = tasks & np.isfinite(ranking.base_ms) if ranking.has_base else tasks
    places = [[place for place in same if kept[place]] for same in ranking.board.same_tasks]
    logs = np.log(ranking.counted_ms[row] / ranking.base_ms).mean(axis=0)
    logs = over_measurements(logs, [same for same in places if same])
    logs = logs[np.isfinite(logs)]
    if not logs.size:
        return GroupRatio(math.nan, None)
    return GroupRatio(math.exp(float(logs.mean())), ratio_interval(logs, np.zeros_like(logs)))


def ms_of_plans(board: Board) -> dict[int, dict[ShardingPlan, float]]:
    """Return the cost of every distinct plan by task of the board, in ms."""
    found: dict[int, dict[ShardingPlan, float]] = defaultdict(dict)
    for result in board.results:
        if result.plan is not None and result.cost is not None and result.cost.feasible:
            found[result.task_index].setdefault(result.plan, result.total_ms)
    return found


def agreement_of_measurements(board: Board) -> tuple[list[float], list[bool]]:
    """Say how far measurements order the plans of a task alike: no judge can be expected to agree better with one.

    Returns:
        Kendall's tau of one measurement with another, for each ordered two of a task; and for each pair of plans that
        differ by less than `CLOSE` by the one, whether the other orders them alike. Both empty unless boards were
        joined.
    """
    measured = ms_of_plans(board)
    taus = []
    alike = []
    for places in board.same_tasks:
        for one, other in itertools.permutations((measured[board.tasks[place]] for place in places), 2):
            plans = [plan for plan in one if plan in other]
            if len(plans) > 1:
                costs = [np.array([of_plans[plan] for plan in plans]) for of_plans in (one, other)]
                tau, pairs = rank_agreement(costs[1], costs[0], CLOSE)
                taus.append(tau)
                alike += pairs
    return taus, alike


def task_groups(board: Board) -> dict[str, Bools]:
    """Sort the tasks of a board by the width of their widest table, and by the share of memory that all tables take.

    Returns:
        Which tasks are of a group, shape (T,), by its name; of tasks that are at hand.
    """
    groups: dict[str, Bools] = {}
    tasks = [board.task(index) for index in board.tasks]
    for group_of in (_width_group, _tightness_group):
        names = [None if task is None else group_of(task) for task in tasks]
        for name in sorted({name for name in names if name is not None}):
            groups[name[1]] = np.array([other == name for other in names], dtype=bool)
    return groups


def _width_group(task: ShardingTask) -> tuple[int, str]:
    """Return width and name of a group: widths up to a power of two."""
    width = 1 << (max(table.embedding_dim for table in task.tables) - 1).bit_length()
    return width, f"width {width}"


def _tightness_group(task: ShardingTask) -> tuple[int, str]:
    """Return number and name of a group."""
    if task.total_bytes > task.total_capacity_bytes:  # rows lie in the memory of hosts
        return len(_TIGHTNESS) + 1, "memory above 100 %"
    share = task.total_bytes / task.total_capacity_bytes
    number = sum(share >= limit for limit in _TIGHTNESS)
    ends = [f"{100 * limit:.0f}" for limit in (0.0, *_TIGHTNESS, 1.0)]
    return number, f"memory {ends[number]}-{ends[number + 1]} %"


@dataclass(frozen=True)
class SecondOpinion:
    """Costs of the stored plans of a ranking, by another cost model.

    Attributes:
        cost: its name.
        hardware: its tag.
        reference: the first solver of the ranking.
        ratios: by solver, the geometric mean of its cost over that of the reference, on the tasks that both solved with
            a plan that this cost can score; NaN where there is none.
    """

    cost: str
    hardware: str
    reference: str
    ratios: dict[str, float]


def second_opinion(ranking: Ranking, model: CostModel) -> SecondOpinion | None:
    """Score the plans of a ranking by another cost model; several seeds of a solver count by their geometric mean.

    Args:
        ranking: its tasks must be at hand; others are left out.
        model: scores the plans of each task together.

    Returns:
        None for a ranking without solvers.
    """
    if not ranking.rows:
        return None
    solved = defaultdict(list)
    for result in ranking.board.results:
        if result.status == "ok" and result.plan is not None:
            solved[result.task_index].append((result.solver, result.plan))
    logs: dict[str, dict[int, float]] = {row.solver: {} for row in ranking.rows}
    for index, plans in solved.items():
        task = ranking.board.task(index)
        if task is None:
            continue
        own = defaultdict(list)
        costs = model.evaluate(task, [plan for _, plan in plans])
        for (solver, _), cost in zip(plans, costs, strict=True):
            own[solver].append(math.log(max(cost.total_ms, LEAST_MS)) if cost.feasible else math.nan)
        for solver, values in own.items():
            if not math.isnan(sum(values)):
                logs[solver][index] = sum(values) / len(values)
    reference = ranking.rows[0].solver
    ratios = {}
    for solver, by_task in logs.items():
        both = [by_task[index] - logs[reference][index] for index in by_task if index in logs[reference]]
        ratios[solver] = math.exp(float(np.mean(both))) if both else math.nan
    return SecondOpinion(model.name, model.hardware, reference, ratios)
