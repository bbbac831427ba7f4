"""verify on measured costs: what drifts, what is disturbed and what was changed by hand."""

from __future__ import annotations

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


@pytest.mark.parametrize("factor", [1.0, 1.8, 0.5, 4.0])
def test_measured_costs_may_drift_together(measured, monkeypatch, factor):
    monkeypatch.setattr(DriftingCost, "factor", factor)
    assert statuses(measured) == ["ok"] * 9


def test_a_measured_cost_that_was_lowered_stands_out(measured, monkeypatch):
    monkeypatch.setattr(DriftingCost, "factor", 1.3)

    def lower(record):
        record["cost"]["per_device"] = [[0.6 * ms for ms in row] for row in record["cost"]["per_device"]]

    edit(measured, 2, lower)
    assert "2.17 times, the factor of the board is 1.30" in problem(measured, 2).reason


def test_a_forged_session_does_not_save_a_lowered_cost(measured):
    def lower(record):
        record["cost"]["per_device"] = [[0.6 * ms for ms in row] for row in record["cost"]["per_device"]]
        record["cost"]["session"] = "mine"

    edit(measured, 2, lower)
    assert "1.67 times, the factor of the board is 1.00" in problem(measured, 2).reason


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
