"""Intervals and tests over tasks hold what they promise; which measured plans cannot be told from the best."""

import math

import numpy as np
import pytest

from shardgym import PlanCost
from shardgym.cli.plans import tie_marks
from shardgym.costs.plan_cost import infinite
from shardgym.leaderboard import statistics
from shardgym.leaderboard.statistics import (
    clearly_ahead,
    holm,
    mean_interval,
    mean_interval_over_suites,
    pareto_front,
    rank_ranges,
)

#: Differences of solvers with equal means: normal, with tails so heavy that they have no variance, and skewed.
EQUAL = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "heavy tails": lambda rng, shape: rng.standard_t(2, size=shape),
    "skewed": lambda rng, shape: rng.gamma(2, size=shape) - 2,
}


def at_most(share, cases):
    """The largest share of so many cases that is seen with 99.9 % where the true one is `share`."""
    return share + 3.1 * math.sqrt(share * (1 - share) / cases)


def told_from_zero(values):
    """Whether two solvers with these differences are told apart."""
    return clearly_ahead(np.array([values, np.zeros(len(values))])).any()


@pytest.mark.parametrize("kind", EQUAL)
@pytest.mark.parametrize("tasks", [6, 30])
@pytest.mark.parametrize("calm", [False, True], ids=["all vary", "one does not"])
def test_of_five_equal_solvers_any_two_are_told_apart_in_five_percent_of_boards_at_most(kind, tasks, calm):
    """Where one does not vary, differences from it are as skewed as the others are."""
    boards = 200
    logs = EQUAL[kind](np.random.default_rng(tasks), (boards, 5, tasks))
    if calm:
        logs[:, 0] = 0.0
    assert np.mean([clearly_ahead(board).any() for board in logs]) <= at_most(0.05, boards)


@pytest.mark.parametrize("kind", EQUAL)
def test_an_interval_over_suites_misses_the_mean_in_ten_percent_of_cases_at_most(kind):
    cases = 200
    rng = np.random.default_rng(3)
    found = [mean_interval_over_suites(list(EQUAL[kind](rng, (3, 9)))) for _ in range(cases)]
    assert np.mean([not interval.contains(0.0) for interval in found]) <= at_most(0.1, cases)


def test_an_interval_over_suites_weighs_suites_alike_and_is_the_same_every_time():
    rng = np.random.default_rng(4)
    few, many = rng.normal(size=6), rng.normal(size=60) + 10
    interval = mean_interval_over_suites([few, many])
    assert interval == mean_interval_over_suites([few, many])
    assert interval.contains((few.mean() + many.mean()) / 2)
    # Of one suite it is that of its board; next to one without spread it is half as wide, but for the method.
    assert mean_interval_over_suites([few]) == mean_interval(few)
    half = mean_interval_over_suites([many, np.zeros(6)])
    own = mean_interval(many)
    assert half.high - half.low == pytest.approx((own.high - own.low) / 2, rel=0.1)
    assert mean_interval_over_suites([few[:5], many]) is None


def two_sided(values):
    """Larger p-value of the two tests, flips being twice those of subsets that bring the mean to the other side."""
    subsets = statistics._subsets(len(values))
    means = subsets @ values
    flips = 2 * (1 + min((means <= 0).sum(), (means >= 0).sum())) / (1 + len(subsets))
    return max(flips, statistics._student(values[None])[0])


@pytest.mark.parametrize("tasks", [6, 11, 20])
def test_an_interval_holds_the_means_that_the_tests_do_not_tell_from_it(tasks):
    rng = np.random.default_rng(tasks)
    for _ in range(50):
        values = rng.gamma(2, size=tasks) - 2 + rng.normal()
        interval = mean_interval(values)
        assert interval.contains(0.0) == (two_sided(values) > 0.05)
        near = [interval.low - 1e-6, interval.low + 1e-6, interval.high - 1e-6, interval.high + 1e-6]
        assert [two_sided(values - end) > 0.05 for end in near] == [False, True, True, False]


