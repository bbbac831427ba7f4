"""How well models order plans that boards measured, and the gate that a judge has to pass."""

import dataclasses
import functools

import numpy as np
import pytest

from shardgym.costs import link_model
from shardgym.leaderboard import load_boards

loaded = functools.cache(lambda *folders: load_boards(folders))


@pytest.fixture(autouse=True)
def boards_are_read_once(tool, monkeypatch):
    monkeypatch.setattr(tool, "load_boards", lambda folders: loaded(*folders))


def test_a_perfect_judge_is_as_good_as_a_repeat_and_a_reversed_one_fails(tool):
    """Two tasks, measured again with the same result."""
    tasks = [
        task._replace(again_ms={plan: cost.total_ms for plan, cost in task.costs.items()})
        for task in tool.measured_tasks()[:2]
    ]
    known = {plan: cost.at_pace(1.0) for task in tasks for plan, cost in task.costs.items()}

    class Known:
        """Knows what was measured, or says the reverse."""

        def __init__(self, sign, version="1"):
            self.sign = sign
            self.version = version

        def evaluate(self, _, plans):
            power = self.sign - 1
            return [
                dataclasses.replace(cost, per_device=cost.per_device * cost.total_ms**power)
                for cost in (known[plan] for plan in plans)
            ]

    *_, of_all = tool.gate(tasks, Known(+1))
    assert (of_all["tasks"], of_all["ahead"], of_all["passes"]) == (2, 0.0, True)
    *_, of_all = tool.gate(tasks, Known(-1))
    assert (of_all["judge"], of_all["passes"]) == (pytest.approx(-1.0), False)
    rows = {row["cost"]: row for row in tool.on_boards(tasks, {"judge": Known(+1)})}  # of all, last
    assert rows["judge"]["tau"] == rows[tool.REPEAT]["tau"] == pytest.approx(1.0)


def test_another_run_of_the_boards_is_kept_as_the_second_measurement(tool, tmp_path, monkeypatch):
    """The run is that of the boards themselves, so both measurements are the same."""
    monkeypatch.setattr(tool, "SECOND", tmp_path / "second.csv")
    tool.SECOND.write_text("suite,task,plan,total_ms,pace\nmine,0,abc,1.5,1.0\n")
    tool.keep_second(tool.LEADERBOARDS / "quick-v2-fbgemm")
    assert tool.SECOND.read_text().endswith("\nmine,0,abc,1.5,1.0\n")
    for task in (task for task in tool.measured_tasks() if task.suite == "quick-v2"):
        assert task.again_ms == {plan: pytest.approx(cost.total_ms, abs=1e-5) for plan, cost in task.costs.items()}


def test_exchanges_pass_on_tasks_that_were_measured_twice_and_those_that_leave_out_waiting_do_not(tool, monkeypatch):
    """Compute is as it was measured, so exchanges alone are predicted."""
    tasks = [task for task in tool.measured_tasks() if task.again_ms]
    assert len(tasks) >= 20
    predicted = tool.MeasuredCompute(tasks)
    *_, of_all = tool.gate(tasks, predicted)
    assert of_all["passes"]
    # Both tables compare the plans that the model prices: this one refuses some.
    (*_, repeat) = (row for row in tool.on_boards(tasks, {"judge": predicted}) if row["cost"] == tool.REPEAT)
    assert repeat["tau"] == pytest.approx(of_all["repeat"])

    def own_link_alone(self, entry_ms):
        """Leave when the device's own link is through, whatever the others have to send."""
        return np.where(True if self.takes_place is None else self.takes_place, entry_ms + self.busy_ms, entry_ms)

    monkeypatch.setattr(link_model._Transfer, "exit_ms", own_link_alone)
    *_, of_all = tool.gate(tasks, predicted)
    assert not of_all["passes"]
