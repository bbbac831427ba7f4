"""A board says when judge and oracle are the same model."""

from __future__ import annotations

import pytest
from evaluation_toys import CountCost, DriftingCost, ToySuite, toy_tasks
from test_ranking import board_of

from shardgym.evaluation import evaluate
from shardgym.leaderboard import load_boards, rank
from shardgym.leaderboard.notes import footer

ONE, TWO = "evaluation_toys:Halves", "evaluation_toys:Lopsided"
SAME = "Judge and oracle are the same model: solvers that query it are marked by their own measure."


def run(out, solver, **costs):
    evaluate(ToySuite(toy_tasks()), [solver], out=out, **costs)


def notes(folder):
    (board,) = load_boards([folder])
    return [note for note in footer(rank(board)) if "Judge and oracle" in note]


def test_the_same_analytic_model_is_told(tmp_path):
    run(tmp_path, ONE, judge="roofline", oracle="roofline")
    assert notes(tmp_path) == [SAME]


@pytest.mark.parametrize(
    "costs",
    [
        {"judge": "roofline", "oracle": CountCost()},
        {"judge": "roofline", "oracle": "roofline", "oracle_settings": {"hardware": "a100"}},
        {"judge": CountCost(), "oracle": CountCost("other")},
        {"judge": DriftingCost(), "oracle": DriftingCost()},
        {"judge": "simulator", "judge_settings": {"role": "judge"}, "oracle": "simulator"},
    ],
    ids=["other model", "other settings", "settings of objects", "measured", "simulators"],
)
def test_other_models_settings_and_measurements_are_not(tmp_path, costs):
    run(tmp_path, ONE, **costs)
    assert notes(tmp_path) == []


def test_solvers_are_named_where_others_had_another_oracle(tmp_path):
    run(tmp_path / "a", ONE, judge="roofline", oracle="roofline")
    run(tmp_path / "b", TWO, judge="roofline", oracle=CountCost())
    assert notes(tmp_path) == [SAME.replace("oracle are", f"oracle of {ONE} are")]


def test_nothing_was_marked_where_nothing_has_a_cost(tmp_path):
    run(tmp_path, "evaluation_toys:GivesUp", judge="roofline", oracle="roofline")
    assert notes(tmp_path) == []


def test_without_run_json_the_settings_of_the_oracle_are_not_known(tmp_path):
    board_of(tmp_path, {"one": [1.0]}, oracle="lab-cost")
    (note,) = notes(tmp_path)
    assert "have the same name, and no run.json tells the oracle's settings: if they are the judge's, solvers" in note
