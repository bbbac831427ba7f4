"""The rule of verify: when stored and fresh costs agree, and when a solver's are off on average."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from evaluation_toys import DriftingCost, ToySuite, toy_tasks
from verify_toys import TOY

from shardgym import PlanCost
from shardgym.evaluation import VerifyReport, evaluate, verify
from shardgym.evaluation.verify import RULE, RecordCheck, agreement
from shardgym.evaluation.verify.agreement import (
    MAX_DRIFT,
    Remeasured,
    biased_solvers,
    compare_measured,
    deterministic_problem,
)


def cost(*forward, noise=0.0):
    return PlanCost([[0, ms, 0, 0, 0] for ms in forward], "toy", "1", "lab", noise=noise)


def remeasured(plan, old, new, session=""):
    """A plan whose stored time in a session and fresh time are given in ms."""
    return Remeasured(plan, dataclasses.replace(cost(old), session=session), cost(new))


def problems_of(plans):
    return [agreement.problem for agreement in compare_measured(plans)]


def relatives_of(plans):
    return [agreement.relative for agreement in compare_measured(plans)]


def problems_of_pairs(pairs):
    """Compare stored and fresh costs of different plans."""
    return problems_of([Remeasured(str(number), old, new) for number, (old, new) in enumerate(pairs)])


def test_the_rule_names_every_constant():
    for text in ("1e-06", "at most 2 either way", "20%", "25%", "3 measurements", "5 tasks", "8%", "5%"):
        assert text in RULE


# Deterministic costs


def test_deterministic_costs_may_differ_by_a_millionth():
    assert deterministic_problem(cost(100.0, 5.0), cost(100.00001, 5.0)) is None
    assert "stored 100 ms, recomputed 100.001 ms" in deterministic_problem(cost(100.0), cost(100.001))


def test_the_exchange_of_ids_is_a_phase_that_is_compared():
    """Of 10 ms in all, ids take 1 and then 4, at the cost of forward compute."""
    old = PlanCost([[1.0, 9.0, 0, 0, 0]], "toy", "2", "lab")
    new = PlanCost([[4.0, 6.0, 0, 0, 0]], "toy", "2", "lab")
    assert old.total_ms == new.total_ms
    assert deterministic_problem(old, new) == "ids of device 0: stored 1 ms, recomputed 4 ms"
    assert problems_of_pairs([(old, new)]) == ["ids is 10% of the times that are stored and 40% now"]
    hidden = dataclasses.replace(old, ids_hidden=True)
    assert deterministic_problem(hidden, dataclasses.replace(hidden, ids_hidden=False)) is not None


def test_a_device_that_does_not_set_the_total_is_compared_too():
    assert "forward_compute of device 1" in deterministic_problem(cost(100.0, 5.0), cost(100.0, 6.0))


@pytest.mark.parametrize(
    "change",
    [{"noise": 0.1}, {"repeats": 7}, {"compute": "measured"}, {"communication": "predicted"}, {"notes": ("fine",)}],
)
def test_what_a_deterministic_model_says_about_its_times_is_compared(change):
    (name,) = change
    assert deterministic_problem(dataclasses.replace(cost(1.0), **change), cost(1.0)).startswith(f"{name}: stored ")


# Measured costs of one task


def test_a_common_drift_is_no_deviation():
    """All plans take twice as long today."""
    assert problems_of_pairs([(cost(ms), cost(2 * ms)) for ms in (1.0, 2.0, 3.0)]) == [None] * 3


def test_a_drift_beyond_the_bound_fails_all_plans():
    pairs = [(cost(ms), cost((MAX_DRIFT + 0.1) * ms)) for ms in (1.0, 2.0)]
    assert all("beyond a drift" in problem for problem in problems_of_pairs(pairs))


def test_a_plan_that_was_flattered_stands_out_against_the_drift_of_the_others():
    """Three plans drift by 1.2; the second one's stored time is half of what it should be."""
    pairs = [(cost(10.0), cost(12.0)), (cost(5.0), cost(12.0)), (cost(20.0), cost(24.0))]
    first, second, third = problems_of_pairs(pairs)
    assert (first, third) == (None, None)
    assert "2.00 times the drift" in second


def test_deviations_count_the_same_in_both_directions():
    same = (cost(10.0), cost(10.0))
    slow = problems_of_pairs([same, same, (cost(10.0), cost(20.0))])
    fast = problems_of_pairs([same, same, (cost(10.0), cost(5.0))])
    assert [p is None for p in slow] == [p is None for p in fast] == [True, True, False]


@pytest.mark.parametrize(("stored", "is_fine"), [(10.0, True), (8.4, True), (8.3, False), (12.0, True), (12.1, False)])
def test_no_noise_excuses_more_than_the_tolerance(stored, is_fine):
    """A forger would raise the stored noise."""
    same = (cost(10.0), cost(10.0))
    *_, problem = problems_of_pairs([same, same, (cost(stored, noise=0.5), cost(10.0, noise=0.1))])
    assert (problem is None) == is_fine


