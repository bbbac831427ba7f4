"""The column of another cost: ratios of the same plans, and no ranking."""

from __future__ import annotations

import json

import pytest

from shardgym import load_suite, make_cost
from shardgym.cli import main
from shardgym.evaluation import evaluate
from shardgym.leaderboard import load_boards, rank
from shardgym.leaderboard.details import second_opinion

RATING = make_cost("torchrec_rating")


@pytest.fixture
def folder(tmp_path):
    solvers = ["lookup_greedy", "size_greedy"]
    evaluate(load_suite("tiny-v1"), solvers, out=tmp_path, judge="roofline", oracle="roofline", limit=3)
    return tmp_path


def test_plans_are_scored_again_relative_to_the_first_solver(folder):
    (board,) = load_boards([folder])
    ranking = rank(board)
    found = second_opinion(ranking, RATING)
    first, second = (row.solver for row in ranking.rows)
    logs = []
    for index in range(3):
        plans = [r.plan for name in (second, first) for r in board.results if (r.solver, r.task_index) == (name, index)]
        ours, reference = RATING.evaluate(load_suite("tiny-v1")[index], plans)
        logs.append(ours.total_ms / reference.total_ms)
    assert (found.reference, found.ratios[first]) == (first, 1.0)
    assert found.ratios[second] == pytest.approx((logs[0] * logs[1] * logs[2]) ** (1 / 3))
    assert (found.cost, found.hardware) == ("torchrec_rating", "torchrec-cuda")


def test_the_command_adds_a_column_and_a_line(folder, capsys):
    assert main(["leaderboard", str(folder)]) == 0
    plain = capsys.readouterr().out
    assert main(["leaderboard", str(folder), "--also", "torchrec_rating"]) == 0
    text = capsys.readouterr().out
    assert "by torchrec_rating" in text.splitlines()[2]
    assert "by torchrec_rating: what that cost, on torchrec-cuda, says of the same plans" in text
    assert "torchrec" not in plain
    assert main(["leaderboard", str(folder), "--also", "torchrec_rating", "--json"]) == 0
    (page,) = json.loads(capsys.readouterr().out)
    assert sorted(page["also"]["ratios"]) == ["lookup_greedy", "size_greedy"]
    assert main(["leaderboard", str(folder), "--also", "torchrec_ratng"]) == 2
    assert "did you mean torchrec_rating" in capsys.readouterr().err
