"""A board is one folder, whose records are of its run."""

import json

import pytest
from board_toys import TASKS, board_of, record, write

from shardgym.cli import main
from shardgym.errors import InputError
from shardgym.leaderboard import load_boards, rank, render


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_folder_has_a_table_which_names_it_where_another_is_of_its_kind(here):
    board_of(here / "a", {"one": [1.0], "two": [3.0]})
    board_of(here / "b", {"one": [2.0]})
    board_of(here / "c", {"one": [2.0]}, hardware="new")
    board_of(here / "d", {"one": [2.0]}, suite="other")
    boards = load_boards(["."])
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


def test_a_file_that_is_named_twice_is_one_board(here):
    board_of(here / "a", {"one": [1.0]})
    assert [len(board.results) for board in load_boards(["a", "a/records.jsonl", "."])] == [1]


def test_records_that_are_not_of_the_run_are_refused(here):
    write(here / "a", [record("one", 0, 1.0)], judge_version="2")
    with pytest.raises(InputError, match="holds a record of judge_version '1', this run has '2'"):
        load_boards(["a"])
    other = json.loads(record("two", 1, 2.0).to_json()) | {"task_index": 0}
    board_of(here / "b", {"one": [1.0]})
    with (here / "b" / "records.jsonl").open("a") as file:
        file.write(json.dumps(other) + "\n")
    with pytest.raises(InputError, match="task 0 of 'toys' differs from that of other records"):
        load_boards(["b"])
    (here / "b" / "run.json").unlink()
    with pytest.raises(InputError, match=r"has no run\.json beside it"):
        load_boards(["b"])


def test_tasks_are_read_where_they_are_at_hand(here):
    board_of(here / "a", {"one": [1.0, 2.0]})
    (here / "a" / "tasks").mkdir()
    (here / "a" / "tasks" / f"{TASKS[0].digest}.json").write_text(TASKS[0].to_json())
    (board,) = load_boards(["a"])
    assert [board.task(index) for index in range(3)] == [TASKS[0], None, None]


def test_the_command_shows_the_boards_below_a_folder(here, capsys):
    (here / "results").mkdir()
    board_of(here / "results" / "a", {"one": [1.0]})
    board_of(here / "results" / "b", {"one": [1.0]}, suite="other")
    assert main(["leaderboard", "results", "--format", "md"]) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if line.startswith("##")] == [
        "## toys: 1 task, judged by lab-cost on lab", "## other: 1 task, judged by lab-cost on lab"
    ]  # fmt: skip
    assert main(["leaderboard", "results/b", "--format", "md", "--out", "table.md"]) == 0
    assert capsys.readouterr().out == "table.md\n"
    assert (here / "table.md").read_text() in text + "\n"
