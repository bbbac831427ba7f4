"""Which records share a table: those of one kind, unless two files contradict each other."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_ranking import TASKS, board_of, record

from shardgym import PlanCost, ShardingPlan
from shardgym.cli import main
from shardgym.errors import InputError, UnknownNameError
from shardgym.evaluation.result import RunInfo
from shardgym.leaderboard import load_boards, rank, render
from shardgym.leaderboard.details import Details, _group_ratio
from shardgym.leaderboard.notes import cautions, notes
from shardgym.leaderboard.ranking import BASE
from shardgym.leaderboard.tables import to_dict


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def solvers_of(boards):
    return [board.solvers for board in boards]


def test_folders_that_hold_the_same_record_get_a_table_each(here):
    """Both costs of `one` are shown, each under the name of its folder; none is dropped."""
    board_of(here / "a", {"one": [1.0], "two": [3.0]})
    board_of(here / "b", {"one": [2.0]})
    rankings = [rank(board) for board in load_boards(["."])]
    assert [[(row.solver, round(row.mean_ms, 9)) for row in ranking.rows] for ranking in rankings] == [
        [("one", 1.0), ("two", 3.0)], [("one", 2.0)],
    ]  # fmt: skip
    text = render(rankings, "md")
    assert "## toys: 1 task, judged by lab-cost on lab, a\n" in text
    assert "## toys: 1 task, judged by lab-cost on lab, b\n" in text
    assert [to_dict(ranking)["folder"] for ranking in rankings] == ["a", "b"]
    for place, ranking in zip("ab", rankings, strict=True):
        assert (
            f"The records of {place} alone, in no table with others of the same kind: a and b both hold solver "
            "'one', task 0, seed 0, and not the same; to share one, run one of them under a label "
            "(--solver LABEL=NAME)."
        ) in cautions(ranking.board)


def test_what_two_folders_hold_with_the_same_outcome_counts_once(here):
    """A submission that ran beside a heuristic of the board, which makes the same plans again."""
    board_of(here / "a", {"one": [1.0, "infeasible"], "two": [3.0, 3.0]})
    board_of(here / "b", {"one": [1.0, "infeasible"], "mine": [2.0, 2.0]}, solve_time_s=9.0)
    (board,) = load_boards(["."])
    assert {r.solver: r.solve_time_s for r in board.results} == {"one": 0.5, "two": 0.5, "mine": 9.0}
    ranking = rank(board)
    assert [row.completeness for row in ranking.rows] == [1, 1, 1]
    repeat = "one: 2 records of b are those of a again, with the same plans and costs; solving times are of the latter."
    assert repeat in notes(ranking)
    assert repeat not in cautions(board)


def test_runs_of_different_numbers_of_tasks_are_kept_apart_by_what_both_hold(here):
    """Else a longer run of one heuristic would take the rank of every solver that ran on fewer tasks."""
    for folder, num_tasks in (("a", 1), ("b", 2)):
        board_of(here / folder, {"one": [1.0] * num_tasks})
        info = RunInfo("toys", "lab-cost", "1", {}, "lab", "roofline", {}, None, num_tasks, ("one",), (0,))
        (here / folder / "run.json").write_text(info.to_json())
    boards = load_boards(["."])
    assert [board.tasks for board in boards] == [(0,), (0, 1)]
    assert "task 0, seed 0, in runs of different numbers of tasks; to share one" in boards[0].clash


@pytest.mark.parametrize(
    ("outcome", "fields"),
    [
        (1.00001, {}),
        ("infeasible", {}),
        (1.0, {"solver_settings": {"k": 1}}),
        (1.0, {"oracle": "simulator"}),
        (1.0, {"weights_digest": "ab" * 32}),
        (1.0, {"plan": ShardingPlan.table_wise(TASKS[0], [0] * TASKS[0].num_tables)}),
        (1.0, {"cost": PlanCost([[0, 1.0, 0, 0, 0]] * 3, "lab-cost", "1", "lab")}),
    ],
)
def test_what_differs_in_more_than_time_is_no_repeat(here, outcome, fields):
    board_of(here / "a", {"one": [1.0]})
    board_of(here / "b", {"one": [outcome]}, **fields)
    assert len(load_boards(["."])) == 2


def test_one_clash_keeps_all_of_its_kind_apart_and_no_other(here):
    for folder, fields in (("a", {}), ("b", {}), ("c", {"hardware": "other"}), ("d", {"hardware": "other"})):
        solver = "same" if folder in "ab" else folder
        board_of(here / folder, {solver: [2.0 if folder == "b" else 1.0]}, **fields)
    board_of(here / "e", {"third": [1.0]})
    assert solvers_of(load_boards(["."])) == [("same",), ("same",), ("third",), ("c", "d")]


def test_a_shared_table_names_no_folder(here):
    board_of(here / "a", {"one": [1.0]})
    board_of(here / "b", {"two": [2.0]})
    (board,) = load_boards(["a", "b"])
    assert (board.clash, to_dict(rank(board))["folder"]) == (None, None)
    assert "judged by lab-cost on lab\n" in render([rank(board)])


def test_a_file_that_is_named_twice_is_one(here):
    board_of(here / "a", {"one": [1.0]})
    (board,) = load_boards(["a", "a/records.jsonl", "."])
    assert len(board.results) == 1


def test_seeds_of_one_solver_in_two_folders_share_a_table(here):
    board_of(here / "a", {"one": [1.0]})
    board_of(here / "b", {"one": [3.0]}, seed=1)
    (board,) = load_boards(["."])
    assert rank(board).rows[0].mean_ms == pytest.approx(3**0.5)


def test_other_tasks_under_the_same_index_are_kept_apart(here):
    """A suite of one's own that was edited between two runs."""
    board_of(here / "a", {"one": [1.0]})
    other = json.loads(record("two", 1, 2.0).to_json()) | {"task_index": 0}
    (here / "b").mkdir()
    (here / "b" / "records.jsonl").write_text(json.dumps(other) + "\n")
    boards = load_boards(["."])
    assert solvers_of(boards) == [("one",), ("two",)]
    assert boards[0].clash == boards[1].clash == "task 0 of a is another than that of b"
    first = (here / "a" / "records.jsonl").read_text()
    (here / "a" / "records.jsonl").write_text(first + json.dumps(other) + "\n")
    with pytest.raises(InputError, match="task 0 of 'toys' differs from that of the rest"):
        load_boards(["a"])


