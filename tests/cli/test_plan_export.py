"""plan show --csv, plan diff --json: everything, not the first few."""

import csv
import dataclasses
import json

import pytest

from shardgym import EmbeddingTable, PlanCost, ShardingPlan, ShardingTask, Topology
from shardgym.cli import main

TABLES = tuple(EmbeddingTable(f"t{n:02}", 10, 4) for n in range(40))
TASK = ShardingTask(TABLES, Topology(num_devices=2, memory_bytes=2**20), batch_size=64)
SHOW = ["plan", "show", "task.json", "a.json"]
DIFF = ["plan", "diff", "task.json", "a.json", "b.json"]


@pytest.fixture(autouse=True)
def plans(here):
    """Two plans that differ in all 40 tables."""
    (here / "task.json").write_text(TASK.to_json())
    (here / "a.json").write_text(ShardingPlan.table_wise(TASK, [0, 1] * 20).to_json())
    (here / "b.json").write_text(ShardingPlan.table_wise(TASK, [1, 0] * 20).to_json())


def test_csv_has_a_line_per_shard_and_reads_back(here, capsys, output_of):
    text = output_of([*SHOW, "--csv"]).out
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == 40
    assert rows[1] == {
        "table": "t01", "devices": "1", "first_row": "0", "end_row": "10", "first_column": "0", "end_column": "4",
        "bytes": "160",
    }  # fmt: skip
    first, *rest = json.loads(output_of([*SHOW, "--json"]).out)["shards"]
    assert first == {"table": "t00", "rows": [0, 10], "columns": [0, 4], "devices": [0], "bytes": 160}
    assert len(rest) == 39
    (here / "a.csv").write_text(text)
    assert main(["plan", "diff", "task.json", "a.json", "a.csv"]) == 0
    assert "0 tables moved, 0 cut differently, 40 the same" in " ".join(capsys.readouterr().out.split())


def test_a_diff_says_whether_the_costs_error_is_smaller(here, output_of):
    (here / "b.json").write_text(ShardingPlan.table_wise(TASK, [0] * 40).to_json())
    said = "the error of 'roofline' for such plans, "
    assert said in " ".join(output_of([*DIFF, "--cost", "roofline"]).out.split())
    page = json.loads(output_of([*DIFF, "--cost", "roofline", "--json"]).out)
    before, after = (PlanCost.from_dict(cost).total_ms for cost in page["costs"])
    assert page["comparison"]["change"] == pytest.approx(after / before - 1)
    assert json.loads(output_of([*DIFF, "--json"]).out)["comparison"] is None


def test_a_diff_says_what_moves(output_of):
    assert "from A to B: 6400 bytes move: 6.2 KiB within fast domains; at least " in output_of(DIFF).out
    page = json.loads(output_of([*DIFF[:4], "a.json", "--json"]).out)
    assert (page["moved_bytes"], page["transfer_ms"]) == ({"intra": 0, "inter": 0, "host": 0}, 0.0)
    assert len(json.loads(output_of([*DIFF, "--json"]).out)["changes"]) == 40


def test_csv_of_an_infeasible_plan_is_exit_code_1(here, output_of):
    (here / "task.json").write_text(dataclasses.replace(TASK, topology=Topology(2, 100)).to_json())
    (here / "a.csv").write_text("table,devices\n" + "".join(f"t{n:02},0\n" for n in range(40)))
    assert output_of(["plan", "show", "task.json", "a.csv", "--csv"], 1).out.count("\n") == 41
