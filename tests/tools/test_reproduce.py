"""tools/reproduce.py and tools/check_leaderboards.py: agreement is told, and what no longer holds is a failure."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

from shardgym.evaluation import read_records

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.repository


def tool(name):
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "tools"))
    return module


@pytest.fixture(scope="module")
def reproduce():
    return tool("reproduce")


@pytest.fixture(scope="module")
def records():
    """Those of the measured board of the README."""
    return read_records(ROOT / "leaderboards" / "quick-v1-fbgemm" / "records.jsonl")


def scaled(records, factor, solvers):
    """Records in which some solvers cost a multiple of what they did."""

    def change(result):
        if result.solver not in solvers:
            return result
        return dataclasses.replace(
            result, cost=dataclasses.replace(result.cost, per_device=result.cost.per_device * factor)
        )

    return [change(result) for result in records]


def test_a_board_agrees_with_itself_and_with_a_slower_machine(reproduce, records, capsys):
    measured = reproduce.PARTS[-1]
    slower = scaled(records, 3.0, reproduce.SOLVERS)
    assert reproduce.compare(measured, records, slower) == []
    told = capsys.readouterr().out
    assert "10 tasks, 70 of 70 plans are the same ones, Kendall's tau of the order of solvers 1.00" in told
    assert told.count(" holds: ") == 10
    assert "1.0000" in told


def test_a_claim_that_no_longer_holds_is_a_failure(reproduce, records):
    dearer = scaled(records, 1.5, ["neuroshard"])
    failed = reproduce.compare(reproduce.PARTS[-1], records, dearer)
    assert any(line.startswith("README: neuroshard is no longer cheaper than size_lookup_greedy") for line in failed)
    assert not any("neuroshard_plus" in line for line in failed)


def test_other_costs_of_equal_plans_are_a_failure_where_costs_are_deterministic(reproduce, records):
    part = reproduce.PARTS[0]
    assert reproduce.compare(part, records, records) == []
    (equal,) = reproduce.compare(part, records, scaled(records, 1.001, ["random"]))
    assert equal == f"{part.board}: 10 equal plans have other costs"
    ratio, _ = reproduce.compare(part, records, scaled(records, 1.1, ["random"]))
    assert ratio.endswith("costs of random are 1.1000 times those of the board")


def test_tasks_that_are_missing_are_told(reproduce, records):
    without = [r for r in records if r.solver != "random"]
    assert reproduce.compare(reproduce.PARTS[-1], records, without) == [
        "quick-v1-fbgemm: no task was solved by all solvers here and there: give it more --minutes"
    ]


def test_boards_are_scored_and_solved_within_a_budget(tmp_path, capsys):
    """The records of the first task alone, and one of them forged."""
    check = tool("check_leaderboards")
    assert len(check.repeatable_boards()) >= 2
    source = ROOT / "leaderboards" / "dlrm4-v1-simulator"
    shutil.copy(source / "run.json", tmp_path)
    lines = (source / "records.jsonl").read_text().splitlines()
    (tmp_path / "records.jsonl").write_text("\n".join(lines[:3]) + "\n")
    command = [str(tmp_path), "--minutes", "0.5", "--no-pages"]
    assert check.main(command) == 0
    assert "partly verified: 3 records, 3 ok" in capsys.readouterr().out
    assert check.main([str(tmp_path), "--minutes", "0", "--no-pages"]) == 0
    assert "3 not solved again: the 0 s for it are over" in capsys.readouterr().out
    forged = json.loads(lines[0]) | {"solver": "dim_greedy"}
    (tmp_path / "records.jsonl").write_text(json.dumps(forged) + "\n")
    assert check.main(command) == 1
    assert "solved again: another plan" in capsys.readouterr().out
