"""Solvers that compile or load something do so outside of the time that they solve in."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from evaluation_toys import CountCost, Halves, ToySuite, toy_tasks

from shardgym.cli import main
from shardgym.costs import make_cost
from shardgym.evaluation import evaluate, running_solver
from shardgym.evaluation.solver import make_solver, warm_up

THIS = "test_warm_up:"


class Clock:
    """Goes on when a solver works."""

    now = 0.0


class Warms(Halves):
    """Warms up for 20 s, solves in 1 s."""

    calls: ClassVar[list[str]] = []

    def warm_up(self, task, cost):
        self.calls.append(f"warm up with {task.num_tables} table and {cost.name}")
        Clock.now += 20

    def solve(self, task, cost, seed=0):
        self.calls.append("solve")
        Clock.now += 1
        return super().solve(task, cost)


class Fails(Halves):
    def warm_up(self, task, cost):
        raise OSError("no such weights")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(Warms, "calls", [])
    monkeypatch.setattr(Clock, "now", 0.0)


def run(out, name, **options):
    return evaluate(ToySuite(toy_tasks()), [THIS + name], out=out, judge=CountCost(), oracle="roofline", **options)


def test_a_run_warms_solvers_up_once_and_does_not_count_it(tmp_path, monkeypatch):
    clock = lambda: Clock.now  # noqa: E731
    clocks = SimpleNamespace(perf_counter=clock, process_time=clock, monotonic=clock)
    monkeypatch.setattr(running_solver, "time", clocks)
    results = run(tmp_path, "Warms", isolate=False)
    assert Warms.calls == ["warm up with 1 table and roofline", *["solve"] * len(results)]
    assert [r.solve_time_s for r in results] == [1.0] * len(results)


def test_a_solver_that_cannot_warm_up_fails_with_the_reason(tmp_path):
    """On every task: what it cannot do without warming up, it should not seem to do."""
    assert {(r.status, r.reason) for r in run(tmp_path, "Fails")} == {("error", "OSError: no such weights")}


def test_solve_does_not_count_it_either(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "shardgym.cli.solve.time", SimpleNamespace(perf_counter=lambda: Clock.now, monotonic=lambda: Clock.now)
    )
    (tmp_path / "task.json").write_text(toy_tasks(1)[0].to_json())
    command = ["solve", str(tmp_path / "task.json"), "--solver", THIS + "Warms", "-o", str(tmp_path / "plan.json")]
    assert main([*command, "--oracle", "roofline", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["solve_time_s"] == 1.0
    assert Warms.calls == ["warm up with 1 table and roofline", "solve"]


WARMED_UP = """
import pkgutil
from evaluation_toys import toy_tasks
from shardgym import make_cost, make_solver
from shardgym.evaluation.solver import warm_up
for name, compiled in (
    ("neuroshard", ["grid_search.advance"]),  # what it calls need not be loaded where it is from the cache
    ("neuroshard_plus", ["plus.moves.place", "plus.moves.descend", "plus.moves.best_move"]),
):
    warm_up(make_solver(name), toy_tasks(1)[0], make_cost("simulator"))
    assert all(pkgutil.resolve_name(f"neuroshard.{function}").signatures for function in compiled), name
"""


def test_neuroshard_compiles_before_it_solves():
    """In a process of its own, where nobody has called these functions before."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", WARMED_UP], env=environment, check=True)


@pytest.mark.parametrize("cost", ["simulator", "roofline"])
def test_an_impossible_first_table_is_left_to_the_search(cost):
    task = toy_tasks(1)[0]
    odd = dataclasses.replace(task.tables[0], embedding_dim=6)
    warm_up(make_solver("neuroshard"), dataclasses.replace(task, tables=(odd, *task.tables[1:])), make_cost(cost))
