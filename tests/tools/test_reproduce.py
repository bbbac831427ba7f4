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
from shardgym.files import read_lines

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
    return read_records(ROOT / "leaderboards" / "quick-v1-fbgemm" / "records.jsonl.xz")


def scaled(records, factor, solvers):
    """Records in which some solvers cost a multiple of what they did."""

    def change(result):
        if result.solver not in solvers:
            return result
        return dataclasses.replace(
            result, cost=dataclasses.replace(result.cost, per_device=result.cost.per_device * factor)
        )

    return [change(result) for result in records]


@pytest.fixture(scope="module")
def claimed(reproduce):
    """What the README says of that board."""
    return reproduce.readme_tables((ROOT / "README.md").read_text())["quick-v1-fbgemm"]


def outcomes(verdicts):
    return {claim.partition(";")[0]: outcome for outcome, claim in verdicts}


def test_every_table_of_the_readme_is_run_again(reproduce, claimed):
    tables = reproduce.readme_tables((ROOT / "README.md").read_text())
    assert set(tables) <= {part.board for part in reproduce.PARTS}
    assert {row.solver for row in claimed} >= {reproduce.BASE, "neuroshard_plus"}
    assert all(row.ratio > 0 for row in claimed)


def test_a_board_agrees_with_itself_and_with_a_slower_machine(reproduce, records, claimed, capsys):
    slower = scaled(records, 3.0, [row.solver for row in claimed])
    failed, verdicts = reproduce.compare(reproduce.PARTS[-1], records, slower, claimed)
    assert failed == []
    told = capsys.readouterr().out
    assert "10 tasks, 50 of 50 plans are the same ones, Kendall's tau of the order of solvers 1.00" in told
    assert "1.0000" in told
    assert told.count("  holds: ") == len(verdicts)
    orders = [claim.partition(";")[0] for _, claim in verdicts if "is clearly ahead of" in claim]
    assert len(verdicts) == 2 * len(claimed) - 1 + len(orders)
    assert {f"{s} is clearly ahead of random" for s in ("neuroshard", "neuroshard_plus")} <= set(orders)


def test_claims_that_no_longer_hold_fail(reproduce, records, claimed):
    """A solver that is costlier by half loses its ranks and its figure; the others keep theirs."""
    costlier = scaled(records, 1.5, ["neuroshard"])
    found = outcomes(reproduce.compare(reproduce.PARTS[-1], records, costlier, claimed)[1])
    assert found["neuroshard is clearly ahead of random"] == "FAILS"
    assert [outcome for claim, outcome in found.items() if claim.startswith("neuroshard costs ")] == ["FAILS"]
    assert {outcome for claim, outcome in found.items() if not claim.startswith("neuroshard ")} == {"holds"}


def test_failures_that_the_readme_does_not_have_fail(reproduce, records, claimed):
    broken = [
        dataclasses.replace(r, status="error", reason="because", plan=None, cost=None)
        if r.solver == "random" and r.task_index == 3
        else r
        for r in records
    ]
    found = outcomes(reproduce.compare(reproduce.PARTS[-1], records, broken, claimed)[1])
    assert found["random fails on 0 of all tasks"] == "FAILS"
    assert found["lpt fails on 0 of all tasks"] == "holds"


def test_other_costs_of_equal_plans_are_a_failure_where_costs_are_deterministic(reproduce, records):
    part = reproduce.PARTS[0]
    assert reproduce.compare(part, records, records) == ([], [])
    (equal,), _ = reproduce.compare(part, records, scaled(records, 1.001, ["random"]))
    assert equal == f"{part.board}: 10 equal plans have other costs"
    (ratio, _), _ = reproduce.compare(part, records, scaled(records, 1.1, ["random"]))
    assert ratio.endswith("costs of random are 1.1000 times those of the board")


def test_tasks_that_are_missing_are_told(reproduce, records):
    without = [r for r in records if r.solver != "random" or r.task_index < 5]
    assert reproduce.compare(reproduce.PARTS[-1], records, without) == (
        ["quick-v1-fbgemm: 5 tasks were solved by all solvers here and there, expected at least 6: "
         "give it more --minutes"], []
    )  # fmt: skip


