"""Solvers against the floor of their environment, by costs that are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from baselines.learning.floor import compare_with_floor
from shardgym import NoFeasiblePlanError, load_suite, make_cost, make_solver
from shardgym.leaderboard.statistics import mean_interval

SMALL = Path(__file__).parents[2] / "examples" / "recipes" / "suite.yaml"


class Sometimes:
    """Solves like another solver, but fails tasks.

    Args:
        solver: that solves the others.
        fails: positions of the tasks that fail, by the order in which they come.
    """

    name = "sometimes"

    def __init__(self, solver, fails=()):
        self.solver = solver
        self.fails = fails
        self.count = 0

    def solve(self, task, cost, seed=0):
        self.count += 1
        if self.count - 1 in self.fails:
            raise NoFeasiblePlanError("not this one")
        return self.solver.solve(task, cost, seed)


@pytest.fixture(scope="module")
def suite():
    return load_suite("quick-v1")


def costs_ms(name, suite):
    oracle = make_cost("simulator")
    judge = make_cost("simulator", role="judge")
    solver = make_solver(name)
    return np.array([judge.evaluate(task, [solver.solve(task, oracle)])[0].total_ms for task in suite])


def test_the_ratio_is_a_geometric_mean_over_tasks_and_failures_count_as_the_base(suite):
    found = compare_with_floor(Sometimes(make_solver("dim_greedy"), fails=(2, 3)), suite, floor="size_greedy")
    costs = costs_ms("dim_greedy", suite)
    costs[2:4] = costs_ms("lpt", suite)[2:4]
    logs = np.log(costs / costs_ms("size_greedy", suite))
    assert found.ratio == pytest.approx(np.exp(logs.mean()))
    assert found.interval == pytest.approx(np.exp(mean_interval(logs)))
    assert (found.failed, found.tasks) == (2, 10)
    assert "2 of 10 tasks failed" in str(found)


def test_only_what_is_cheaper_beyond_the_interval_beats_the_floor(suite):
    level = compare_with_floor(make_solver("dim_greedy"), suite, floor="dim_greedy")
    assert level.ratio == 1.0
    assert not level.beaten
    assert str(level) == "1.000 of the cost of dim_greedy (1.000 .. 1.000): it does not beat the floor"
    ahead = compare_with_floor(make_solver("lpt"), suite, floor="random")
    assert ahead.interval.high < 1
    assert str(ahead).endswith(": it beats the floor")