def test_a_suite_is_picked_before_anything_is_compared(here):
    """The other suite has a clash, and a file that no single run can have made."""
    for folder, ms in (("a", 1.0), ("b", 2.0)):
        board_of(here / folder, {"one": [ms]}, suite="other")
    versions = [record("one", 0, 1.0, suite="broken"), record("two", 0, 1.0, suite="broken")]
    (here / "c").mkdir()
    texts = [versions[0].to_json(), versions[1].to_json().replace('"version":"1"', '"version":"2"')]
    (here / "c" / "records.jsonl").write_text("\n".join(texts) + "\n")
    board_of(here / "d", {"one": [2.0]})
    with pytest.raises(InputError, match="mixes versions 1, 2"):
        load_boards(["."])
    (board,) = load_boards(["."], suite="toys")
    assert (board.clash, rank(board).rows[0].mean_ms) == (None, pytest.approx(2.0))
    with pytest.raises(UnknownNameError, match="unknown suite among the records 'toy': did you mean toys"):
        load_boards(["."], suite="toy")


@pytest.mark.parametrize(("tasks", "said"), [(1, "1 task holds"), (2, "2 tasks hold")])
def test_tasks_of_several_sessions_are_counted_in_words_that_fit(here, tasks, said):
    board_of(here / "a", {"one": [1.0] * tasks}, session="monday")
    board_of(here / "b", {"two": [1.0] * tasks}, session="tuesday")
    (board,) = load_boards(["."])
    assert any(f"WARNING: {said} times of different measurement sessions" in note for note in cautions(board))


def test_measurements_are_joined_where_asked_for_and_say_how_far_they_agree(here):
    """By hand: on the old processor `one` takes 1/2 of the base and `two` 3/4, on the new one 6/10 and 1/2."""
    board_of(here / "a", {"one": [1.0, 2.0], "two": [1.5, 3.0], BASE: [2.0, 4.0]}, hardware="old")
    board_of(here / "b", {"one": [0.6], "two": [0.5], BASE: [1.0]}, hardware="new")
    assert len(load_boards(["."])) == 2
    (board,) = load_boards(["."], join=True)
    assert board.measurements == {"old": (0, 1), "new": (2,)}
    assert board.same_tasks == [[0, 2], [1]]
    (here / "b" / "tasks").mkdir()
    (here / "b" / "tasks" / f"{TASKS[0].digest}.json").write_text(TASKS[0].to_json())
    assert [board.task(index) for index in board.tasks] == [None, None, TASKS[0]]
    ranking = rank(board)
    assert ranking.num_tasks == 2
    assert {row.solver: row.relative for row in ranking.rows} == pytest.approx({
        "one": ((0.5 * 0.6) ** 0.5 * 0.5) ** 0.5, "two": ((0.75 * 0.5) ** 0.5 * 0.75) ** 0.5, BASE: 1.0
    })  # fmt: skip
    text = render([ranking], "md")
    assert "toys: 2 tasks, judged by lab-cost on old and new" in text
    assert "Not measured again" not in text
    assert (
        f"Measurements: 2 on old, 1 on new; a task counts once, as their mean. Relative to {BASE}, the means of a "
        "solver differ by at most 50.0% between them (two), and 1 of 3 pairs of solvers are in another order."
    ) in text


