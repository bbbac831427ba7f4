"""Bootstrap intervals and means over tasks, and which measured plans cannot be told from the best."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shardgym import PlanCost
from shardgym.cli.plans import is_tie, tie_marks
from shardgym.costs.plan_cost import infinite
from shardgym.leaderboard.statistics import (
    bootstrap_mean,
    improvement_ends,
    mean_ratio,
    performance_profile,
    probability_of_improvement,
    resampled_means,
    shared_ranks,
)


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
    return PlanCost([[0, total_ms, 0, 0, 0]], "lab-cost", "1", "lab", noise=error_ms / total_ms)


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


def test_tasks_are_drawn_together_for_all_solvers():
    """Two solvers that differ by a constant differ by it in every resample, however tasks differ."""
    costs = np.random.default_rng(2).normal(size=(1, 30))
    means = resampled_means([costs, costs + 0.5])
    assert np.ptp(means[:, 0]) > 0.5
    np.testing.assert_allclose(means[:, 1] - means[:, 0], 0.5)


def test_seeds_are_drawn_for_every_task_apart():
    """Eight tasks with seeds at -1 and 1: two draws of each average to a variance of 1 / 16."""
    means = resampled_means([np.array([[-1.0] * 8, [1.0] * 8])])[:, 0]
    assert means.std() == pytest.approx(0.25, rel=0.05)
    assert means.mean() == pytest.approx(0.0, abs=0.02)


def test_shared_ranks_start_anew_at_the_first_that_is_clearly_costlier():
    better = np.zeros((4, 4), dtype=bool)
    better[0, 2] = better[0, 3] = better[1, 3] = True
    assert shared_ranks(better) == [1, 1, 3, 3]
    better[2, 3] = True
    assert shared_ranks(better) == [1, 1, 3, 4]


def test_the_probability_of_improvement_counts_pairs_of_seeds_and_half_of_what_is_equal():
    """First task: 1 < 2 in one of two pairs, equal in the other. Second task: a failure is costlier than any plan."""
    mine = np.array([[1.0, 5.0], [2.0, 5.0]])
    theirs = np.array([[2.0, np.inf]])
    found = probability_of_improvement([mine, theirs])
    assert found.tolist() == [[0.5, 0.875], [0.125, 0.5]]


def test_intervals_of_improvement_are_those_of_a_share_of_tasks_and_add_up():
    """The first solver wins on 75 of 100 tasks: a binomial interval of 1.96 x sqrt(0.75 x 0.25 / 100) = 0.085."""
    mine = np.ones((1, 100))
    theirs = np.where(np.arange(100) < 75, 2.0, 0.5)[None]
    low, high = improvement_ends([mine, theirs])
    assert (low[0, 1], high[0, 1]) == pytest.approx((0.75 - 0.085, 0.75 + 0.085), abs=0.015)
    np.testing.assert_allclose(low + high.T, 1.0)
    assert improvement_ends([mine[:, :5], theirs[:, :5]]) is None
    assert improvement_ends([]) is None


def test_seeds_widen_the_interval_of_improvement():
    """On every task the first solver wins with one seed of two: 16 draws, each of which wins with one half."""
    two_seeds = np.tile([[1.0], [3.0]], 8)
    low, high = improvement_ends([two_seeds, np.full((1, 8), 2.0)])
    assert probability_of_improvement([two_seeds, np.full((1, 8), 2.0)])[0, 1] == 0.5
    assert (high - low)[0, 1] == pytest.approx(2 * 1.96 * np.sqrt(0.25 / 16), abs=0.1)


def test_a_performance_profile_is_relative_to_the_best_plan_of_each_task():
    """Best plans cost 1 and 4; the second solver is at 1.5 and 1 times these, the third failed once."""
    costs = [np.array([[1.0, 8.0]]), np.array([[1.5, 4.0]]), np.array([[np.inf, 4.4]])]
    shares = performance_profile(costs, np.array([1.0, 1.1, 1.5, 2.0]))
    assert shares.tolist() == [[0.5, 0.5, 0.5, 1.0], [0.5, 0.5, 1.0, 1.0], [0.0, 0.5, 0.5, 0.5]]