@pytest.mark.parametrize(("stored", "is_fine"), [(10.0, True), (8.5, True), (8.0, False), (12.5, False)])
def test_a_plan_with_a_session_of_its_own_is_held_to_the_drift_of_the_others(stored, is_fine):
    """The others do not drift; 10 ms may have been stored as 8.33 to 12 ms."""
    others = [remeasured("a", 10.0, 10.0, "s"), remeasured("b", 20.0, 20.0, "s")]
    *fine, problem = problems_of([*others, remeasured("c", stored, 10.0, "mine")])
    assert fine == [None, None]
    assert (problem is None) == is_fine


def test_one_plan_under_several_names_does_not_make_the_drift():
    """Three records of plan c claim half its time; the two honest plans are still more."""
    plans = [remeasured("a", 10.0, 10.0), remeasured("b", 10.0, 10.0)]
    problems = problems_of(plans + [remeasured("c", 5.0, 10.0)] * 3)
    assert [p is None for p in problems] == [True, True, False, False, False]


def test_of_two_plans_each_is_held_to_the_other():
    """The middle of both would be 1.15 times off either, and hide a forgery of 30 %."""
    assert problems_of([remeasured("a", 10.0, 10.0), remeasured("b", 8.5, 10.0)]) == [None, None]
    problems = problems_of([remeasured("a", 10.0, 10.0), remeasured("b", 7.7, 10.0)])
    assert all("times the drift of its task, allowed are 1.20 times either way" in problem for problem in problems)


@pytest.mark.parametrize("session", ["s", "mine"])
def test_equal_plans_have_equal_costs(session):
    """Half a percent is within every tolerance, and still it cannot be: the plan was measured once."""
    honest = remeasured("a", 10.0, 10.0, "s")
    forged = remeasured("a", 9.95, 10.0, session)
    other = remeasured("b", 3.0, 3.0, "s")
    assert problems_of([honest, honest, other]) == [None] * 3
    first, second, third = problems_of([honest, forged, other])
    assert "for the same plan of another solver" in first
    assert "for the same plan of another solver" in second
    assert third is None


def test_equal_plans_that_the_judge_measures_apart_may_differ():
    assert problems_of([remeasured("a", 10.0, 10.0), remeasured("a", 9.95, 10.1)]) == [None, None]


def test_a_stored_time_of_zero_is_a_problem():
    (problem,) = problems_of_pairs([(cost(0.0), cost(1.0))])
    assert problem is not None


def test_time_that_a_device_did_not_take_is_found():
    """The slowest device, and so the total, is as it was."""
    honest, forged = cost(10, 8), cost(10, 4)
    assert problems_of_pairs([(honest, honest)]) == [None]
    (problem,) = problems_of_pairs([(forged, honest)])
    assert problem == "device 1 is 40% of the slowest device that are stored and 80% now"


def test_relative_takes_out_the_common_drift():
    plans = [remeasured("a", 10, 13), remeasured("b", 20, 26), remeasured("c", 9, 13)]
    assert relatives_of(plans) == pytest.approx([1, 1, 10 / 9])
    assert problems_of(plans) == [None] * 3


def test_a_session_of_its_own_does_not_hide_a_solver():
    plans = [remeasured("a", 10, 10), remeasured("b", 20, 20), remeasured("c", 9, 10, "mine")]
    assert relatives_of(plans)[2] == pytest.approx(10 / 9)


def test_times_of_zero_are_not_compared():
    assert relatives_of([remeasured("a", 0, 1)]) == [None]
    assert relatives_of([remeasured("a", 1, 0), remeasured("b", 1, 1)]) == pytest.approx([None, 2.0])
    assert relatives_of([]) == []


# Solvers over tasks


def check(solver, task, relative, file="a"):
    return RecordCheck(f"{file}:{task + 1}", "", "ok", "", solver, task, relative)


def test_a_solver_that_is_always_ten_percent_cheaper_is_named():
    flattered = [check("mine", task, 1 / 0.9 * (1 + 0.01 * (-1) ** task)) for task in range(6)]
    honest = [check("rival", task, 1 + 0.02 * (-1) ** task) for task in range(6)]
    assert VerifyReport(flattered + honest).biased == [
        "mine is consistently 10 % cheaper in the records than now, over 6 tasks of a"
    ]


def test_a_rival_that_was_made_dearer_is_named():
    assert VerifyReport([check("rival", task, 0.8) for task in range(5)]).biased == [
        "rival is consistently 25 % dearer in the records than now, over 5 tasks of a"
    ]


@pytest.mark.parametrize(
    ("logs", "suspicious"),
    [
        ([0.1] * 5, True),
        ([0.1] * 4, False),  # too few tasks
        ([0.05] * 9, False),  # less than 5 %: log(1 / 0.95) is 0.0513
        ([0.052] * 9, True),
        ([-0.1] * 5, True),
        ([0.3, -0.14] * 4, False),  # a mean of 0.08, and a standard error of 0.08
        ([], False),
    ],
)
def test_both_the_size_and_the_interval_count(logs, suspicious):
    assert bool(biased_solvers({"mine": logs})) == suspicious


