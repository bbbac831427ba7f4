"""solve --initial-plan, what Ctrl-C leaves, and what solvers log and tell of while people wait."""

import json
import logging

import pytest
from evaluation_toys import Halves, toy_tasks

from shardgym import Shard, ShardingPlan
from shardgym.cli import main
from shardgym.cli import solve as solve_module

TASK = toy_tasks(1)[0]
SOLVE = ["solve", "task.json", "-o", "plan.json", "--solver"]


class Keeps:
    def solve(self, task, cost, seed=0, *, initial_plan=None):
        return initial_plan


class TakesAnything(Halves):
    def solve(self, task, cost, seed=0, **options):
        assert set(options) == {"initial_plan", "observer"}
        return options["initial_plan"]


@pytest.mark.parametrize("solver", ["Keeps", "TakesAnything"])
def test_the_solver_gets_the_plan_and_what_moves_is_said(here, output_of, solver):
    (here / "now.csv").write_text("table,devices\nt0,1\nt1,0\nt2,1\nt3,0\n")
    command = [*SOLVE, f"test_solve:{solver}", "--initial-plan", "now.csv"]
    assert "nothing moves" in output_of(command).out
    assert ShardingPlan.load("plan.json") == ShardingPlan.table_wise(TASK, [1, 0, 1, 0])
    assert json.loads(output_of([*command, "--force", "--json"]).out)["moved"] == {"intra": 0, "inter": 0, "host": 0}


@pytest.mark.parametrize(
    ("solver", "devices", "message"),
    [
        ("size_greedy", [0, 0, 1, 1], "solver 'size_greedy' cannot start from a plan: leave it out"),
        ("neuroshard", [0, 0, 0, 0], "now.csv: expected a feasible plan, but device 0 holds 640"),
    ],
)
def test_a_plan_that_nothing_starts_from_is_refused(here, capsys, solver, devices, message):
    lines = ["table,devices", *(f"t{n},{device}" for n, device in enumerate(devices))]
    (here / "now.csv").write_text("\n".join(lines))
    assert main([*SOLVE, solver, "--initial-plan", "now.csv"]) == 2
    assert f"--initial-plan: {message}".replace(": now.csv", " now.csv") in capsys.readouterr().err
    assert not (here / "plan.json").exists()


class Improves:
    """Tells of two plans, the second better, and is interrupted."""

    def solve(self, task, cost, seed=0, observer=None):
        for cost_ms, devices in (3.0, [0, 0, 0, 1]), (2.0, [0, 0, 1, 1]):
            observer(ShardingPlan.table_wise(task, devices), cost_ms)
        raise KeyboardInterrupt


class TellsNothing:
    def solve(self, task, cost, seed=0):
        raise KeyboardInterrupt


class Overfills:
    """Tells of a plan that no task allows: its columns are missing."""

    def solve(self, task, cost, seed=0, observer=None):
        observer(ShardingPlan(task_hash=task.digest, shards=()), 1.0)
        raise KeyboardInterrupt


def solve(solver: str, *more: str) -> int:
    return main([*SOLVE, f"test_solve:{solver}", *more])


def test_ctrl_c_leaves_the_best_plan_so_far_if_there_is_one(here, capsys):
    assert solve("Overfills") == 1
    assert solve("TellsNothing") == 130
    assert capsys.readouterr().err.endswith("shardgym: error: interrupted\n")
    assert not (here / "plan.json").exists()
    assert solve("Improves") == 1
    assert ShardingPlan.load("plan.json") == ShardingPlan.table_wise(TASK, [0, 0, 1, 1])
    printed = capsys.readouterr()
    assert printed.err == "interrupted: this is the best plan so far\n"
    assert "plan.json: " in printed.out
    assert solve("Improves", "--force", "--json") == 1
    assert json.loads(capsys.readouterr().out)["plan"] == "plan.json"


class Tiers:
    """Puts the first rows of a table on all devices and the others on one, which `replay` alone prices."""

    def solve(self, task, cost, seed=0):
        tables = [Shard.whole(table, n % 2) for n, table in enumerate(task.tables) if n]
        first = task.tables[0]
        popular = Shard(first.name, (0, 2), (0, 4), range(task.num_devices))
        return ShardingPlan.of(task, [popular, Shard(first.name, (2, first.num_embeddings), (0, 4), 0), *tables])


def test_a_plan_that_the_oracle_does_not_price_is_written_and_the_reason_told(capsys):
    for more in ([], ["--force", "--json"]):
        assert solve("Tiers", *more) == 1
        assert ShardingPlan.load("plan.json").has_replicas
        printed = capsys.readouterr()
        (told,) = printed.err.splitlines()
        said = "shardgym: plan.json holds the plan, but roofline cannot price it: table 't0' is in tiers"
        assert told.startswith(said)
        assert told.endswith("; give --oracle replay,ids=expected")
        assert "inf" not in printed.out
        assert more or "without a cost" in printed.out
    assert solve("Tiers", "--force", "--oracle", "replay,ids=expected") == 0
    printed = capsys.readouterr()
    assert "ms per step by replay" in printed.out
    assert "price" not in printed.err


class Slow(Halves):
    """Logs that something takes long, and something for its author."""

    def solve(self, task, cost, seed=0):
        logger = logging.getLogger("shardgym.solvers.slow")
        logger.info("training first")
        logger.debug("a figure for the author")
        return super().solve(task, cost, seed)


class Tells(Halves):
    def solve(self, task, cost, seed=0, *, observer=None):
        plan = super().solve(task, cost, seed)
        for cost_ms in (3.0, 2.0):
            observer(plan, cost_ms)
        return plan


COMMANDS = {
    "solve": [*SOLVE, "test_solve:Slow"],
    "run": ["run", "--suite", "task.json", "--cost", "roofline", "--oracle", "roofline", "--solver", "test_solve:Slow"],
    "check-solver": ["check-solver", "test_solve:Slow"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_takes_long_is_said_on_standard_error_and_not_with_json(capsys, command):
    logger = logging.getLogger("shardgym")
    before = logger.level, list(logger.handlers)
    main(COMMANDS[command])
    captured = capsys.readouterr()
    assert "shardgym: training first\n" in captured.err
    assert "training first" not in captured.out
    assert "for the author" not in captured.err
    main([*COMMANDS[command], *(["--force"] if command == "solve" else []), "--json"])
    captured = capsys.readouterr()
    assert "training first" not in captured.err
    json.loads(captured.out)
    assert (logger.level, logger.handlers) == before


@pytest.mark.parametrize(("pause_s", "more", "logged"), [(0.0, [], [3.0, 2.0]), (60.0, [], []), (0.0, ["--json"], [])])
def test_better_plans_are_logged_now_and_then_and_not_with_json(monkeypatch, capsys, pause_s, more, logged):
    monkeypatch.setattr(solve_module, "PAUSE_S", pause_s)
    assert main([*SOLVE, "test_solve:Tells", *more]) == 0
    lines = [f"shardgym: solving for 0 s, best so far {ms:.3f} ms per step" for ms in logged]
    assert capsys.readouterr().err.splitlines() == lines
