"""When stored and fresh costs agree."""

from __future__ import annotations

import dataclasses

import pytest

from shardgym import PlanCost
from shardgym.evaluation.verify.drift import MAX_DRIFT, Remeasured, tolerance
from shardgym.evaluation.verify.drift import measured_problems as problems_of
from shardgym.evaluation.verify.rules import deterministic_problem
from shardgym.evaluation.verify.split import split_problem


def cost(*forward, noise=0.0):
    return PlanCost([[ms, 0, 0, 0] for ms in forward], "toy", "1", "lab", noise=noise)


def measured_problems(pairs):
    """Compare stored and fresh costs of different plans of one session."""
    return problems_of([Remeasured(str(number), old, new) for number, (old, new) in enumerate(pairs)])


def in_session(plan, session, old, new):
    """A plan whose stored time in a session and fresh time are given in ms."""
    return Remeasured(plan, dataclasses.replace(cost(old), session=session), cost(new))


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
    assert tolerance(cost(1.0, noise=50.0), cost(1.0, noise=0.1)) == 0.5
    assert tolerance(cost(1.0), cost(1.0)) == 0.2


def test_stored_noise_counts_up_to_a_tenth_or_what_the_new_noise_confirms():
    """4 x 0.1 = 0.4 although the record says 0.3; with a new noise of 0.11 the stored 0.2 counts as 0.11."""
    assert tolerance(cost(1.0, noise=0.3), cost(1.0)) == pytest.approx(0.4)
    assert tolerance(cost(1.0, noise=0.05), cost(1.0)) == 0.2
    assert tolerance(cost(1.0, noise=0.12), cost(1.0, noise=0.03)) == pytest.approx(4 * (0.1**2 + 0.03**2) ** 0.5)


@pytest.mark.parametrize(("stored", "is_fine"), [(10.0, True), (8.5, True), (8.0, False), (12.5, False)])
def test_a_plan_with_a_session_of_its_own_is_held_to_the_drift_of_the_others(stored, is_fine):
    """The others do not drift; 10 ms may have been stored as 8.33 to 12 ms."""
    others = [in_session("a", "s", 10.0, 10.0), in_session("b", "s", 20.0, 20.0)]
    *fine, problem = problems_of([*others, in_session("c", "mine", stored, 10.0)])
    assert fine == [None, None]
    assert (problem is None) == is_fine


def test_one_plan_under_several_names_does_not_make_the_drift():
    """Three records of plan c claim half its time; the two honest plans are still more."""
    plans = [in_session("a", "s", 10.0, 10.0), in_session("b", "s", 10.0, 10.0)]
    problems = problems_of(plans + [in_session("c", "s", 5.0, 10.0)] * 3)
    assert [p is None for p in problems] == [True, True, False, False, False]


@pytest.mark.parametrize("session", ["s", "mine"])
def test_equal_plans_have_equal_costs(session):
    """Half a percent is within every tolerance, and still it cannot be: the plan was measured once."""
    honest, forged = in_session("a", "s", 10.0, 10.0), in_session("a", session, 9.95, 10.0)
    assert problems_of([honest, honest, in_session("b", "s", 3.0, 3.0)]) == [None] * 3
    first, second, third = problems_of([honest, forged, in_session("b", "s", 3.0, 3.0)])
    assert "for the same plan of another solver" in first
    assert "for the same plan of another solver" in second
    assert third is None


def test_equal_plans_that_the_judge_measures_apart_may_differ():
    apart = [in_session("a", "s", 10.0, 10.0), in_session("a", "s", 9.95, 10.1)]
    assert problems_of(apart) == [None, None]


@pytest.mark.parametrize(
    "change",
    [{"noise": 0.1}, {"repeats": 7}, {"compute": "measured"}, {"communication": "predicted"}, {"notes": ("fine",)}],
)
def test_what_a_deterministic_model_says_about_its_times_is_compared(change):
    (name,) = change
    assert deterministic_problem(dataclasses.replace(cost(1.0), **change), cost(1.0)).startswith(f"{name}: stored ")


def test_a_stored_time_of_zero_is_a_problem():
    (problem,) = measured_problems([(cost(0.0), cost(1.0))])
    assert problem is not None


def test_time_that_a_device_did_not_take_is_found():
    """The slowest device, and so the total, is as it was."""
    honest = PlanCost([[10, 0, 0, 0], [8, 0, 0, 0]], "toy", "1", "lab")
    forged = PlanCost([[10, 0, 0, 0], [4, 0, 0, 0]], "toy", "1", "lab")
    assert split_problem(honest, honest) is None
    assert split_problem(forged, honest) == "device 1 is 40% of the slowest device that are stored and 80% now"


def test_of_two_plans_each_is_held_to_the_other():
    """The middle of both would be 1.15 times off either, and hide a forgery of 30 %."""
    assert problems_of([in_session("a", "s", 10.0, 10.0), in_session("b", "s", 8.5, 10.0)]) == [None, None]
    problems = problems_of([in_session("a", "s", 10.0, 10.0), in_session("b", "s", 7.7, 10.0)])
    assert all("times the drift of its task, allowed are 1.20 times either way" in problem for problem in problems)
