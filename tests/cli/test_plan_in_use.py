"""What plan diff says of moves, and solve from a plan in use."""

from __future__ import annotations

import dataclasses
import json

import pytest

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology
from shardgym.cli import main

TASK = ShardingTask(
    tuple(EmbeddingTable(f"t{n}", 1000, 16, pooling_factor=1.0 + n) for n in range(4)),
    Topology(num_devices=2, memory_bytes=2**20),
    512,
)
LATER = dataclasses.replace(TASK, tables=tuple(dataclasses.replace(t, pooling_factor=9.0) for t in TASK.tables))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with a task, the same later, and two plans."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.json").write_text(TASK.to_json())
    (tmp_path / "later.json").write_text(LATER.to_json())
    (tmp_path / "old.json").write_text(ShardingPlan.table_wise(TASK, [0, 0, 1, 1]).to_json())
    (tmp_path / "new.csv").write_text("table,devices\nt0,1\nt1,0\nt2,1\nt3,1\n")
    return tmp_path


def test_what_moves_is_said(here, capsys):
    assert main(["plan", "diff", "later.json", "old.json", "new.csv"]) == 0
    said = capsys.readouterr().out
    assert "from A to B: 64000 bytes move: 62.5 KiB inside of fast domains; at least 0.3 ms on links" in said
    assert main(["plan", "diff", "later.json", "old.json", "old.json", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert (page["moved_bytes"], page["transfer_ms"]) == ({"intra": 0, "inter": 0, "host": 0}, 0.0)


def test_a_plan_in_use_for_other_statistics_is_moved_from(here, capsys):
    solve = [
        "solve",
        "later.json",
        "--solver",
        "neuroshard_plus,kicks=2",
        "-o",
        "next.json",
        "--initial-plan",
        "old.json",
    ]
    assert main([*solve, "--json"]) == 0
    assert {"intra", "inter", "host"} == json.loads(capsys.readouterr().out)["moved"].keys()
    ShardingPlan.load("next.json").validate(LATER)
    assert main([*solve, "--force"]) == 0
    assert "move" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--solver", "neuroshard_plus", "--initial-plan", "half.csv"],
            "table 't2' of the task given has no device",
        ),
        (
            ["--solver", "neuroshard_plus", "--initial-plan", "few.json"],
            "--initial-plan few.json: expected a feasible plan, but",
        ),
    ],
)
def test_bad_input_is_one_line(here, capsys, arguments, message):
    (here / "half.csv").write_text("table,devices\nt0,1\nt1,0\nt3,1\n")
    few = dataclasses.replace(TASK, tables=TASK.tables[:3])
    (here / "few.json").write_text(ShardingPlan.table_wise(few, [0, 0, 1]).to_json())
    assert main(["solve", "later.json", "-o", "next.json", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
