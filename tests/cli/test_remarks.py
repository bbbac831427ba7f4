"""What solvers log and tell of while people wait is shown on standard error, and not with --json."""

import json
import logging

import pytest
from evaluation_toys import Halves

from shardgym.cli import main
from shardgym.cli import solve as solve_module


class Slow(Halves):
    """Logs that something takes long, and something for its author."""

    def solve(self, task, cost, seed=0):
        logger = logging.getLogger("shardgym.solvers.slow")
        logger.info("training first")
        logger.debug("a figure for the author")
        return super().solve(task, cost, seed)


class Tells(Halves):
    """Tells of a plan twice."""

    def solve(self, task, cost, seed=0, *, observer=None):
        plan = super().solve(task, cost, seed)
        for cost_ms in (3.0, 2.0):
            observer(plan, cost_ms)
        return plan


SOLVE = ["solve", "task.json", "-o", "plan.json", "--solver"]
COMMANDS = {
    "solve": [*SOLVE, "test_remarks:Slow"],
    "run": ["run", "--suite", "task.json", "--cost", "roofline", "--oracle", "roofline", "--solver",
            "test_remarks:Slow"],
    "check-solver": ["check-solver", "test_remarks:Slow"],
}  # fmt: skip


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
    assert main([*SOLVE, "test_remarks:Tells", *more]) == 0
    lines = [f"shardgym: solving for 0 s, best so far {ms:.3f} ms per step" for ms in logged]
    assert capsys.readouterr().err.splitlines() == lines
