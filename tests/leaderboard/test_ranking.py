"""Boards, and their ratios, ranks, ties and what failures count, on tables that can be checked by hand."""

import json
import math
import re

import numpy as np
import pytest
from board_toys import board_of, record, rows_of, write

from shardgym.leaderboard import BASE, load_boards, rank, render
from shardgym.leaderboard.boards import SolverResults
from shardgym.leaderboard.ranking import counted_costs
from shardgym.leaderboard.tables import footer, to_dict


def test_means_and_ratios_by_hand(tmp_path):
    """Costs relative to the base: geometric mean of 1/2 and 3/6 is 0.5; of 4/2 and 12/6 is 2."""
    ranking = rank(board_of(tmp_path, {"mine": [1.0, 3.0], BASE: [2.0, 6.0], "random": [4.0, 12.0]}))
    assert [row.solver for row in ranking.rows] == ["mine", BASE, "random"]
    assert [row.mean_ms for row in ranking.rows] == pytest.approx([2.0, 4.0, 8.0])
    assert [row.relative for row in ranking.rows] == pytest.approx([0.5, 1.0, 2.0])
    assert "| mine     |    0.500 |" in render([ranking], "md")
    data = to_dict(ranking)
    json.dumps(data, allow_nan=False)
    assert [row["relative"] for row in data["rows"]] == pytest.approx([0.5, 1.0, 2.0])
    assert (data["rows"][0]["relative_interval"], data["base"]) == (None, BASE)
    ranking = rank(board_of(tmp_path, {"a": [1.0, 100.0], "b": [2.0, 60.0]}))
    assert [row.mean_ms for row in ranking.rows] == pytest.approx([50.5, 31.0])  # the geometric means decide


def test_the_cost_and_the_spread_over_seeds_are_those_of_geometric_means(tmp_path):
    """The second seed is 2 % costlier everywhere: standard deviation of two values, log(1.02) / sqrt(2)."""
    ranking = rank(board_of(tmp_path, {"a": [[1.0, 4.0], [4.0, 9.0]]}))
    assert ranking.rows[0].mean_ms == pytest.approx((2 + 6) / 2)
    ranking = rank(board_of(tmp_path, {"a": [[1.0, 2.0], [1.02, 2.04]], "one": [[1.0, 2.0]]}))
    assert rows_of(ranking)["a"].seed_spread == pytest.approx(math.log(1.02) / math.sqrt(2))
    assert math.isnan(rows_of(ranking)["one"].seed_spread)
    assert "2 (±1.4 %)" in render([ranking])
    assert "seeds" not in render([rank(board_of(tmp_path, {"one": [1.0, 2.0]}))]).splitlines()[2]


def test_a_task_is_the_unit_of_intervals_however_many_seeds_there_are(tmp_path):
    """The same plans with three seeds say no more than with one."""
    costs = np.random.default_rng(1).lognormal(size=12).tolist()
    seeds = {BASE: [[1.0] * 12], "once": [costs], "thrice": [costs] * 3}
    rows = rows_of(rank(board_of(tmp_path, seeds)))
    assert rows["thrice"].relative_interval == pytest.approx(rows["once"].relative_interval)
    assert rows["once"].relative_interval.low < rows["once"].relative < rows["once"].relative_interval.high


def test_a_failure_counts_and_does_not_decide_alone(tmp_path):
    """One of 20 tasks fails: counted as the base's plan, so its ratio there is 1, and 1/2 on all others."""
    outcomes = {"good": ["infeasible"] + [1.0] * 19, "poor": [5.0] * 20, BASE: [2.0] * 20}
    ranking = rank(board_of(tmp_path, outcomes))
    assert [row.solver for row in ranking.rows] == ["good", BASE, "poor"]
    good = rows_of(ranking)["good"]
    assert good.relative == pytest.approx(0.5 ** (19 / 20))
    assert (good.failures, good.success, good.tasks) == ({"infeasible": 1}, 0.95, 20)
    assert footer(ranking)[1] == "Failed: 1 of 60 records, counted as the plan of lpt."


def test_a_failure_counts_the_mean_over_the_seeds_that_the_base_solved_the_task_with(tmp_path):
    seeds = {"a": [["error", 1.0, 1.0]], BASE: [[2.0, "error", 3.0], [8.0, 5.0, 3.0]]}
    counted, base_ms = counted_costs(SolverResults.of_board(board_of(tmp_path, seeds)), 3)
    assert base_ms == pytest.approx([4.0, 5.0, 3.0])
    assert counted["a"][0] == pytest.approx([4.0, 1.0, 1.0])
    assert counted[BASE] == pytest.approx(np.array([[2.0, 5.0, 3.0], [8.0, 5.0, 3.0]]))


