"""plan show --shards and --csv, plan diff --all: everything, not the first few."""

from __future__ import annotations

import csv
import json
import re

import pytest

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology
from shardgym.cli import main

TABLES = tuple(EmbeddingTable(f"t{n:02}", 10, 4) for n in range(40))
TASK = ShardingTask(TABLES, Topology(num_devices=2, memory_bytes=2**20), batch_size=64)
SHOW = ["plan", "show", "task.json", "a.json"]
DIFF = ["plan", "diff", "task.json", "a.json", "b.json"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A current folder with a task and two plans that differ in all 40 tables."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.json").write_text(TASK.to_json())
    (tmp_path / "a.json").write_text(ShardingPlan.table_wise(TASK, [0, 1] * 20).to_json())
    (tmp_path / "b.json").write_text(ShardingPlan.table_wise(TASK, [1, 0] * 20).to_json())
    return tmp_path


def test_every_shard_is_listed_above_the_picture(capsys):
    assert main([*SHOW, "--shards"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.split(" {2,}", line.strip()) for line in lines[2:42:39]] == [
        ["t00", "[0, 10)", "[0, 4)", "0", "160 B"], ["t39", "[0, 10)", "[0, 4)", "1", "160 B"],
    ]  # fmt: skip
    assert lines[43].startswith("plan ")


def test_shards_are_in_the_document_when_asked_for(capsys):
    main([*SHOW, "--json"])
    assert "shards" not in json.loads(capsys.readouterr().out)
    main([*SHOW, "--shards", "--json"])
    first, *rest = json.loads(capsys.readouterr().out)["shards"]
    assert first == {"table": "t00", "rows": [0, 10], "columns": [0, 4], "device": 0, "bytes": 160}
    assert len(rest) == 39


def test_csv_has_a_line_per_shard_and_reads_back(here, capsys):
    assert main([*SHOW, "--csv", "a.csv"]) == 0
    with (here / "a.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 40
    assert rows[1] == {
        "table": "t01", "device": "1", "first_row": "0", "end_row": "10", "first_column": "0", "end_column": "4",
        "bytes": "160",
    }  # fmt: skip
    capsys.readouterr()
    assert main(["plan", "diff", "task.json", "a.json", "a.csv"]) == 0
    assert "0 tables moved, 0 cut differently, 40 the same" in " ".join(capsys.readouterr().out.split())


def test_a_written_csv_is_said_in_text_and_not_in_json(capsys):
    main([*SHOW, "--csv", "a.csv"])
    assert capsys.readouterr().out.splitlines()[-1] == "csv: 40 shards written to a.csv"
    main([*SHOW, "--csv", "b.csv", "--json"])
    captured = capsys.readouterr()
    assert json.loads(captured.out)["plan"]
    assert "written" not in captured.out + captured.err


def test_csv_does_not_overwrite_without_force(here, capsys):
    (here / "a.csv").write_text("precious")
    assert main([*SHOW, "--csv", "a.csv"]) == 2
    assert "a.csv exists: give another name, or --force" in capsys.readouterr().err
    assert (here / "a.csv").read_text() == "precious"
    assert main([*SHOW, "--csv", "a.csv", "--force"]) == 0
    assert (here / "a.csv").read_text().startswith("table,device,")


def test_a_diff_lists_30_tables_or_all(capsys):
    main(DIFF)
    text = capsys.readouterr().out
    assert text.count("moved '") == 30
    assert "... and 10 more tables; --all lists them" in text
    main([*DIFF, "--all"])
    text = capsys.readouterr().out
    assert text.count("moved '") == 40
    assert "more tables" not in text
