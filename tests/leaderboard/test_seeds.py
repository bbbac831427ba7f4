"""Seeds: which solver has which, which were asked for, and what that means for completeness and ranks."""

from __future__ import annotations

import json

import pytest
from evaluation_toys import CountCost, ToySuite, toy_tasks
from test_ranking import board_of, record, rows_of

from shardgym.evaluation import evaluate
from shardgym.leaderboard import load_boards, rank
from shardgym.leaderboard.notes import footer

ONE, TWO = "evaluation_toys:Halves", "evaluation_toys:Lopsided"


def run(out, *solvers, seeds):
    evaluate(ToySuite(toy_tasks()), list(solvers), out=out, judge=CountCost(), oracle="roofline", seeds=seeds)


def ranked(*folders):
    (board,) = load_boards(folders)
    return rank(board)


def about_seeds(ranking):
    return [note for note in footer(ranking) if "seed" in note and not note.startswith(("Ranked", "Gap"))]


@pytest.mark.parametrize(
    ("seeds", "note"),
    [
        ((0,), "Every solver ran with seed 0."),
        ((3,), "Every solver ran with seed 3."),
        ((0, 2), "Every solver ran with seeds 0, 2; a task's cost is the mean over them."),
    ],
)
def test_seeds_that_all_have_are_named(tmp_path, seeds, note):
    run(tmp_path, ONE, TWO, seeds=seeds)
    ranking = ranked(tmp_path)
    assert about_seeds(ranking) == [note]
    assert {row.completeness for row in ranking.rows} == {1.0}


def test_a_solver_with_another_seed_in_the_same_folder_leaves_all_incomplete(tmp_path):
    """run.json asks every solver for both seeds, as `verify` does."""
    run(tmp_path, ONE, seeds=[0])
    run(tmp_path, TWO, seeds=[1])
    ranking = ranked(tmp_path)
    assert {(row.rank, row.completeness) for row in ranking.rows} == {(None, 0.5)}
    assert about_seeds(ranking) == [
        f"WARNING: solvers ran with different seeds: seed 0 for {ONE}; seed 1 for {TWO}.",
        f"Asked for and without any record: seed 1 for {ONE}; seed 0 for {TWO}.",
    ]
    run(tmp_path, ONE, TWO, seeds=[0, 1])
    assert sorted((row.rank, row.completeness) for row in ranked(tmp_path).rows) == [(1, 1.0), (2, 1.0)]


def test_a_solver_without_any_record_lacks_its_seeds(tmp_path):
    run(tmp_path, ONE, seeds=[0, 1])
    info = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(info | {"solvers": [*info["solvers"], "later"]}))
    assert about_seeds(ranked(tmp_path)) == ["Every solver ran with seeds 0, 1; a task's cost is the mean over them."]
    assert rows_of(ranked(tmp_path))["later"].completeness == 0.0


def test_a_seed_that_is_missing_on_one_task_counts(tmp_path):
    """Three tasks and two seeds: five of six records."""
    run(tmp_path, ONE, seeds=[0, 1])
    path = tmp_path / "records.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    (row,) = ranked(tmp_path).rows
    assert (row.rank, row.completeness) == (None, pytest.approx(5 / 6))


def test_folders_of_different_seeds_are_complete_and_warned_of(tmp_path):
    run(tmp_path / "a", ONE, seeds=[0])
    run(tmp_path / "b", TWO, seeds=[1, 2])
    ranking = ranked(tmp_path)
    assert sorted((row.rank, row.completeness) for row in ranking.rows) == [(1, 1.0), (2, 1.0)]
    assert about_seeds(ranking) == [
        f"WARNING: solvers ran with different seeds: seed 0 for {ONE}; seeds 1, 2 for {TWO}. "
        "A task's cost is the mean over a solver's own seeds."
    ]


def test_records_alone_ask_for_the_seeds_that_they_hold(tmp_path):
    rows = [record("a", task, 1.0, seed) for task, seed in ((0, 0), (0, 1), (1, 0))] + [record("b", 0, 1.0)]
    (tmp_path / "records.jsonl").write_text("".join(row.to_json() + "\n" for row in rows))
    rows = rows_of(ranked(tmp_path))
    assert (rows["a"].completeness, rows["b"].completeness) == (0.75, 0.5)


def test_the_time_limit_is_overrun_once_or_several_times(tmp_path):
    board = board_of(tmp_path, {"slow": [1.0], "slower": [1.0, 1.0]}, time_limit_s=1.0, solve_time_s=5.0)
    notes = footer(rank(board))
    assert "slow overran the time limit once." in notes
    assert "slower overran the time limit 2 times." in notes
