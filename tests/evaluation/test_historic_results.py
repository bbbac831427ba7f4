"""Record files of every schema that was ever released are read by today's code: tests/historic_results.

Each is named by its schema, and results by the commit that wrote them, too: fields were added within a schema.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardgym import EmbeddingTable, PlanCost, ShardingPlan, ShardingTask, Topology
from shardgym.evaluation.result import Result, RunInfo, read_records
from shardgym.leaderboard import load_boards, rank, render

FOLDER = Path(__file__).parents[1] / "historic_results"
RECORDS = {
    "table": EmbeddingTable,
    "topology": Topology,
    "task": ShardingTask,
    "plan": ShardingPlan,
    "plan_cost": PlanCost,
}
FILES = sorted(FOLDER.glob("*.json"))
RESULTS = sorted(FOLDER.glob("result-*"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_record_is_read_and_says_the_same(file):
    kind, number = file.stem.rsplit("-", 1)
    record = RECORDS[kind].load(file)
    assert record.schema == f"shardgym.{kind}/{number}"
    stored = json.loads(file.read_text())
    written = record.to_dict()
    assert {name: written[name] for name in stored} == stored


def test_the_identity_of_a_task_and_the_feasibility_of_its_plan_stay():
    task = ShardingTask.load(FOLDER / "task-1.json")
    plan = ShardingPlan.load(FOLDER / "plan-1.json")
    assert plan.task_hash == task.digest
    plan.validate(task)


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_results_are_read_and_say_the_same(folder):
    lines = (folder / "records.jsonl").read_text().splitlines()
    results = read_records(folder / "records.jsonl")
    assert len(results) == len(lines) > 1
    for result, line in zip(results, lines, strict=True):
        stored = json.loads(line)
        written = result.to_dict()
        assert {name: written[name] for name in stored} == stored


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_results_still_make_a_board(folder):
    rankings = [rank(board) for board in load_boards([folder])]
    assert "| dim_greedy " in render(rankings, "md") or "| dreamshard " in render(rankings, "md")


def test_every_released_schema_of_these_records_has_a_file():
    """Whoever adds a version adds a file that the last release wrote."""
    schemas = {json.loads(file.read_text())["schema"] for file in FILES}
    for folder in RESULTS:
        schemas |= {json.loads(line)["schema"] for line in (folder / "records.jsonl").read_text().splitlines()}
        schemas |= {json.loads(file.read_text())["schema"] for file in folder.glob("run.json")}
    for record in (*RECORDS.values(), Result, RunInfo):
        kind, number = record.schema.rsplit("/", 1)
        assert {f"{kind}/{version}" for version in range(1, int(number) + 1)} <= schemas
