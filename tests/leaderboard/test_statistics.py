"""Bootstrap intervals and means over tasks, and which measured plans cannot be told from the best."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shardgym import PlanCost
from shardgym.cli.plans import is_tie, tie_marks
from shardgym.costs.base import infinite
from shardgym.leaderboard.ranking import bootstrap_mean, mean_ratio


def test_the_bootstrap_interval_is_that_of_the_normal_distribution_for_many_tasks():
    """Mean 1 and standard deviation 2 over 400 values: 1.96 x 2 / 20 = 0.196 to either side."""
    values = np.random.default_rng(1).normal(size=400)
    values = 1 + 2 * (values - values.mean()) / values.std()
    low, high = bootstrap_mean(values)
    assert (low, high) == pytest.approx((1 - 0.196, 1 + 0.196), abs=0.015)
    assert bootstrap_mean(values) == (low, high)


def test_the_mean_ratio_is_geometric():
    assert mean_ratio(np.array([1.0, 8.0]), np.array([2.0, 4.0])) == pytest.approx(1.0)
    assert math.isnan(mean_ratio(np.array([]), np.array([])))


def cost(total_ms, error_ms=0.0):
    """Return a cost with a standard error in ms."""
    return PlanCost([[total_ms, 0, 0, 0]], "lab-cost", "1", "lab", noise=error_ms / total_ms)


NONE = PlanCost(infinite(1), "lab-cost", "1", "lab", reason="too large")


@pytest.mark.parametrize(("difference", "tie"), [(9.9, True), (10.1, False)])
def test_two_standard_errors_of_the_difference_are_a_tie(difference, tie):
    """Errors of 3 and 4 ms make one of 5 ms for the difference."""
    assert is_tie(cost(100, 3), cost(100 + difference, 4)) is tie
    assert is_tie(cost(100 + difference, 4), cost(100, 3)) is tie


def test_costs_without_noise_tie_only_when_equal():
    assert is_tie(cost(1.0), cost(1.0))
    assert not is_tie(cost(1.0), cost(1.000001))


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ([cost(69.528, 2.6), cost(69.252, 2.5), cost(90, 2.5)], ["tied", "tied", None]),
        ([cost(80, 1), cost(69.252, 1), NONE], [None, "best", None]),
        ([cost(5), NONE], ["best", None]),
        ([NONE, NONE], [None, None]),
        ([cost(5)], [None]),
        ([], []),
    ],
)
def test_best_is_what_no_other_ties_with(costs, expected):
    assert tie_marks(costs) == expected
