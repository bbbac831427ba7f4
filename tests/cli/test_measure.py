"""measure: notes of costs, and no plan is best that another cannot be told from."""

from __future__ import annotations

import json

import pytest
from evaluation_toys import toy_tasks

from shardgym import ShardingPlan
from shardgym.cli import main
from shardgym.cli.plans import TIE_RULE

COST = ["--cost", "cost_notes_toys:NotedCost"]
DRIFTING = ["--cost", "evaluation_toys:DriftingCost"]
SHARED, LOPSIDED = "note: devices shared cores", "note: lopsided plans are seldom good"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A task, two plans of 2 ms, one of 3 ms with a note of its own, and one that does not fit.

    A cost of DriftingCost has a standard error of 1 %.
    """
    monkeypatch.chdir(tmp_path)
    task = toy_tasks(1)[0]
    (tmp_path / "task.json").write_text(task.to_json())
    plans = {"even": [0, 0, 1, 1], "mirror": [1, 1, 0, 0], "uneven": [0, 0, 0, 1], "full": [0, 0, 0, 0]}
    for name, devices in plans.items():
        (tmp_path / f"{name}.json").write_text(ShardingPlan.table_wise(task, devices).to_json())
    return tmp_path


def printed(capsys, *command: str) -> list[str]:
    main(list(command))
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]


def test_solve_prints_the_notes_of_its_cost(capsys):
    command = ["solve", "task.json", "--solver", "evaluation_toys:Lopsided", "--oracle", COST[1], "-o", "plan.json"]
    assert printed(capsys, *command) == [SHARED, LOPSIDED]


def test_plan_show_prints_the_notes_of_its_cost(capsys):
    assert printed(capsys, "plan", "show", "task.json", "uneven.json", *COST) == [SHARED, LOPSIDED]
    assert printed(capsys, "plan", "show", "task.json", "uneven.json") == []


def test_plan_diff_says_which_plan_a_note_is_for(capsys):
    assert printed(capsys, "plan", "diff", "task.json", "even.json", "uneven.json", *COST) == [
        SHARED, f"{LOPSIDED} (B)",
    ]  # fmt: skip


def test_measure_prints_a_note_once_and_says_which_plans_it_is_for(capsys):
    assert printed(capsys, "measure", "task.json", "even.json", "uneven.json", *COST) == [
        SHARED, f"{LOPSIDED} (uneven.json)",
    ]  # fmt: skip
    assert printed(capsys, "measure", "task.json", "even.json", *COST) == [SHARED]


def test_json_is_not_mixed_with_notes(capsys):
    assert main(["plan", "show", "task.json", "even.json", *COST, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["cost"]["notes"] == ["devices shared cores"]
    assert captured.err == ""


def test_measure_heads_every_page_by_its_file_and_ends_with_a_table(capsys):
    assert main(["measure", "task.json", "even.json", "uneven.json", "full.json", *COST]) == 1
    lines = capsys.readouterr().out.splitlines()
    for name in ("even.json", "uneven.json", "full.json"):
        assert lines[lines.index(f"{name}:") + 1].startswith("plan ")
    start = next(i for i, line in enumerate(lines) if line.startswith("file "))
    assert lines[start].split() == ["file", "total", "ms", "+-", "std", "error"]
    assert [line.split() for line in lines[start + 2 : start + 5]] == [
        ["even.json", "2.000", "0.020", "best"],
        ["uneven.json", "3.000", "0.030"],
        ["full.json", "-", "-", "no", "cost"],
    ]


def measured(capsys, *plans):
    assert main(["measure", "task.json", *plans, *DRIFTING]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("file "))
    return [line.split()[3:] for line in lines[start + 2 : start + 2 + len(plans)]], lines[start + 2 + len(plans) :]


def test_a_tie_has_no_best_and_says_by_which_rule(capsys):
    marks, rest = measured(capsys, "even.json", "uneven.json", "mirror.json")
    assert marks == [["tied"], [], ["tied"]]
    assert rest[0] == TIE_RULE
    assert "at most 2 standard errors" in TIE_RULE


def test_a_plan_that_is_given_twice_is_called_the_same(capsys):
    marks, _ = measured(capsys, "even.json", "uneven.json", "even.json", "uneven.json")
    assert marks == [["tied"], [], ["tied,", "same", "plan", "as", "even.json"], ["same", "plan", "as", "uneven.json"]]


def test_json_carries_the_mark(capsys):
    assert main(["measure", "task.json", "even.json", "uneven.json", *DRIFTING, "--json"]) == 0
    assert [row["mark"] for row in json.loads(capsys.readouterr().out)] == ["best", None]
