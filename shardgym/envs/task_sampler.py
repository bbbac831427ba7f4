"""TaskSampler: which task an episode is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardgym.errors import InputError, UnknownNameError
from shardgym.records import shown
from shardgym.task import ShardingTask

DEFAULT_SUITE = "quick-v1"
OPTIONS = ("task", "task_index")

#: `task_index` of a task that is not one of the sequence.
NO_INDEX = -1


class TaskSampler:
    """A sequence of tasks, drawn from uniformly unless a task is asked for.

    Args:
        suite: name of a suite; `DEFAULT_SUITE` when neither is given.
        tasks: tasks of one's own instead of a suite.
        max_devices: what tasks are bounded by; the largest number of devices in the sequence when not given.

    Raises:
        InputError: both or no tasks given, or a task with more than `max_devices` devices.
        UnknownNameError: no such suite.
    """

    def __init__(
        self, suite: str | None, tasks: Sequence[ShardingTask] | None, max_devices: int | None = None
    ) -> None:
        if suite is not None and tasks is not None:
            raise InputError("expected a suite or tasks, got both: leave one out")
        self._tasks = _load(suite or DEFAULT_SUITE) if tasks is None else tasks
        if not len(self._tasks):
            raise InputError("expected at least one task, got none")
        self.max_devices = max_devices or max(task.num_devices for task in self._tasks)

    def pick(self, rng: np.random.Generator, options: Mapping[str, Any] | None) -> tuple[int, ShardingTask]:
        """Return index and task: those that `options` asks for, or drawn uniformly.

        Args:
            rng: drawn from only when no task is asked for.
            options: {"task_index": int}, {"task": ShardingTask} or nothing.

        Raises:
            InputError: options that are unknown, contradict each other, or name a task that is out of range.
        """
        given = dict(options or {})
        for name in given:
            if name not in OPTIONS:
                raise UnknownNameError("reset option", str(name), OPTIONS)
        if len(given) > 1:
            raise InputError("expected one of the reset options task and task_index, got both")
        if "task" in given:
            return NO_INDEX, self._checked(given["task"])
        index = int(rng.integers(len(self._tasks))) if not given else self._index(given["task_index"])
        return index, self._checked(self._tasks[index])

    def _index(self, index: Any) -> int:
        if not isinstance(index, int | np.integer) or not 0 <= index < len(self._tasks):
            raise InputError(f"task_index {shown(index)} is out of range: expected 0 to {len(self._tasks) - 1}")
        return int(index)

    def _checked(self, task: Any) -> ShardingTask:
        if not isinstance(task, ShardingTask):
            raise InputError(f"expected a ShardingTask, got {type(task).__name__}")
        if task.num_devices > self.max_devices:
            raise InputError(
                f"task '{task.name}' has {task.num_devices} devices, the environment was made for at most "
                f"{self.max_devices}: make it with max_devices={task.num_devices}"
            )
        return task


def _load(suite: str) -> Sequence[ShardingTask]:
    from shardgym.suites import load_suite

    return load_suite(suite)
