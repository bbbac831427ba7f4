"""The column `gap to bound`: where the judge has lower bounds, and what they cover."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from evaluation_toys import ToySuite, toy_tasks
from test_ranking import board_of

from shardgym import Shard, ShardingPlan, load_suite, lower_bound, make_cost
from shardgym.evaluation import evaluate
from shardgym.leaderboard import load_boards, rank, render
from shardgym.leaderboard.notes import notes as notes_on
from shardgym.leaderboard.tables import to_dict


def tiny_ranking(folder, limit=2, solver="lookup_greedy"):
    evaluate(load_suite("tiny-v1"), [solver], out=folder, judge="roofline", oracle="roofline", limit=limit)
    (board,) = load_boards([folder])
    return rank(board)


def test_the_gap_is_that_of_the_tasks_to_their_bounds(tmp_path):
    ranking = tiny_ranking(tmp_path)
    (row,) = ranking.rows
    suite, cost = load_suite("tiny-v1"), make_cost("roofline")
    bounds = [lower_bound(suite[n], cost, row_cuts=False).total_ms for n in range(2)]
    ratios = [result.total_ms / bound for result, bound in zip(ranking.board.results, bounds, strict=True)]
    assert row.bound_gap == pytest.approx(math.sqrt(math.prod(ratios)) - 1)
    assert row.bound_gap > 0
    assert f"{100 * row.bound_gap:+.1f} %" in render([ranking])
    assert to_dict(ranking)["rows"][0]["bound_gap"] == row.bound_gap
    assert any(note.startswith("Gap to bound") and "that cuts no rows" in note for note in notes_on(ranking))


def test_a_plan_that_cuts_rows_is_held_against_the_bound_for_all_plans(tmp_path):
    """One record's plan is replaced by one with a table cut by rows, and its cost by that of the new plan."""
    tiny_ranking(tmp_path, limit=1)
    task = load_suite("tiny-v1")[0]
    whole = [Shard.whole(table, n % 2) for n, table in enumerate(task.tables)]
    rows = whole[0].rows[1]
    pieces = [dataclasses.replace(whole[0], rows=part) for part in ((0, rows // 2), (rows // 2, rows))]
    plan = ShardingPlan.of(task, [*pieces, *whole[1:]])
    (cost,) = make_cost("roofline").evaluate(task, [plan])
    records = tmp_path / "records.jsonl"
    record = json.loads(records.read_text())
    records.write_text(json.dumps(record | {"plan": plan.to_dict(), "cost": cost.to_dict()}) + "\n")
    (board,) = load_boards([tmp_path])
    ranking = rank(board)
    bound = lower_bound(task, make_cost("roofline"))
    assert ranking.rows[0].bound_gap == pytest.approx(cost.total_ms / bound.total_ms - 1)
    assert any("whatever it cuts" in note for note in notes_on(ranking))


def test_other_judges_and_suites_have_no_such_column(tmp_path):
    rankings = [rank(board_of(tmp_path / "toys", {"one": [1.0]}))]
    evaluate(ToySuite(toy_tasks()), ["dim_greedy"], out=tmp_path / "own", judge="roofline", oracle="roofline")
    rankings += [rank(board) for board in load_boards([tmp_path / "own"])]
    for ranking in rankings:
        assert math.isnan(ranking.rows[0].bound_gap)
        assert "gap to bound" not in render([ranking]).lower()
