"""The rule of verify: when stored and fresh costs agree, and what stays of measuring a board again."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from evaluation_toys import DriftingCost, ToySuite, toy_tasks
from verify_toys import TOY, pack

from shardgym import PlanCost
from shardgym.evaluation import evaluate, verify
from shardgym.evaluation.verify.agreement import (
    MEASURED_AGAIN,
    MeasuredAgain,
    Remeasured,
    board_factor,
    deterministic_problem,
    measured_problem,
    solver_problems,
)


def cost(*forward, noise=0.0):
    return PlanCost([[0, ms, 0, 0, 0] for ms in forward], "toy", "1", "lab", noise=noise)


def remeasured(old, new, plan="", solver="mine", task=0):
    """A plan whose stored and fresh time are given in ms."""
    return Remeasured(solver, task, plan or f"{old} {new}", cost(old), cost(new))


def problems_of(plans):
    factor = board_factor(plans)
    return [measured_problem(plan, factor) for plan in plans]


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
    hidden = dataclasses.replace(old, ids_hidden=True)
    assert deterministic_problem(hidden, dataclasses.replace(hidden, ids_hidden=False)) is not None


def test_a_device_that_does_not_set_the_total_is_compared_too():
    assert "forward_compute of device 1" in deterministic_problem(cost(100.0, 5.0), cost(100.0, 6.0))


# Measured costs of one board


@pytest.mark.parametrize("factor", [0.3, 1.0, 2.0, 5.0])
def test_a_common_factor_is_no_deviation(factor):
    """The same machine on another day, whatever the day."""
    plans = [remeasured(ms, factor * ms, task=task) for task, ms in enumerate((1.0, 2.0, 3.0))]
    assert board_factor(plans) == pytest.approx(factor)
    assert problems_of(plans) == [None] * 3
    assert solver_problems(plans, factor) == []


def test_a_plan_that_was_flattered_stands_out():
    """Three plans take 1.2 times as long; the second one's stored time is half of what it should be."""
    first, second, third = problems_of([remeasured(10.0, 12.0), remeasured(5.0, 12.0), remeasured(20.0, 24.0)])
    assert (first, third) == (None, None)
    assert second == (
        "stored 5 ms, measured 12 ms: 2.40 times, the factor of the board is 1.20, expected within 20% of it"
    )


@pytest.mark.parametrize(
    ("stored", "is_fine"), [(10.0, True), (8.4, True), (8.3, False), (11.9, True), (12.1, False), (0.0, False)]
)
def test_deviations_count_the_same_in_both_directions_and_no_noise_excuses_them(stored, is_fine):
    """A forger would raise the stored noise."""
    noisy = remeasured(stored, 10.0)._replace(old=cost(stored, noise=0.5))
    *_, problem = problems_of([remeasured(10.0, 10.0, plan) for plan in "ab"] + [noisy])
    assert (problem is None) == is_fine


def test_one_plan_under_several_names_does_not_make_the_factor():
    """Three records of plan c claim half its time; the two honest plans are still more."""
    honest = [remeasured(10.0, 10.0, plan) for plan in "ab"]
    problems = problems_of(honest + [remeasured(5.0, 10.0, "c", solver) for solver in "xyz"])
    assert [p is None for p in problems] == [True, True, False, False, False]
    assert board_factor([remeasured(5.0, 10.0, "c"), remeasured(5.0, 5.0, "c", task=1)]) == 1.5  # of two tasks


@pytest.mark.parametrize(("factor", "is_fine"), [(1.0, True), (0.96, True), (0.94, False), (1.04, True), (1.06, False)])
def test_a_solver_may_not_be_off_on_average(factor, is_fine):
    """Each of its plans is; six honest plans of others make the factor."""
    honest = [remeasured(ms, ms, solver="rival", task=ms) for ms in (1, 2, 3, 4, 5, 6)]
    mine = [remeasured(ms * factor, ms, task=ms) for ms in (1, 2, 3)]
    assert problems_of(honest + mine) == [None] * 9
    problems = solver_problems(honest + mine, board_factor(honest + mine))
    assert (problems == []) == is_fine
    assert all(problem.startswith(f"plans of mine take {1 / factor:.3f} times the stored") for problem in problems)


def test_what_scatters_around_the_factor_is_fine():
    plans = [remeasured(10.0, 10.0 * (1.1 if task % 2 else 1 / 1.1), task=task) for task in range(6)]
    assert solver_problems(plans, 1.0) == []


def test_a_stored_time_of_zero_is_a_problem():
    assert solver_problems([remeasured(0.0, 1.0)], math.inf) != []
    assert solver_problems([remeasured(1.0, 0.0)], 1.0) != []


# Records of several tasks


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
    assert MeasuredAgain.beside(rippled / "records.jsonl").agrees == report.ok
    if not report.ok:
        assert report.footer().splitlines()[1].startswith(f"plans of {TOY}Lopsided take 1.4")
        assert report.to_dict()["solvers_off"] == report.solvers_off


def test_flattery_of_half_of_the_plans_is_found_plan_by_plan(rippled):
    """39 % faster on half of the tasks, 25 % slower on the others."""
    flatter(rippled, TOY + "Lopsided", lambda task: math.exp(-0.5 if task % 2 else 0.22))
    report = verify(rippled, trust=[DriftingCost.name])
    assert report.verdict == "NOT VERIFIED"
    assert {row.status for row in report.rows if row.solver == TOY + "Lopsided"} == {"mismatch"}


def test_what_measuring_again_showed_stays_beside_the_records(rippled):
    records = rippled / "records.jsonl"
    assert MeasuredAgain.beside(records) is None
    report = verify(rippled, trust=[DriftingCost.name])
    found = MeasuredAgain.beside(records)
    assert (found.agrees, found.num_plans, round(found.factor, 1)) == (True, 18, 1.3)
    assert report.measured_again == [
        f"measured again, {records}: 18 plans take {found.factor:.3f} times as long (median)"
    ]
    plain = records.read_bytes()
    assert MeasuredAgain.beside(pack(rippled)) == found
    records.write_bytes(plain)
    flatter(rippled, TOY + "Lopsided", lambda task: 0.9)  # it is about the records that were there
    assert MeasuredAgain.beside(records) is None


def test_what_was_not_measured_entirely_is_not_said_to_be(rippled):
    """One plan is of other hardware."""
    records = rippled / "records.jsonl"
    (rippled / "run.json").unlink()
    first, *others = [json.loads(line) for line in records.read_text().splitlines()]
    first["hardware"] = first["cost"]["hardware"] = "supercomputer"
    records.write_text("".join(json.dumps(line) + "\n" for line in (first, *others)))
    report = verify(rippled, trust=[DriftingCost.name])
    assert (report.count("ok"), report.count("skipped")) == (17, 1)
    assert not (rippled / MEASURED_AGAIN).exists()


def test_a_folder_that_cannot_be_written_is_verified_too(rippled, caplog):
    (rippled / MEASURED_AGAIN).mkdir()
    assert verify(rippled, trust=[DriftingCost.name]).ok
    assert "tables go on saying" in caplog.text