def test_a_board_that_the_readme_does_not_show_is_run_by_solvers_with_enough_plans_there(reproduce, records):
    """`random` has plans for 5 of the first 10 tasks, `lpt` for 6, `neuroshard` is not on the board."""
    part = reproduce.PARTS[0]
    fewer = {"random": 5, "lpt": 6, "neuroshard": 0}
    old = [r for r in records if r.task_index < fewer.get(r.solver, 10)]
    old += [dataclasses.replace(r, task_index=r.task_index + 10) for r in records if r.solver == "random"]
    chosen = [solver for solver in reproduce.SOLVERS if solver not in ("random", "neuroshard")]
    assert reproduce.solvers_of(part, old, ()) == chosen
    assert reproduce.compare(part, old, old) == ([], [])
    with pytest.raises(reproduce.InputError, match="has plans for 6 of the tasks on the board"):
        reproduce.solvers_of(part, [r for r in records if r.task_index < 5], ())


def test_the_verdict_is_of_all_claims_and_boards(reproduce, records, monkeypatch, capsys):
    """Runs hand back the boards' own records, or end with an error."""
    monkeypatch.setattr(reproduce, "run_again", lambda part, solvers, out, seconds: [])
    monkeypatch.setattr(reproduce, "read_records", lambda path: records)
    assert reproduce.main(["--board", "quick-v1-fbgemm"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "reproduced"
    assert out.splitlines()[-2].endswith(" holds, 0 open, 0 FAILS")
    monkeypatch.setattr(reproduce, "run_again", lambda part, *rest: [f"{part.board}: the run ended with exit code 2"])
    assert reproduce.main(["--board", "quick-v1-fbgemm"]) == 1
    assert "ended with exit code 2" in capsys.readouterr().out
    monkeypatch.setattr(reproduce, "PARTS", reproduce.PARTS[:0])
    assert reproduce.main([]) == 1
    assert "README: no part runs quick-v1-fbgemm again" in capsys.readouterr().out


def test_a_run_that_cannot_be_made_or_takes_too_long_is_ended(reproduce, tmp_path, monkeypatch):
    """A program that sleeps stands for it; a judge that does not exist is refused at once."""
    part = reproduce.PARTS[-1]
    script = tmp_path / "sleeps"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(reproduce.sys, "executable", str(script))
    assert reproduce.run_again(part, ["random"], tmp_path / "out", 0.2) == []
    script.write_text("#!/bin/sh\nexit 2\n")
    assert reproduce.run_again(part, ["random"], tmp_path / "out", 60) == [
        "quick-v1-fbgemm: the run ended with exit code 2"
    ]


def test_boards_are_scored_and_a_sample_is_solved(tmp_path, capsys, monkeypatch):
    """The records of the first task alone, and one of them forged."""
    check = tool("check_leaderboards")
    assert len(check.repeatable_boards()) >= 2
    source = ROOT / "leaderboards" / "dlrm4-v2-simulator"
    shutil.copy(source / "run.json", tmp_path)
    lines = [line.text.decode() for line in read_lines(source / "records.jsonl.xz")]
    (tmp_path / "records.jsonl").write_text("\n".join(lines[:3]) + "\n")
    command = [str(tmp_path), "--no-pages"]
    assert check.main(command) == 0
    assert "partly verified: 3 records, 3 ok" in capsys.readouterr().out
    monkeypatch.setattr(check, "SAMPLE", 1)
    assert check.main(command) == 0
    assert "2 not solved again: not among the 1 of a file that were chosen" in capsys.readouterr().out
    assert check.main([*command, "--all"]) == 0
    assert "not solved again" not in capsys.readouterr().out
    forged = json.loads(lines[0]) | {"solver": "dim_greedy"}
    (tmp_path / "records.jsonl").write_text(json.dumps(forged) + "\n")
    assert check.main(command) == 1
    assert "plans made again cost " in capsys.readouterr().out
