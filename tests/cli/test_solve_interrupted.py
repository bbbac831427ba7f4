"""shardgym solve on Ctrl-C: the best plan so far is not lost."""

from __future__ import annotations

import json

import pytest
from evaluation_toys import toy_tasks

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology
from shardgym.cli import main


class Improves:
    """Tells of two plans, the second better, and is interrupted."""

    def solve(self, task, cost, seed=0, observer=None):
        for cost_ms, devices in (3.0, [0, 0, 0, 1]), (2.0, [0, 0, 1, 1]):
            observer(ShardingPlan.table_wise(task, devices), cost_ms)
        raise KeyboardInterrupt


class TellsNothing:
    """Is interrupted before it has a plan."""

    def solve(self, task, cost, seed=0, observer=None):
        raise KeyboardInterrupt


class Overfills(Improves):
    """Tells of a plan that no task allows: its columns are missing."""

    def solve(self, task, cost, seed=0, observer=None):
        observer(ShardingPlan(task_hash=task.digest, shards=()), 1.0)
        raise KeyboardInterrupt


class TellsNumbers:
    """Tells its observer of a step instead of a plan."""

    def solve(self, task, cost, seed=0, observer=None):
        observer(3, 1.0)
        raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty current folder with a task file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.json").write_text(toy_tasks(1)[0].to_json())
    return tmp_path


def solve_by(solver: str, *more: str) -> int:
    return main(["solve", "task.json", "--solver", solver, "-o", "plan.json", *more])


def solve(solver: str, *more: str) -> int:
    return solve_by(f"test_solve_interrupted:{solver}", *more)


def test_the_best_plan_so_far_is_written(here, capsys):
    assert solve("Improves") == 1
    task = ShardingTask.load("task.json")
    assert ShardingPlan.load("plan.json") == ShardingPlan.table_wise(task, [0, 0, 1, 1])
    printed = capsys.readouterr()
    assert printed.err == "interrupted: this is the best plan so far\n"
    assert "plan.json: " in printed.out


def test_the_document_is_printed_too(here, capsys):
    assert solve("Improves", "--json") == 1
    assert json.loads(capsys.readouterr().out)["plan"] == "plan.json"


def test_without_any_plan_it_is_interrupted_as_ever(here, capsys):
    assert solve("TellsNothing") == 130
    assert capsys.readouterr().err == "shardgym: error: interrupted\n"
    assert not (here / "plan.json").exists()


def test_a_plan_that_is_not_feasible_is_not_written(here):
    assert solve("Overfills") == 1
    assert not (here / "plan.json").exists()


def test_what_is_no_plan_is_not_taken_for_one(here, capsys):
    assert solve("TellsNumbers") == 2
    assert capsys.readouterr().err == (
        "shardgym: error: what the solver tells its observer: expected a ShardingPlan, got int 3; "
        "observer(plan, cost_ms) takes a plan\n"
    )


def test_neuroshard_tells_of_its_plans(here, monkeypatch):
    """Six steps place the uncut tables; the interrupt comes in the next level."""
    checks = iter(range(100))

    def check(self):
        if next(checks) == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr("neuroshard.budget.Budget.check", check)
    tables = tuple(EmbeddingTable(f"t{n}", 1000, 64, pooling_factor=1.0 + n) for n in range(6))
    task = ShardingTask(tables, Topology(num_devices=2, memory_bytes=2**30), batch_size=64)
    (here / "task.json").write_text(task.to_json())
    assert solve_by("neuroshard") == 1
    ShardingPlan.load("plan.json").validate(task)