@pytest.mark.parametrize("of_base", ["infeasible", None])
def test_tasks_of_which_the_base_has_no_plan_are_left_out(tmp_path, of_base):
    ranking = rank(board_of(tmp_path, {"a": [1.0, "error"], "b": [2.0, 9.0], BASE: [4.0, of_base]}))
    rows = rows_of(ranking)
    assert (ranking.num_tasks, rows["a"].relative, rows["b"].relative) == (1, 0.25, 0.5)
    said = footer(ranking)[1]
    assert f"Left out: 1 of 2 tasks, for which lpt has no {'plan' if of_base else 'record yet'}." in said
    assert ("run them again, with --limit 2." in said) == (of_base is None)


def test_without_the_base_failures_count_nothing_and_who_failed_has_no_rank(tmp_path):
    ranking = rank(board_of(tmp_path, {"a": ["error"] + [1.0] * 6, "b": [2.0] * 7, "c": [3.0] * 7}))
    assert [(row.solver, row.ranks) for row in ranking.rows] == [("b", (1, 1)), ("c", (2, 2)), ("a", None)]
    assert "Failed: 1 of 21 records, not counted: solvers that failed have no rank." in footer(ranking)[1]


def test_figures_of_a_row_do_not_change_when_another_row_goes(tmp_path):
    """Failures of two solvers, one of the base and solvers of very different costs; all rows but two go, one by one."""
    rng = np.random.default_rng(3)
    outcomes = {name: rng.lognormal(n, size=12).tolist() for n, name in enumerate("abcd")}
    outcomes[BASE] = rng.lognormal(1, size=12).tolist()
    outcomes["a"][2] = outcomes["b"][3] = outcomes["b"][4] = outcomes[BASE][4] = "infeasible"

    def figures(outcomes):
        rows = to_dict(rank(board_of(tmp_path, outcomes)))["rows"]
        return {row["solver"]: row | {"ranks": None} for row in rows}

    every = figures(outcomes)
    for gone in "abcd":
        rest = figures({name: column for name, column in outcomes.items() if name != gone})
        assert rest == {name: row for name, row in every.items() if name != gone}


def test_a_solver_that_solves_nothing_has_no_figures(tmp_path):
    """They would be those of the base, whose plans its failures count as."""
    outcomes = {BASE: [[2.0] * 6] * 2, "hopeless": [["infeasible"] * 6] * 2, "once": [["error"] * 5 + [2.0]] * 2}
    ranking = rank(board_of(tmp_path, outcomes))
    lines = [line.split() for line in render([ranking]).splitlines() if "hopeless" in line]
    row = rows_of(ranking)["hopeless"]
    assert row.ranks is None
    assert all(map(math.isnan, (row.relative, row.mean_ms, row.seed_spread)))
    assert lines[0][:8] == ["-", "hopeless", "-", "-", "100", "%", "2", "-"]
    assert rows_of(ranking)["once"].relative == pytest.approx(1.0)


@pytest.mark.parametrize("outcomes", [{"a": ["error"], "b": ["infeasible"]}, {"a": [0.0] * 7, BASE: [1.0] * 7}])
def test_when_nobody_solves_anything_or_nothing_costs_anything_there_is_still_a_table(tmp_path, outcomes):
    assert render([rank(board_of(tmp_path, outcomes))])


def test_an_incomplete_solver_is_listed_last_without_a_rank(tmp_path):
    ranking = rank(board_of(tmp_path, {"full": [5.0] * 7, "half": [1.0] * 6 + [None]}))
    rows = [(row.solver, row.ranks, row.completeness) for row in ranking.rows]
    assert rows == [("full", (1, 1), 1.0), ("half", None, pytest.approx(6 / 7))]
    assert "85.71 %" in render([ranking])
    assert "complete" not in render([rank(board_of(tmp_path, {"full": [5.0] * 7}))])


def test_a_run_that_was_stopped_has_no_ranks_yet(tmp_path):
    """run.json tells that seven tasks were asked for."""
    write(tmp_path, [record("a", n, 1.0) for n in range(6)], 7, solvers=("later", "earlier", "a"))
    ranking = rank(*load_boards([tmp_path]))
    assert [(row.solver, row.ranks) for row in ranking.rows] == [("a", None), ("earlier", None), ("later", None)]
    assert [row.completeness for row in ranking.rows] == pytest.approx([6 / 7, 0.0, 0.0])
    assert rows_of(ranking)["a"].mean_ms == 1.0
    assert render([ranking])


