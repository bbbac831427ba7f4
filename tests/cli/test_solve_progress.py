"""What shardgym solve shows on standard error while it waits."""

from __future__ import annotations

import io
import json
import sys
import threading
import time

import pytest
from evaluation_toys import toy_tasks

from shardgym import ShardingPlan
from shardgym.cli import main
from shardgym.cli import solve as solve_module
from shardgym.cli.solve import SolveProgress
from shardgym.progress import log_to_stderr

TASK = toy_tasks(1)[0]
PLAN = ShardingPlan.table_wise(TASK, [0, 0, 1, 1])
HINT = "still solving; --time-limit SECONDS ends"


def told_at(progress: SolveProgress, costs: dict[int, float], until: int) -> None:
    """Look every second; costs are told before the second that they are given for."""
    with log_to_stderr(info=True):
        for second in range(1, until + 1):
            if second in costs:
                progress.observe(PLAN, costs[second])
            progress.update(second)


def test_a_log_gets_a_line_for_a_better_plan_after_ten_seconds_and_else_after_a_minute(capsys):
    told_at(SolveProgress(shown=True), {2: 9.0, 3: 8.0, 11: 7.5, 12: 7.25, 90: 7.0}, until=160)
    assert capsys.readouterr().err.splitlines() == [
        f"shardgym: solving for {seconds} s, best so far {ms:.3f} ms per step"
        for seconds, ms in [(10, 8.0), (20, 7.25), (80, 7.25), (90, 7.0), (150, 7.0)]
    ]


def test_a_solver_that_tells_nothing_is_remarked_on_once(capsys):
    told_at(SolveProgress(shown=True, hint="be patient"), {}, until=100)
    assert capsys.readouterr().err == "shardgym: be patient\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_live_line_that_is_wiped(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    progress = SolveProgress(shown=False, hint="be patient")
    with progress:
        told_at(progress, {16: 5.0}, until=16)
    text = sys.stderr.getvalue()
    before, after = text.split("shardgym: be patient\n")
    assert "solving for 1 s" in before
    assert "solving for 16 s, best so far 5.000 ms per step" in after
    assert "\n" not in before + after
    assert after.rstrip("\r").endswith(" ")


class Slow:
    """Tells of a plan and goes on until that was shown, or as long as a test may take."""

    until = threading.Event()

    def solve(self, task, cost, seed=0, *, time_limit_s=None, observer=None):
        plan = ShardingPlan.table_wise(task, [0, 0, 1, 1])
        if observer is not None:
            observer(plan, 2.0)
        self.until.wait(20)
        return plan


class Silent(Slow):
    """Takes a time limit and tells nothing."""

    def solve(self, task, cost, seed=0, *, time_limit_s=None):
        return super().solve(task, cost, seed)


class Endless(Slow):
    """Cannot be told to end."""

    def solve(self, task, cost, seed=0):
        return super().solve(task, cost, seed)


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """Looks that are due at once; the solver ends after the second."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.json").write_text(TASK.to_json())
    for name in ("BETTER_S", "SILENT_S"):
        monkeypatch.setattr(solve_module, name, 0.0)
    monkeypatch.setattr(solve_module, "UPDATE_S", 0.01)
    monkeypatch.setattr(Slow, "until", threading.Event())
    looks, look = [], SolveProgress.update

    def counted(self, seconds):
        look(self, seconds)
        looks.append(seconds)
        if len(looks) == 2:
            Slow.until.set()

    monkeypatch.setattr(SolveProgress, "update", counted)
    return looks


def solve(solver: str, *more: str) -> int:
    return main(["solve", "task.json", "--solver", f"test_solve_progress:{solver}", "-o", "plan.json", *more])


def test_solve_shows_what_its_solver_tells(quick, capsys):
    assert solve("Slow") == 0
    printed = capsys.readouterr()
    assert printed.err == "shardgym: solving for 0 s, best so far 2.000 ms per step\n"
    assert printed.out.startswith("plan.json: 4 shards")
    assert "shardgym-solve-progress" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    ("solver", "more", "said"),
    [("Silent", [], True), ("Silent", ["--time-limit", "9"], False), ("Endless", [], False)],
)
def test_the_time_limit_is_mentioned_where_it_would_help(quick, capsys, solver, more, said):
    assert solve(solver, *more) == 0
    assert (HINT in capsys.readouterr().err) == said


def test_nothing_is_shown_with_json(quick, capsys):
    Slow.until.set()
    assert solve("Slow", "--json") == 0
    time.sleep(0.05)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert quick == []
    json.loads(printed.out)
