"""measure marks no plan best that another cannot be told from."""

from __future__ import annotations

import json

import pytest
from evaluation_toys import toy_tasks

from shardgym import ShardingPlan
from shardgym.cli import main
from shardgym.leaderboard.statistics import TIE_RULE

COST = ["--cost", "evaluation_toys:DriftingCost"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A task, two plans of 2 ms and one of 3 ms; a cost of DriftingCost has a standard error of 1 %."""
    monkeypatch.chdir(tmp_path)
    task = toy_tasks(1)[0]
    (tmp_path / "task.json").write_text(task.to_json())
    for name, devices in ("even", [0, 0, 1, 1]), ("mirror", [1, 1, 0, 0]), ("uneven", [0, 0, 0, 1]):
        (tmp_path / f"{name}.json").write_text(ShardingPlan.table_wise(task, devices).to_json())


def measured(capsys, *plans):
    assert main(["measure", "task.json", *plans, *COST]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("file "))
    return [line.split()[3:] for line in lines[start + 2 : start + 2 + len(plans)]], lines[start + 2 + len(plans) :]


def test_a_tie_has_no_best_and_says_by_which_rule(capsys):
    marks, rest = measured(capsys, "even.json", "uneven.json", "mirror.json")
    assert marks == [["tied"], [], ["tied"]]
    assert rest[0] == TIE_RULE
    assert "at most 2 standard errors" in TIE_RULE


def test_a_clear_difference_has_a_best(capsys):
    marks, rest = measured(capsys, "uneven.json", "even.json")
    assert marks == [[], ["best"]]
    assert TIE_RULE not in rest


def test_json_carries_the_mark(capsys):
    assert main(["measure", "task.json", "even.json", "uneven.json", *COST, "--json"]) == 0
    assert [row["mark"] for row in json.loads(capsys.readouterr().out)] == ["best", None]
