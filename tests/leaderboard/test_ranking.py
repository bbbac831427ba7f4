"""Ranks, common tasks, relative costs and ties, on tables that can be checked by hand."""

from __future__ import annotations

import math

import pytest
from evaluation_toys import Halves, toy_tasks

from shardgym import PlanCost
from shardgym.evaluation.result import Result
from shardgym.leaderboard import load_boards, rank, render
from shardgym.leaderboard.tables import footer, to_dict

TASKS = toy_tasks(40)


def record(solver, index, outcome, seed=0, **fields):
    """Return a result: `outcome` is a cost in ms, or a status."""
    values = {
        "suite": "toys", "task_index": index, "task_hash": TASKS[index].digest, "solver": solver, "seed": seed,
        "judge": "lab-cost", "oracle": "roofline", "hardware": "lab", "status": "ok", "solve_time_s": 0.5,
        "started": "2025-01-01T00:00:00+00:00",
    }  # fmt: skip
    if isinstance(outcome, str):
        return Result(**values | {"status": outcome, "reason": "because"} | fields)
    session = fields.pop("session", "")
    cost = PlanCost([[outcome, 0, 0, 0]] * 2, "lab-cost", "1", fields.get("hardware", "lab"), session=session)
    return Result(**values | {"plan": Halves().solve(TASKS[index], None), "cost": cost} | fields)


def board_of(folder, outcomes, **fields):
    """Write records of {solver: outcome per task, None for no record} and read them as one board."""
    rows = [
        record(solver, index, outcome, **fields)
        for solver, column in outcomes.items()
        for index, outcome in enumerate(column)
        if outcome is not None
    ]
    folder.mkdir(exist_ok=True)
    (folder / "records.jsonl").write_text("".join(row.to_json() + "\n" for row in rows))
    (board,) = load_boards([folder])
    return board


def rows_of(ranking):
    return {row.solver: row for row in ranking.rows}


def test_means_ratios_and_ranks_by_hand(tmp_path):
    """Costs relative to dim_greedy: geometric mean of 1/2 and 3/6 is 0.5; of 4/2 and 12/6 is 2."""
    ranking = rank(board_of(tmp_path, {"mine": [1.0, 3.0], "dim_greedy": [2.0, 6.0], "random": [4.0, 12.0]}))
    assert [(row.rank, row.solver) for row in ranking.rows] == [(1, "mine"), (2, "dim_greedy"), (3, "random")]
    assert ranking.best_heuristic == "dim_greedy"
    assert [row.mean_ms for row in ranking.rows] == [2.0, 4.0, 8.0]
    assert [row.relative for row in ranking.rows] == pytest.approx([0.5, 1.0, 2.0])
    assert [row.gap for row in ranking.rows] == pytest.approx([0.0, 1.0, 3.0])


def test_the_best_heuristic_is_one_greedy_and_never_random(tmp_path):
    ranking = rank(board_of(tmp_path, {"random": [1.0, 1.0], "size_greedy": [9.0, 1.0], "dim_greedy": [2.0, 2.0]}))
    assert ranking.best_heuristic == "dim_greedy"


def test_success_comes_before_cost(tmp_path):
    """`cheap` fails once; `dear` never does."""
    ranking = rank(board_of(tmp_path, {"cheap": [1.0, 1.0, "infeasible"], "dear": [5.0, 5.0, 5.0]}))
    assert [row.solver for row in ranking.rows] == ["dear", "cheap"]
    assert rows_of(ranking)["cheap"].success == pytest.approx(2 / 3)
    assert not rows_of(ranking)["cheap"].tied


def test_means_are_over_tasks_that_all_have_solved(tmp_path):
    """The last task, which only one solved, would have made its mean look bad."""
    ranking = rank(board_of(tmp_path, {"a": [1.0] * 9 + [100.0], "b": [2.0] * 9 + ["error"]}))
    assert ranking.num_common == 9
    assert rows_of(ranking)["a"].mean_ms == 1.0


def test_a_solver_that_solves_none_does_not_empty_the_comparison(tmp_path):
    ranking = rank(board_of(tmp_path, {"a": [1.0, 1.0], "hopeless": ["infeasible"] * 2, "broken": ["error"] * 2}))
    assert ranking.num_common == 2
    hopeless = rows_of(ranking)["hopeless"]
    assert (hopeless.rank, hopeless.success, hopeless.tasks) == (3, 0.0, 0)
    assert math.isnan(hopeless.mean_ms)
    assert "hopeless" in render([ranking])


@pytest.mark.parametrize(("solved", "common"), [(8, 10), (9, 9)])
def test_a_solver_that_fails_often_does_not_shrink_the_comparison(tmp_path, solved, common):
    """Of ten tasks, nine are enough to count and eight are not."""
    poor = [7.0] * solved + ["infeasible"] * (10 - solved)
    ranking = rank(board_of(tmp_path, {"a": [1.0] * 10, "poor": poor}))
    assert (ranking.num_common, rows_of(ranking)["poor"].tasks) == (common, solved)
    assert ("7.0000*" in render([ranking])) is (solved < common)


