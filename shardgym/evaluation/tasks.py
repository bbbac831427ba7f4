"""Finding the task of a record: in a suite that comes with shardgym, or in the `tasks` folder next to the record."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shardgym.errors import InputError
from shardgym.evaluation.result import Result
from shardgym.files import make_folder, write_whole
from shardgym.task import ShardingTask

TASKS = "tasks"


class Tasks(Protocol):
    """What a run needs of a suite: a name, and tasks by position."""

    @property
    def name(self) -> str:
        """Name of the suite, version included."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> ShardingTask: ...


@functools.cache
def shipped(name: str) -> Sequence[ShardingTask] | None:
    """Return the suite of this name that comes with shardgym; None when there is none."""
    from shardgym.suites import load_suite, suite_names

    return load_suite(name) if name in suite_names() else None


def keep_task(folder: Path, suite: Tasks, index: int, task: ShardingTask) -> None:
    """Write a task next to its records unless it comes with shardgym.

    Raises:
        InputError: a suite has the name, but not the tasks, of one that comes with shardgym.
    """
    known = shipped(suite.name)
    if known is None:
        path = folder / TASKS / f"{task.digest}.json"
        if not path.exists():
            make_folder(path.parent)
            write_whole(path, task.to_json() + "\n")
    elif index >= len(known) or known[index].digest != task.digest:
        raise InputError(f"suite '{suite.name}' differs from the suite of that name in shardgym: give it another name")


def task_of(result: Result, folder: Path) -> ShardingTask:
    """Return the task that a record in `folder` is about.

    Raises:
        InputError: no task is at hand that has the record's hash.
    """
    known = shipped(result.suite)
    if known is None:
        return _kept_task(result, folder / TASKS / f"{result.task_hash}.json")
    if result.task_index >= len(known):
        raise InputError(f"suite '{result.suite}' has {len(known)} tasks, the record is about task {result.task_index}")
    task = known[result.task_index]
    if task.digest != result.task_hash:
        raise InputError(
            f"task {result.task_index} of suite '{result.suite}' is {task.digest[:12]}, "
            f"the record is about {result.task_hash[:12]}"
        )
    return task


def _kept_task(result: Result, path: Path) -> ShardingTask:
    if not path.exists():
        raise InputError(f"suite '{result.suite}' does not come with shardgym and {path} is missing")
    task = ShardingTask.load(path)
    if task.digest != result.task_hash:
        raise InputError(f"{path} holds task {task.digest[:12]}, not what its name says")
    return task