def test_a_solver_is_held_to_the_seeds_that_it_has(tmp_path):
    """One has seed 0 on all tasks, one three seeds of which one lacks a task."""
    ranking = rank(board_of(tmp_path, {"one": [[1.0] * 7], "three": [[1.0] * 7, [1.0] * 7, [1.0] * 6 + [None]]}))
    found = [(row.solver, row.num_seeds, row.completeness, row.ranks) for row in ranking.rows]
    assert found == [("one", 1, 1.0, (1, 1)), ("three", 3, pytest.approx(20 / 21), None)]


def test_ranks_are_those_that_what_is_clear_leaves(tmp_path):
    """B is 10 % costlier than a on half of the tasks and 8 % cheaper on the others; d is to c what b is to a."""
    even = [1.1 if i % 2 else 0.92 for i in range(40)]
    outcomes = {"a": [1.0] * 40, "b": even, "c": [1.3] * 40, "d": [1.3 * x for x in even], "e": [2.0] * 40}
    ranking = rank(board_of(tmp_path, outcomes))
    assert {row.solver: row.ranks for row in ranking.rows} == {
        "a": (1, 2), "b": (1, 2), "c": (3, 4), "d": (3, 4), "e": (5, 5),
    }  # fmt: skip
    lines = [line.split()[:2] for line in render([ranking]).splitlines()]
    assert ["3-4", "c"] in lines
    assert ["5", "e"] in lines


def test_equal_plans_cannot_be_told_apart(tmp_path):
    rows = rows_of(rank(board_of(tmp_path, {"a": [1.0, 2.0] * 3, "b": [1.0, 2.0] * 3, BASE: [1.0, 2.0] * 3})))
    assert [row.ranks for row in rows.values()] == [(1, 3)] * 3
    assert rows["a"].relative_interval == (1.0, 1.0)


@pytest.mark.parametrize(("tasks", "ranks"), [(1, [None, None]), (5, [None, None]), (6, [(1, 1), (2, 2)])])
def test_few_tasks_give_no_interval_and_no_rank(tmp_path, tasks, ranks):
    """Twice the cost on every task, of too few or enough tasks."""
    ranking = rank(board_of(tmp_path, {BASE: [1.0] * tasks, "b": [2.0] * tasks}))
    assert [row.ranks for row in ranking.rows] == ranks
    assert (rows_of(ranking)["b"].relative_interval is None) == (tasks < 6)
    assert ("no ranks, no intervals" in render([ranking])) is (tasks < 6)


def test_ranks_are_the_same_every_time_and_do_not_depend_on_the_order_of_records(tmp_path):
    noisy = np.random.default_rng(0).lognormal(size=(3, 12)).tolist()
    names = ["x", "y", "z"]
    first = rank(board_of(tmp_path / "a", dict(zip(names, noisy, strict=True))))
    again = rank(board_of(tmp_path / "b", dict(reversed(list(zip(names, noisy, strict=True))))))
    assert render([first]) == render([again])
    assert [row.ranks for row in first.rows] == [row.ranks for row in again.rows]


def test_processor_time_stands_beside_the_time_that_passed(tmp_path):
    assert re.search(r"0\.50 s +1\.25 s", render([rank(board_of(tmp_path, {"a": [1.0]}, cpu_time_s=1.25))]))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_folder_has_a_table_which_names_it_where_another_is_of_its_kind(here):
    board_of(here / "a", {"one": [1.0], "two": [3.0]})
    board_of(here / "b", {"one": [2.0]})
    board_of(here / "c", {"one": [2.0]}, hardware="new")
    board_of(here / "d", {"one": [2.0]}, suite="other")
    boards = load_boards([".", "a", "a/records.jsonl"])  # named twice, it is one board
    assert [[(row.solver, round(row.mean_ms, 9)) for row in rank(board).rows] for board in boards] == [
        [("one", 1.0), ("two", 3.0)], [("one", 2.0)], [("one", 2.0)], [("one", 2.0)],
    ]  # fmt: skip
    titles = [line for line in render(list(map(rank, boards)), "md").splitlines() if line.startswith("## ")]
    assert titles == [
        "## toys: 1 task, judged by lab-cost on lab, a",
        "## toys: 1 task, judged by lab-cost on lab, b",
        "## toys: 1 task, judged by lab-cost on new",
        "## other: 1 task, judged by lab-cost on lab",
    ]