def test_the_interval_is_two_standard_errors():
    """Of five values, four at 0.1 - x and one at 0.1 + 4 x: the standard error is x."""
    assert biased_solvers({"mine": [0.1 - 0.049] * 4 + [0.1 + 4 * 0.049]})
    assert not biased_solvers({"mine": [0.1 - 0.051] * 4 + [0.1 + 4 * 0.051]})


def test_a_solver_does_not_hide_behind_scatter_that_it_makes_itself():
    """Flattered by 15 % on half of the tasks, while those of the others hardly scatter."""
    logs = [0.14, 0.0] * 5
    calm, busy = [0.02, -0.02] * 5, [0.5, -0.5] * 5
    assert set(biased_solvers({"mine": logs, "a": calm, "b": busy})) == {"mine"}
    wild = [0.2, -0.2] * 5  # a machine where everything scatters
    assert not biased_solvers({"mine": logs, "a": wild, "b": wild})
    half = [check("mine", task, math.exp(1.3 * log)) for task, log in enumerate(logs)]
    honest = [check(name, task, 1 + 0.01 * (-1) ** task) for name in ("a", "b") for task in range(10)]
    (line,) = VerifyReport(half + honest).biased
    assert line.startswith("mine is consistently 9 % cheaper in the records than now")


def test_nothing_excuses_an_eighth():
    """No plan can be off by more than the tolerance, so own scatter cannot hide a mean of 0.13."""
    most = math.log(1 + agreement.TOLERANCE)
    for num_tasks in (5, 6, 10, 24):
        for num_dearer in range(num_tasks):
            logs = [most] * (num_tasks - num_dearer) + [-most] * num_dearer
            if sum(logs) / num_tasks > 0.13:
                assert biased_solvers({"mine": logs})["mine"].is_refused


@pytest.mark.parametrize(("relative", "biased", "doubted"), [(1.04, 0, 0), (1.07, 0, 1), (0.93, 0, 1), (1.1, 1, 0)])
def test_what_another_machine_could_do_is_doubted_and_not_refused(relative, biased, doubted):
    report = VerifyReport([check("mine", task, relative) for task in range(5)])
    assert (len(report.biased), len(report.doubted)) == (biased, doubted)
    assert report.verdict == ("NOT VERIFIED" if biased else "partly verified" if doubted else "verified")
    assert all("flattered, or a machine that differs" in line for line in report.doubted)
    assert report.to_dict()["doubted"] == report.doubted


def test_several_seeds_of_a_task_count_as_one_task():
    assert VerifyReport([check("mine", task, 1.2) for task in range(4) for _ in range(3)]).biased == []


def test_files_are_judged_apart():
    assert VerifyReport([check("mine", task, 1.2, file) for file in "ab" for task in range(3)]).biased == []


def flatter(folder, solver, factor_of):
    path = folder / "records.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["solver"] == solver:
            factor = factor_of(line["task_index"])
            line["cost"]["per_device"] = [[factor * ms for ms in device] for device in line["cost"]["per_device"]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def rippled(tmp_path, monkeypatch):
    """Records of three solvers on six tasks; the machine is 1.3 times slower today, with a ripple of 1 %."""
    names = [TOY + name for name in ("Halves", "Lopsided", "Mirrored")]
    evaluate(ToySuite(toy_tasks(6)), names, out=tmp_path, judge=DriftingCost.name, oracle="roofline")
    score = DriftingCost.score

    def with_ripple(self, task, plans):
        costs = score(self, task, plans)
        ripple = [1 + 0.01 * math.sin(task.batch_size + 2 * number) for number in range(len(plans))]
        return [dataclasses.replace(c, per_device=c.per_device * r) for c, r in zip(costs, ripple, strict=True)]

    monkeypatch.setattr(DriftingCost, "factor", 1.3)
    monkeypatch.setattr(DriftingCost, "score", with_ripple)
    return tmp_path


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "verified"), (0.97, "verified"), (0.88, "NOT VERIFIED")])
def test_costs_that_are_all_a_little_lower_are_found(rippled, factor, verdict):
    """Every plan is within its own 20 %."""
    flatter(rippled, TOY + "Lopsided", lambda task: factor)
    report = verify(rippled, trust=[DriftingCost.name])
    assert [row.status for row in report.rows] == ["ok"] * 18
    assert (report.verdict, report.ok) == (verdict, verdict == "verified")
    if not report.ok:
        assert report.footer().splitlines()[1].startswith(f"{TOY}Lopsided is consistently 1")
        assert report.to_dict()["biased"] == report.biased


def test_flattery_that_hides_in_its_own_scatter_is_found_plan_by_plan(rippled):
    """A mean of 0.14 with a standard error of 0.14: 39 % cheaper on half of the tasks, 25 % dearer on the others."""
    flatter(rippled, TOY + "Lopsided", lambda task: math.exp(-0.5 if task % 2 else 0.22))
    report = verify(rippled, trust=[DriftingCost.name])
    assert report.verdict == "NOT VERIFIED"
    assert {row.status for row in report.rows if row.solver == TOY + "Lopsided"} == {"mismatch"}
