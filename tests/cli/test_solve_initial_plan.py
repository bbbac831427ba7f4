"""shardgym solve --initial-plan: handed to solvers that can start from it, refused for others."""

from __future__ import annotations

import json

import pytest
from evaluation_toys import Halves, toy_tasks

from shardgym import ShardingPlan
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
    (tmp_path / "now.csv").write_text("table,device\nt0,1\nt1,0\nt2,1\nt3,0\n")
    return tmp_path


@pytest.mark.parametrize("solver", ["Keeps", "TakesAnything"])
def test_the_solver_gets_the_plan(solver):
    assert main([*SOLVE, f"test_solve_initial_plan:{solver}", "--initial-plan", "now.csv"]) == 0
    assert ShardingPlan.load("plan.json") == ShardingPlan.table_wise(TASK, [1, 0, 1, 0])


@pytest.mark.parametrize("solver", ["neuroshard", "neuroshard_plus"])
def test_a_search_ends_with_nothing_worse(solver, capsys):
    main(["plan", "show", "task.json", "now.csv", "--cost", "roofline", "--json"])
    now = max(map(sum, json.loads(capsys.readouterr().out)["cost"]["per_device"]))
    assert main([*SOLVE, solver, "--initial-plan", "now.csv", "--json"]) == 0
    assert max(map(sum, json.loads(capsys.readouterr().out)["oracle_cost"]["per_device"])) <= now


def test_a_solver_that_would_not_look_at_it_is_refused(here, capsys):
    assert main([*SOLVE, "size_greedy", "--initial-plan", "now.csv"]) == 2
    assert "--initial-plan: solver 'size_greedy' starts from no plan: leave it out, or" in capsys.readouterr().err
    assert not (here / "plan.json").exists()


def test_a_plan_that_does_not_fit_is_refused(here, capsys):
    (here / "now.csv").write_text("table,device\nt0,0\nt1,0\nt2,0\nt3,0\n")
    assert main([*SOLVE, "neuroshard", "--initial-plan", "now.csv"]) == 2
    assert "--initial-plan now.csv: expected a feasible plan, but device 0 holds 640" in capsys.readouterr().err
