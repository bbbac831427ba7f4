"""What shardgym solve logs of better plans while it waits."""

from __future__ import annotations

import pytest
from evaluation_toys import toy_tasks

from shardgym import ShardingPlan
from shardgym.cli import main
from shardgym.cli import solve as solve_module

TASK = toy_tasks(1)[0]
PLAN = ShardingPlan.table_wise(TASK, [0, 0, 1, 1])


class Tells:
    """Tells of a plan twice."""

    def solve(self, task, cost, seed=0, *, observer=None):
        for cost_ms in (3.0, 2.0):
            observer(PLAN, cost_ms)
        return PLAN


@pytest.mark.parametrize(
    ("pause_s", "more", "logged"),
    [(0.0, [], [3.0, 2.0]), (60.0, [], []), (0.0, ["--json"], [])],
)
def test_better_plans_are_logged_now_and_then_and_not_with_json(tmp_path, monkeypatch, capsys, pause_s, more, logged):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(solve_module, "PAUSE_S", pause_s)
    (tmp_path / "task.json").write_text(TASK.to_json())
    assert main(["solve", "task.json", "--solver", "test_solve_progress:Tells", "-o", "plan.json", *more]) == 0
    lines = [f"shardgym: solving for 0 s, best so far {ms:.3f} ms per step" for ms in logged]
    assert capsys.readouterr().err.splitlines() == lines