def test_a_second_measurement_is_no_second_task(here):
    """The same costs measured again leave every figure, interval and rank as it was."""
    costs = {"one": [1.0 + 0.1 * n for n in range(8)], BASE: [1.2 + 0.05 * n for n in range(8)]}
    once = rank(board_of(here / "a", costs))
    board_of(here / "b", costs, hardware="new")
    (joined,) = load_boards(["."], join=True)
    twice = rank(joined)
    assert twice.rows == once.rows
    assert Details.of(twice).improvement_ends == pytest.approx(Details.of(once).improvement_ends)
    groups = [Details.of(ranking) for ranking in (once, twice)]
    assert groups[0].groups == groups[1].groups
    assert groups[0].ratios == groups[1].ratios


def test_groups_have_the_tasks_that_one_measurement_has_a_base_for(here):
    """Of the only task, the base failed in one measurement: the other says what the solver costs over it."""
    for name, base in (("old", 4.0), ("new", "error")):
        board_of(here / name, {"mine": [2.0], BASE: [base]}, hardware=name)
    ranking = rank(*load_boards(["."], join=True))
    (row,) = (row for row in ranking.rows if row.solver == "mine")
    ratios = [_group_ratio(ranking, ranking.rows.index(row), np.array([True, True])).ratio]
    assert [row.relative, *ratios] == pytest.approx([0.5, 0.5])


def test_measurements_with_other_ids_agree_on_plans_by_so_much(here):
    """By hand: of three pairs of plans two are in the same order, so tau is 1/3; one pair is within 5 %, swapped."""
    split = [ShardingPlan.table_wise(TASKS[0], [n % 2 for n in range(TASKS[0].num_tables)])]
    split.append(ShardingPlan.table_wise(TASKS[0], [0] * TASKS[0].num_tables))
    split.append(ShardingPlan.table_wise(TASKS[0], [1] * TASKS[0].num_tables))
    for seed, costs in ((0, [1.0, 1.04, 2.0]), (1, [1.2, 1.0, 2.0])):
        folder = here / f"ids{seed}"
        folder.mkdir()
        (folder / "records.jsonl").write_text(
            "".join(
                record(solver, 0, cost, plan=plan, judge_settings={"seed": seed, "rounds": 3}).to_json() + "\n"
                for solver, cost, plan in zip(("one", "two", BASE), costs, split, strict=True)
            )
        )
    assert len(load_boards(["."])) == 2
    (board,) = load_boards(["."], join=True)
    assert board.key.judge_settings == '{"rounds":3}'  # no seed is that of all
    assert board.measurements == {"lab with ids of seed 0": (0,), "lab with ids of seed 1": (1,)}
    assert (
        "Of the plans of a task, tau of two measurements is 0.33 on average, and of pairs within 5% by one 0% are in "
        "the same order by the other."
    ) in render([rank(board)], "md")


def test_the_command_joins_measurements_where_asked_for(here, capsys):
    board_of(here / "a", {"one": [1.0], BASE: [2.0]}, hardware="old")
    board_of(here / "b", {"one": [0.6], BASE: [1.0]}, hardware="new")
    assert main(["leaderboard", "."]) == 0
    assert "Measurements" not in capsys.readouterr().out
    assert main(["leaderboard", ".", "--join"]) == 0
    assert "Measurements: 1 on" in capsys.readouterr().out


def test_a_board_of_one_measurement_says_nothing_of_others(here):
    board_of(here / "a", {"one": [1.0], BASE: [2.0]})
    (board,) = load_boards(["."], join=True)
    assert "Measurements" not in render([rank(board)], "md")


def test_files_that_contradict_each_other_are_not_joined(here):
    board_of(here / "a", {"one": [1.0]})
    board_of(here / "b", {"one": [2.0]})
    board_of(here / "c", {"one": [2.0]}, hardware="new")
    assert [board.key.hardware for board in load_boards(["."], join=True)] == ["lab", "lab", "new"]