def test_an_interval_is_that_of_the_normal_distribution_for_many_tasks():
    """Mean 1 and standard deviation 2 over 400 values: 1.96 x 2 / 20 = 0.196 to either side."""
    values = np.random.default_rng(1).normal(size=400)
    values = 1 + 2 * (values - values.mean()) / values.std()
    assert mean_interval(values) == pytest.approx((1 - 0.196, 1 + 0.196), abs=0.015)
    assert mean_interval(values) == mean_interval(values)


def test_six_tasks_have_64_ways_to_flip_signs():
    """All differences of one sign are 2 of them, 3.1 %, with one that is not 4."""
    values = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    assert mean_interval(values[:5]) is None
    assert [told_from_zero(own) for own in (values, -values, 0 * values)] == [True, True, False]
    assert not told_from_zero(np.array([-1e-3, *values[1:]]))


def test_holm_compares_the_smallest_with_the_strictest_limit():
    """0.01 <= 0.05 / 4, 0.016 <= 0.05 / 3, 0.03 > 0.05 / 2, so that the last does not hold either."""
    assert holm(np.array([0.03, 0.01, 0.04, 0.016])).tolist() == [False, True, False, True]
    assert holm(np.zeros(0)).tolist() == []


def test_ranks_go_from_who_is_ahead_to_who_is_behind():
    """The first two are ahead of the third, and the first of the fourth as well."""
    ahead = np.zeros((4, 4), dtype=bool)
    ahead[0, 2] = ahead[0, 3] = ahead[1, 2] = True
    assert rank_ranges(ahead) == [(1, 2), (1, 3), (3, 4), (2, 4)]


def cost(total_ms, error_ms=0.0):
    return PlanCost([[0, total_ms, 0, 0, 0]], "lab-cost", "1", "lab", noise=error_ms / total_ms)


NONE = PlanCost(infinite(1), "lab-cost", "1", "lab", reason="too large")


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ([cost(69.528, 2.6), cost(69.252, 2.5), cost(90, 2.5)], ["tied", "tied", None]),
        ([cost(80, 1), cost(69.252, 1), NONE], [None, "best", None]),
        ([cost(100, 3), cost(109.9, 4)], ["tied", "tied"]),  # errors of 3 and 4 ms make one of 5 ms for the difference
        ([cost(110.1, 4), cost(100, 3)], [None, "best"]),
        ([cost(1.0), cost(1.0)], ["tied", "tied"]),
        ([cost(1.0), cost(1.000001)], ["best", None]),
        ([cost(5), NONE], ["best", None]),
        ([NONE, NONE], [None, None]),
        ([cost(5)], [None]),
        ([], []),
    ],
)
def test_best_is_what_no_other_ties_with(costs, expected):
    assert tie_marks(costs) == expected


def test_the_pareto_front_has_whom_nobody_dominates():
    """The second is dearer and slower than the first, the last solved nothing; of equals both are on it."""
    front = pareto_front(np.array([1.0, 2.0, 3.0, 3.0, 9.0]), np.array([1.0, 1.1, 0.9, 0.9, np.nan]))
    assert front.tolist() == [True, False, True, True, False]


def test_nine_tasks_rank_six_solvers_of_which_each_is_better_on_all_of_them():
    """At Holm's levels flips of nine signs would tell none of 15 pairs apart: 2 / 512 > 0.05 / 15."""
    noise = 0.1 * np.random.default_rng(0).normal(size=(6, 9))
    ahead = clearly_ahead(noise + np.arange(6)[:, None])
    assert rank_ranges(ahead) == [(n, n) for n in range(1, 7)]


@pytest.mark.parametrize("kind", EQUAL)
def test_equal_solvers_beside_worse_ones_are_told_apart_in_five_percent_of_boards_at_most(kind):
    """Step-down maxima hold for the solvers that are equal, whoever else is on the board."""
    boards = 200
    logs = EQUAL[kind](np.random.default_rng(9), (boards, 5, 9))
    logs[:, 3:] += 20.0
    assert np.mean([clearly_ahead(board)[:3, :3].any() for board in logs]) <= at_most(0.05, boards)
