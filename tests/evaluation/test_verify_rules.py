"""When stored and fresh costs agree."""

from __future__ import annotations

import pytest

from shardgym import PlanCost
from shardgym.evaluation.verify.rules import MAX_DRIFT, deterministic_problem, measured_problems, tolerance


def cost(*forward, noise=0.0):
    return PlanCost([[ms, 0, 0, 0] for ms in forward], "toy", "1", "lab", noise=noise)


def test_deterministic_costs_may_differ_by_a_millionth():
    assert deterministic_problem(cost(100.0, 5.0), cost(100.00001, 5.0)) is None
    assert "stored 100 ms, recomputed 100.001 ms" in deterministic_problem(cost(100.0), cost(100.001))


def test_a_device_that_does_not_set_the_total_is_compared_too():
    assert "forward_compute of device 1" in deterministic_problem(cost(100.0, 5.0), cost(100.0, 6.0))


def test_a_common_drift_is_no_deviation():
    """All plans take twice as long today."""
    assert measured_problems([(cost(ms), cost(2 * ms)) for ms in (1.0, 2.0, 3.0)]) == [None] * 3


def test_a_drift_beyond_the_bound_fails_all_plans():
    pairs = [(cost(ms), cost((MAX_DRIFT + 0.1) * ms)) for ms in (1.0, 2.0)]
    assert all("beyond a drift" in problem for problem in measured_problems(pairs))


def test_a_plan_that_was_flattered_stands_out_against_the_drift_of_the_others():
    """Three plans drift by 1.2; the second one's stored time is half of what it should be."""
    pairs = [(cost(10.0), cost(12.0)), (cost(5.0), cost(12.0)), (cost(20.0), cost(24.0))]
    first, second, third = measured_problems(pairs)
    assert (first, third) == (None, None)
    assert "2.00 times the drift" in second


def test_deviations_count_the_same_in_both_directions():
    slow = measured_problems([(cost(10.0), cost(10.0)), (cost(10.0), cost(10.0)), (cost(10.0), cost(20.0))])
    fast = measured_problems([(cost(10.0), cost(10.0)), (cost(10.0), cost(10.0)), (cost(10.0), cost(5.0))])
    assert [p is None for p in slow] == [p is None for p in fast] == [True, True, False]


def test_noise_widens_the_tolerance_up_to_a_ceiling():
    """4 x hypot(0.06, 0.08) = 0.4; a record cannot claim noise that excuses everything."""
    assert tolerance(cost(1.0, noise=0.06), cost(1.0, noise=0.08)) == pytest.approx(0.4)
    assert tolerance(cost(1.0, noise=50.0), cost(1.0)) == 0.5
    assert tolerance(cost(1.0), cost(1.0)) == 0.2


def test_a_stored_time_of_zero_is_a_problem():
    (problem,) = measured_problems([(cost(0.0), cost(1.0))])
    assert problem is not None
