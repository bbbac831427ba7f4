"""solve --initial-plan, and what Ctrl-C leaves."""

from __future__ import annotations

import json

import pytest
from evaluation_toys import Halves, toy_tasks

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology
from shardgym.cli import main

TASK = toy_tasks(1)[0]
SOLVE = ["solve", "task.json", "-o", "plan.json", "--solver"]


class Keeps:
    """Returns what it starts from."""

    def solve(self, task, cost, seed=0, *, initial_plan=None):
        return initial_plan


class TakesAnything(Halves):
    """Takes options by any name."""

    def solve(self, task, cost, seed=0, **options):
        assert set(options) == {"initial_plan", "observer"}
        return options["initial_plan"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A current folder with a task and what is in use now."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.json").write_text(TASK.to_json())
    (tmp_path / "now.csv").write_text("table,devices\nt0,1\nt1,0\nt2,1\nt3,0\n")
    return tmp_path


@pytest.mark.parametrize("solver", ["Keeps", "TakesAnything"])
def test_the_solver_gets_the_plan(solver):
    assert main([*SOLVE, f"test_solve:{solver}", "--initial-plan", "now.csv"]) == 0
    assert ShardingPlan.load("plan.json") == ShardingPlan.table_wise(TASK, [1, 0, 1, 0])


def test_a_solver_that_would_not_look_at_it_is_refused(here, capsys):
    assert main([*SOLVE, "size_greedy", "--initial-plan", "now.csv"]) == 2
    assert "--initial-plan: solver 'size_greedy' starts from no plan: leave it out, or" in capsys.readouterr().err
    assert not (here / "plan.json").exists()


def test_a_plan_that_does_not_fit_is_refused(here, capsys):
    (here / "now.csv").write_text("table,devices\nt0,0\nt1,0\nt2,0\nt3,0\n")
    assert main([*SOLVE, "neuroshard", "--initial-plan", "now.csv"]) == 2
    assert "--initial-plan now.csv: expected a feasible plan, but device 0 holds 640" in capsys.readouterr().err


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


def solve_by(solver: str, *more: str) -> int:
    return main(["solve", "task.json", "--solver", solver, "-o", "plan.json", *more])


def solve(solver: str, *more: str) -> int:
    return solve_by(f"test_solve:{solver}", *more)


def test_the_best_plan_so_far_is_written(here, capsys):
    assert solve("Improves") == 1
    task = ShardingTask.load("task.json")
    assert ShardingPlan.load("plan.json") == ShardingPlan.table_wise(task, [0, 0, 1, 1])
    printed = capsys.readouterr()
    assert printed.err == "interrupted: this is the best plan so far\n"
    assert "plan.json: " in printed.out


def test_without_any_plan_it_is_interrupted_as_ever(here, capsys):
    assert solve("TellsNothing") == 130
    assert capsys.readouterr().err == "shardgym: error: interrupted\n"
    assert not (here / "plan.json").exists()


def test_a_plan_that_is_not_feasible_is_not_written(here):
    assert solve("Overfills") == 1
    assert not (here / "plan.json").exists()


def test_neuroshard_tells_of_its_plans(here, monkeypatch):
    """Six steps place the uncut tables; the interrupt comes in the next level."""
    checks = iter(range(100))

    def check(self):
        if next(checks) == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr("shardgym.evaluation.incumbent.Budget.check", check)
    tables = tuple(EmbeddingTable(f"t{n}", 1000, 64, pooling_factor=1.0 + n) for n in range(6))
    task = ShardingTask(tables, Topology(num_devices=2, memory_bytes=2**30), batch_size=64)
    (here / "task.json").write_text(task.to_json())
    assert solve_by("neuroshard") == 1
    ShardingPlan.load("plan.json").validate(task)


def test_the_document_is_printed_too(here, capsys):
    assert solve("Improves", "--json") == 1
    assert json.loads(capsys.readouterr().out)["plan"] == "plan.json"


class Tiers:
    """Puts the first rows of a table on all devices and the others on one, which `replay` alone prices."""

    def solve(self, task, cost, seed=0):
        tables = [
            Shard(table.name, (0, table.num_embeddings), (0, 4), n % 2) for n, table in enumerate(task.tables) if n
        ]
        first = task.tables[0]
        popular = Shard(first.name, (0, 2), (0, 4), range(task.num_devices))
        return ShardingPlan.of(task, [popular, Shard(first.name, (2, first.num_embeddings), (0, 4), 0), *tables])


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_plan_that_the_oracle_does_not_price_is_written_and_the_reason_told(here, capsys, more):
    assert solve("Tiers", *more) == 1
    assert ShardingPlan.load("plan.json").has_replicas
    printed = capsys.readouterr()
    told = printed.err.splitlines()
    assert len(told) == 1
    assert told[0].startswith(
        "shardgym: roofline does not price the plan, which is in plan.json: table 't0' is in tiers"
    )
    assert told[0].endswith("; give --oracle replay,ids=expected")
    assert "inf" not in printed.out
    assert more or "without a cost" in printed.out


def test_an_oracle_that_prices_it_gives_no_such_reason(here, capsys):
    assert solve("Tiers", "--oracle", "replay,ids=expected") == 0
    printed = capsys.readouterr()
    assert "ms per step by replay" in printed.out
    assert "price" not in printed.err