def test_when_nobody_solves_anything_there_is_still_a_table(tmp_path):
    ranking = rank(board_of(tmp_path, {"a": ["error"], "b": ["infeasible"]}))
    assert (ranking.num_common, ranking.best_heuristic) == (0, None)
    assert [row.rank for row in ranking.rows] == [None, None]
    assert "Records of b without a cost: 1 infeasible." in footer(ranking)


def test_an_incomplete_solver_is_listed_without_a_rank(tmp_path):
    ranking = rank(board_of(tmp_path, {"full": [5.0, 5.0], "half": [1.0, None]}))
    assert [(row.solver, row.rank, row.completeness) for row in ranking.rows] == [("full", 1, 1.0), ("half", None, 0.5)]
    assert ranking.num_common == 2


def test_a_run_that_was_stopped_has_no_ranks_yet(tmp_path):
    """run.json tells that three tasks were asked for."""
    (tmp_path / "run.json").write_text(
        '{"suite":"toys","judge":"lab-cost","judge_version":"1","judge_settings":{},"hardware":"lab","oracle":"roofline",'
        '"oracle_settings":{},"time_limit_s":null,"num_tasks":3,"solvers":["a","later"],"seeds":[0]}'
    )
    ranking = rank(board_of(tmp_path, {"a": [1.0, 1.0]}))
    assert [(row.solver, row.rank) for row in ranking.rows] == [("a", None), ("later", None)]
    assert rows_of(ranking)["a"].completeness == pytest.approx(2 / 3)
    assert ranking.num_common == 2
    assert render([ranking])


def test_a_difference_within_the_spread_over_tasks_is_a_tie(tmp_path):
    """`b` is 10 % worse on half of the tasks and 9 % better on the others; `c` is 10 % worse everywhere."""
    even = [1.1 if i % 2 else 0.92 for i in range(40)]
    ranking = rank(board_of(tmp_path, {"a": [1.0] * 40, "b": even, "c": [1.1] * 40}))
    rows = rows_of(ranking)
    assert (rows["b"].tied, rows["c"].tied, rows["a"].tied) == (True, False, False)
    assert rows["c"].gap_interval == pytest.approx((0.1, 0.1))
    assert " 1=  b" in render([ranking])


def test_equal_plans_tie(tmp_path):
    assert rows_of(rank(board_of(tmp_path, {"a": [1.0, 2.0], "b": [1.0, 2.0]})))["b"].tied


@pytest.mark.parametrize(("tasks", "tied"), [(1, True), (5, True), (6, False)])
def test_few_tasks_give_no_interval_and_a_tie(tmp_path, tasks, tied):
    """Twice the cost on every task, of too few or enough tasks."""
    ranking = rank(board_of(tmp_path, {"a": [1.0] * tasks, "b": [2.0] * tasks}))
    row = rows_of(ranking)["b"]
    assert (row.gap_interval is None, row.tied) == (tied, tied)
    assert ("nobody can be told from rank 1" in render([ranking])) is tied


def test_a_tasks_cost_is_the_mean_over_seeds_and_all_of_them_must_succeed(tmp_path):
    second = [3.0, "error"]
    rows = [record("a", task, second[task] if seed else 1.0, seed) for task in (0, 1) for seed in (0, 1)]
    (tmp_path / "records.jsonl").write_text("".join(row.to_json() + "\n" for row in rows))
    ranking = rank(load_boards([tmp_path])[0])
    assert (ranking.rows[0].mean_ms, ranking.rows[0].success) == (2.0, 0.5)
    assert "Every solver ran with seeds 0, 1; a task's cost is the mean over them." in footer(ranking)


def test_hardware_judges_and_suites_never_share_a_table(tmp_path):
    kinds = [{}, {"hardware": "b"}, {"suite": "c"}, {"judge_settings": {"x": 1}}]
    for number, fields in enumerate(kinds):
        board_of(tmp_path / str(number), {"solver": [1.0]}, **fields)
    assert len(load_boards([tmp_path])) == 4


def test_folders_of_the_same_share_one(tmp_path):
    board_of(tmp_path / "a", {"one": [1.0, 1.0]})
    board_of(tmp_path / "b", {"two": [2.0, 2.0]})
    (board,) = load_boards([tmp_path])
    assert [row.solver for row in rank(board).rows] == ["one", "two"]


def test_footers_tell_how_the_times_came_about(tmp_path):
    board_of(tmp_path / "a", {"one": [1.0, 1.0]}, session="monday")
    board_of(tmp_path / "b", {"two": [2.0, 2.0]}, session="tuesday")
    text = " ".join(footer(rank(load_boards([tmp_path])[0])))
    assert "2 tasks hold times of different measurement sessions" in text
    assert "Communication was modelled, not measured, for 2 of 2 tasks" in text
    assert "Judge: lab-cost 1 on lab, settings: none." in text


def test_markdown_and_json_carry_the_same_figures(tmp_path):
    ranking = rank(board_of(tmp_path, {"mine": [1.0, 3.0], "dim_greedy": [2.0, 6.0]}))
    markdown = render([ranking], "md")
    assert "|      1 | mine       |    2.0000 |       0.500 |" in markdown
    data = to_dict(ranking)
    assert [row["mean_ms"] for row in data["rows"]] == [2.0, 4.0]
    assert data["rows"][0]["gap_interval"] is None
