"""tools/reproduce.py and tools/check_leaderboards.py: what no longer agrees is a failure."""

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from shardgym.evaluation import read_records
from shardgym.files import read_lines

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def records():
    return read_records(ROOT / "leaderboards" / "quick-v2-fbgemm" / "records.jsonl.xz")


def scaled(records, factor, solvers):
    """Records in which some solvers cost a multiple of what they did."""
    return [
        dataclasses.replace(r, cost=dataclasses.replace(r.cost, per_device=r.cost.per_device * factor))
        if r.solver in solvers
        else r
        for r in records
    ]


def test_a_board_agrees_with_itself_and_a_measured_one_with_a_slower_machine(tool, records):
    slower = scaled(records, 3.0, {r.solver for r in records})
    simulated, _, measured = tool.PARTS
    assert tool.compare(simulated, records, records) == tool.compare(measured, records, slower) == []
    assert len(tool.compare(simulated, records, slower)) == len({r.solver for r in records})
    fewer = [r for r in records if r.solver != "random" or r.task_index < 5]
    few = ["quick-v2: random has 5 tasks in common, expected at least 6"]
    assert tool.compare(measured, records, fewer) == few


def test_a_solver_that_finds_no_plan_any_more_fails(tool, records):
    part = tool.PARTS[2]
    gone = [
        dataclasses.replace(r, status="infeasible", plan=None, cost=None, reason="no room") if r.solver == "lpt" else r
        for r in records
    ]
    assert "quick-v2: lpt has 0 tasks in common, expected at least 6" in tool.compare(part, records, gone)


def test_only_the_measured_run_ends_when_its_time_is_over(tool, monkeypatch, tmp_path):
    waits = []

    class Program(contextlib.nullcontext):
        def wait(self, seconds):
            waits.append(seconds)
            return 0

        def __enter__(self):
            return self

    monkeypatch.setattr(tool.subprocess, "Popen", Program)
    for part in tool.PARTS:
        assert tool.run_again(part, tmp_path, 60.0) == []
    assert waits == [None, None, None, None, 60.0, None]


@pytest.mark.parametrize(("number", "factor"), [(0, 1.02), (2, 1.5)])
def test_other_costs_of_a_solver_fail(tool, records, number, factor):
    part = tool.PARTS[number]
    found = tool.compare(part, records, scaled(records, factor, {"neuroshard"}))
    assert found == [f"{part.suite}: costs of neuroshard are {factor:.3f} times those of the board"]


def test_runs_that_fail_and_records_that_differ_are_not_reproduced(tool, monkeypatch, tmp_path, capsys):
    """A solver without a search on one task, run and verified; then the program that runs it fails."""
    part = tool.Part("dlrm4-v2", "simulator", 1, 0.01)
    monkeypatch.setattr(tool, "PARTS", (part,))
    monkeypatch.setattr(tool, "load_suite", lambda name: type("Suite", (), {"solvers": ["lpt"]}))
    assert tool.main(["--out", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "dlrm4-v2: lpt has 1 tasks in common" in out
    assert "exit code" not in out
    monkeypatch.setattr(tool.sys, "executable", "false")
    assert tool.run_again(part, tmp_path, 60)[0] == f"{tmp_path.name}: 'shardgym run' ended with exit code 1"


def test_boards_are_scored_again(script, tmp_path, capsys):
    check = script("check_leaderboards")
    source = ROOT / "leaderboards" / "dlrm4-v2-simulator"
    shutil.copy(source / "run.json", tmp_path)
    lines = [line.text.decode() for line in read_lines(source / "records.jsonl.xz")]
    (tmp_path / "records.jsonl").write_text("\n".join(lines[:3]) + "\n")
    command = [str(tmp_path), "--no-pages"]
    assert check.main(command) == 0
    assert "verified: 3 of 3 records" in capsys.readouterr().out
    forged = json.loads(lines[0])
    forged["cost"]["per_device"][0][1] *= 2
    (tmp_path / "records.jsonl").write_text(json.dumps(forged) + "\n")
    assert check.main(command) == 1
    assert "NOT in order" in capsys.readouterr().out
