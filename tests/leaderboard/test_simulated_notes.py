"""What stands under a board that a simulator judged."""

from __future__ import annotations

import pytest
from evaluation_toys import Halves, toy_tasks

from shardgym import PlanCost
from shardgym.costs.plan_cost import UNFAMILIAR
from shardgym.costs.simulator.model_card import AGREEMENT, Agreement, ModelAgreement, shipped_agreement
from shardgym.errors import InputError
from shardgym.evaluation.result import Result
from shardgym.leaderboard import load_boards, rank
from shardgym.leaderboard.notes import footer

TASKS = toy_tasks(3)
FOUND = Agreement(
    "dlrm4-v1", 12, 16, "2026-01-01T00:00:00+00:00", "lab", ModelAgreement(0.9, 0.05),
    {"oracle": ModelAgreement(0.89, 0.06, 0.0, "1-a"), "judge": ModelAgreement(0.87, 0.07, 0.0, "1-b")},
)  # fmt: skip


def notes_of(folder, outcomes, judge="simulator"):
    """Footnotes of {solver: notes of the judge per task}."""
    lines = []
    for solver, column in outcomes.items():
        for index, notes in enumerate(column):
            cost = PlanCost([[1, 0, 0, 0]] * 2, judge, "1-b", "lab", "predicted", "predicted", notes=notes)
            lines.append(Result(
                suite="toys", task_index=index, task_hash=TASKS[index].digest, solver=solver, seed=0, judge=judge,
                oracle="simulator", hardware="lab", status="ok", solve_time_s=0.5, started="2026-01-01T00:00:00+00:00",
                plan=Halves().solve(TASKS[index], None), cost=cost,
            ).to_json())  # fmt: skip
    (folder / "records.jsonl").write_text("".join(line + "\n" for line in lines))
    (board,) = load_boards([folder])
    return footer(rank(board))


def test_unfamiliar_plans_are_counted_by_solver_with_the_features(tmp_path):
    far, wide = (f"{UNFAMILIAR}: pooling_factor",), (f"{UNFAMILIAR}: columns per device", "something else")
    notes = notes_of(tmp_path, {"mine": [far, wide, ()], "random": [(), (), ()], "other": [far, (), ()]})
    assert f"Plans {UNFAMILIAR} (columns per device, pooling_factor): mine 2 of 3, other 1 of 3." in notes
    assert "Note of the judge: something else" in notes
    assert not any(note.startswith(f"Note of the judge: {UNFAMILIAR}") for note in notes)


def test_a_board_of_familiar_plans_says_so(tmp_path):
    assert f"No plan was {UNFAMILIAR}." in notes_of(tmp_path, {"mine": [(), (), ()]})


def test_other_judges_get_no_such_notes(tmp_path):
    assert not any(UNFAMILIAR in note or "agrees" in note for note in notes_of(tmp_path, {"mine": [()]}, "fbgemm"))


def test_the_judges_agreement_with_measurements_stands_below(tmp_path, monkeypatch):
    monkeypatch.setattr("shardgym.leaderboard.notes.shipped_agreement", lambda hardware: FOUND)
    (note,) = (n for n in notes_of(tmp_path, {"mine": [()]}) if "Kendall" in n)
    assert note.startswith("Over 16 random plans on each of 12 tasks of dlrm4-v1, Kendall's tau of this judge with")
    assert "is 0.870 on average; that of a measurement with its own repeat is 0.900" in note


def test_a_judge_that_was_not_compared_is_said_to_be_so(tmp_path, monkeypatch):
    monkeypatch.setattr("shardgym.leaderboard.notes.shipped_agreement", lambda hardware: None)
    assert "How well this judge agrees with measurements is not on record." in notes_of(tmp_path, {"mine": [()]})


def test_agreement_is_read_from_beside_the_weights(tmp_path):
    (tmp_path / "lab").mkdir()
    assert shipped_agreement("lab", tmp_path) is None
    (tmp_path / "lab" / AGREEMENT).write_text(FOUND.to_json())
    assert shipped_agreement("lab", tmp_path) == FOUND
    assert FOUND.sentence("1-c") is None
    (tmp_path / "lab" / AGREEMENT).write_text(FOUND.to_json()[:100])
    with pytest.raises(InputError, match=AGREEMENT):
        shipped_agreement("lab", tmp_path)
