"""What solvers log while people wait is shown on standard error, and not with --json."""

from __future__ import annotations

import json
import logging

import pytest
from evaluation_toys import toy_tasks

from shardgym.cli import main

SOLVER = "remarks_toys:Slow"
COMMANDS = {
    "solve": ["solve", "task.json", "--solver", SOLVER, "-o", "plan.json"],
    "run": ["run", "--suite", "toys.json", "--cost", "roofline", "--oracle", "roofline", "--solver", SOLVER],
    "check-solver": ["check-solver", SOLVER],
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.json").write_text(toy_tasks(1)[0].to_json())
    (tmp_path / "toys.json").write_text(json.dumps([task.to_dict() for task in toy_tasks(1)]))


@pytest.mark.parametrize("command", COMMANDS)
def test_what_takes_long_is_said_on_standard_error(capsys, command):
    main(COMMANDS[command])
    captured = capsys.readouterr()
    assert "shardgym: training first\n" in captured.err
    assert "training first" not in captured.out
    assert "for the author" not in captured.err


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_said_with_json(capsys, command):
    main([*COMMANDS[command], "--json"])
    captured = capsys.readouterr()
    assert "training first" not in captured.err
    json.loads(captured.out)


def test_a_command_leaves_logging_as_it_was():
    logger = logging.getLogger("shardgym")
    before = logger.level, list(logger.handlers)
    main(COMMANDS["solve"])
    assert (logger.level, logger.handlers) == before
