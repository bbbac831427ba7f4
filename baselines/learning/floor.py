"""Whether a solver beats the floor of its environment: one step of lookahead, which has learned nothing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.base import CostModel, make_cost
from shardgym.errors import NO_PLAN, InputError
from shardgym.evaluation.solver import Solver, make_solver
from shardgym.leaderboard.ranking import BASE
from shardgym.leaderboard.statistics import MIN_TASKS, Interval, mean_interval, mean_ratio
from shardgym.tasks.suites import Suite


class FloorComparison(NamedTuple):
    """What plans of a solver cost over those of the floor.

    Attributes:
        floor: name of the floor's solver.
        ratio: geometric mean over the tasks.
        interval: 95 % of `ratio`.
        failed: tasks without a plan, which count as the plan of the boards' base, as on boards.
        tasks: how many there are.
    """

    floor: str
    ratio: float
    interval: Interval
    failed: int
    tasks: int

    @property
    def beaten(self) -> bool:
        """Whether the solver is cheaper beyond the interval."""
        return self.interval.high < 1

    def __str__(self) -> str:
        says = "it beats the floor" if self.beaten else "it does not beat the floor"
        ends = f"{self.interval.low:.3f} .. {self.interval.high:.3f}"
        failed = f", {self.failed} of {self.tasks} tasks failed" if self.failed else ""
        return f"{self.ratio:.3f} of the cost of {self.floor} ({ends}{failed}): {says}"


def compare_with_floor(
    solver: Solver, suite: Suite, judge: str = "simulator", floor: str = "lookahead_columns"
) -> FloorComparison:
    """Solve the tasks of a suite by a solver and by the floor, and compare what a judge says of the plans.

    Args:
        solver: to compare.
        suite: at least six tasks, as fewer have no interval.
        judge: names the track, whose oracle both ask and whose judge scores; see `Suite.track`.
        floor: solver that has to be beaten.

    Raises:
        InputError: the suite is too small, or the floor or the base has no plan for a task.

    Example:
        >>> print(compare_with_floor(PolicySolver(model, env_id), load_suite("dlrm4-v2")))   # doctest: +SKIP
    """
    if len(suite) < MIN_TASKS:
        raise InputError(f"suite '{suite.name}' has {len(suite)} tasks: an interval needs {MIN_TASKS}")
    track = suite.track(judge)
    costs = [make_cost(choice.cost, **choice.settings) for choice in (track.oracle, track.judge)]
    found = _costs_ms(solver, suite, *costs)
    reference = _costs_ms(make_solver(floor), suite, *costs)
    failed = np.isnan(found)
    if failed.any():
        found = np.where(failed, _costs_ms(make_solver(BASE), suite, *costs), found)
    if np.isnan(found).any() or np.isnan(reference).any():
        raise InputError(f"suite '{suite.name}' has tasks that '{floor}' or '{BASE}' finds no plan for: use another")
    interval = mean_interval(np.log(found / reference))
    assert interval is not None
    ends = Interval(float(np.exp(interval.low)), float(np.exp(interval.high)))
    return FloorComparison(floor, mean_ratio(found, reference), ends, int(failed.sum()), len(suite))


def _costs_ms(solver: Solver, suite: Suite, oracle: CostModel, judge: CostModel) -> Floats:
    """Return what the solver's plans cost by the judge, shape (T,); NaN where it finds none."""
    found = np.full(len(suite), np.nan)
    for number, task in enumerate(suite):
        try:
            plan = solver.solve(task, oracle)
        except NO_PLAN:
            continue
        found[number] = judge.evaluate(task, [plan])[0].total_ms
    return found
