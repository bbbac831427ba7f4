"""verify on measured costs: what drifts, what is disturbed and what was changed by hand."""

from __future__ import annotations

import dataclasses

import pytest
from evaluation_toys import CountCost, DriftingCost, ToySuite, toy_tasks
from verify_toys import TOY, TRUST, edit, forget_run, problem, statuses, unmeasured

from shardgym.evaluation import evaluate, verify


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Records of three solvers under DriftingCost, in the state of the day they were made."""
    monkeypatch.setattr(DriftingCost, "factor", 1.0)
    solvers = [TOY + name for name in ("Halves", "Lopsided", "Mirrored")]
    evaluate(ToySuite(toy_tasks()), solvers, out=tmp_path, judge=DriftingCost.name, oracle="roofline")
    return tmp_path


@pytest.mark.parametrize(("factor", "status"), [(1.0, "ok"), (1.8, "ok"), (0.5, "ok"), (4.0, "mismatch")])
def test_measured_costs_may_drift_together(measured, monkeypatch, factor, status):
    monkeypatch.setattr(DriftingCost, "factor", factor)
    assert statuses(measured) == [status] * 9


def test_a_measured_cost_that_was_lowered_stands_out(measured, monkeypatch):
    monkeypatch.setattr(DriftingCost, "factor", 1.3)

    def lower(record):
        record["cost"]["per_device"] = [[0.6 * ms for ms in row] for row in record["cost"]["per_device"]]

    edit(measured, 2, lower)
    assert "times the drift of its task" in problem(measured, 2).reason


def test_a_forged_session_does_not_save_a_lowered_cost(measured):
    """Alone it would be held to a drift of 2 only. The task is named, too: no run measures its plans apart."""

    def lower(record):
        record["cost"]["per_device"] = [[0.6 * ms for ms in row] for row in record["cost"]["per_device"]]
        record["cost"]["session"] = "mine"

    edit(measured, 2, lower)
    assert "1.67 times the drift of its task" in problem(measured, 2).reason
    (gap,) = verify([measured], trust=TRUST).gaps
    assert gap.startswith(f"times of several sessions on task 0 of {measured / 'records.jsonl'}: a run measures all")


def test_times_of_several_sessions_are_never_wholly_verified(measured):
    for line in (2, 5, 9):
        edit(measured, line, lambda record: record["cost"].update(session="later"))
    report = verify([measured], trust=TRUST)
    assert (report.ok, report.verdict) == (True, "partly verified")
    assert "on tasks 0-2 of" in report.gaps[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"communication": "measured"}, "communication: stored 'measured', now 'modelled'"),
        ({"compute": "predicted"}, "compute: stored 'predicted', now 'measured'"),
        ({"repeats": 2100}, "repeats: stored 2100, now 1"),
    ],
)
def test_labels_of_measured_costs_are_compared(measured, change, reason):
    edit(measured, 2, lambda record: record["cost"].update(change))
    assert problem(measured, 2).reason == reason


def test_time_that_was_moved_to_another_phase_is_found(measured):
    """The total is as it was."""
    edit(measured, 2, lambda record: record["cost"].update(
        per_device=[[0.0, 0.0, 0.0, 0.0, sum(row)] for row in record["cost"]["per_device"]]
    ))  # fmt: skip
    assert "forward_compute is 0% of the times that are stored and 100% now" in problem(measured, 2).reason


def test_equal_plans_of_one_session_must_have_equal_stored_costs(tmp_path, monkeypatch):
    solvers = [TOY + name for name in ("Halves", "Spies", "Lopsided")]
    evaluate(ToySuite(toy_tasks(1)), solvers, out=tmp_path, judge=DriftingCost.name, oracle="roofline")
    assert statuses(tmp_path) == ["ok"] * 3
    edit(tmp_path, 1, lambda record: record["cost"]["per_device"][0].__setitem__(1, 1.99))
    assert statuses(tmp_path) == ["mismatch", "mismatch", "ok"]


@pytest.fixture
def disturb(monkeypatch):
    """Return a function: from now on, so many measurements see plans with 3 shards on device 0 take twice as long."""

    def install(times):
        calls, score = [], DriftingCost.score

        def disturbed(self, task, plans):
            calls.append(task.name)
            factors = [2.0 if calls.count(task.name) <= times and len(p.on(0)) == 3 else 1.0 for p in plans]
            costs = zip(score(self, task, plans), factors, strict=True)
            return [dataclasses.replace(c, per_device=c.per_device * f) for c, f in costs]

        monkeypatch.setattr(DriftingCost, "score", disturbed)
        return calls

    return install


@pytest.mark.parametrize(("times", "status", "measurements"), [(0, "ok", 1), (1, "ok", 2), (2, "ok", 3)])
def test_a_disturbed_measurement_is_made_again(measured, disturb, times, status, measurements):
    calls = disturb(times)
    assert statuses(measured) == [status] * 9
    assert calls == [f"toys/{i}" for i in range(3) for _ in range(measurements)]


def test_what_disagrees_three_times_is_a_mismatch(measured, disturb):
    calls = disturb(3)
    assert statuses(measured) == ["ok", "mismatch", "ok"] * 3
    assert len(calls) == 9


def test_measured_costs_of_other_hardware_are_skipped(measured):
    def rename(record):
        record["hardware"] = record["cost"]["hardware"] = "supercomputer"

    forget_run(measured)
    edit(measured, 1, rename)
    assert statuses(measured) == ["skipped"] + ["ok"] * 8


def test_plans_of_one_task_are_measured_again_in_one_call(measured, monkeypatch):
    sizes, score = [], CountCost.score
    counted = lambda self, task, plans: sizes.append(len(plans)) or score(self, task, plans)  # noqa: E731
    monkeypatch.setattr(CountCost, "score", counted)
    verify([measured], trust=TRUST)
    assert sizes == [3, 3, 3]


def test_an_unmeasured_plan_of_a_measured_cost_is_a_failure(measured):
    edit(measured, 2, unmeasured)
    assert statuses(measured) == ["ok", "failure"] + ["ok"] * 7
