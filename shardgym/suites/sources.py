"""Where the tasks of a suite come from: written down, published models, or drawn (in `drawn.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from shardgym.pools.published import load_model
from shardgym.suites.spec import ListedTasks, PublishedTasks
from shardgym.task import ShardingTask
from shardgym.topology import Topology


class TaskSource(Protocol):
    """Builds the tasks of a suite one by one."""

    def __len__(self) -> int:
        """Tasks in all."""
        ...

    def group(self, index: int) -> str:
        """Name of the group of a task."""
        ...

    def build(self, index: int, name: str) -> ShardingTask:
        """Build a task and give it `name`."""
        ...


class PublishedSource:
    """One task per published model; every model is a group."""

    def __init__(self, spec: PublishedTasks) -> None:
        self._models = spec.models
        self._topologies = [Topology.preset(entry.topology, entry.num_devices) for entry in spec.models]
        for entry in spec.models:
            load_model(entry.model)

    def __len__(self) -> int:
        return len(self._models)

    def group(self, index: int) -> str:
        """Return the model's name."""
        return self._models[index].model

    def build(self, index: int, name: str) -> ShardingTask:
        """Put the model on its devices."""
        model = load_model(self._models[index].model)
        return ShardingTask(
            model.pool.tables, self._topologies[index], model.pool.batch_size, model.precision, model.optimizer, name
        )


class ListedSource:
    """Tasks of one's own, grouped by the number of devices."""

    def __init__(self, tasks: list[tuple[str, Any]], folder: Path) -> None:
        self._tasks = [
            ShardingTask.load(folder / task) if isinstance(task, str) else ShardingTask.from_dict(task, where)
            for where, task in tasks
        ]

    @classmethod
    def of(cls, spec: ListedTasks, path: Path) -> ListedSource:
        """Read the tasks that a suite file lists."""
        return cls([(f"{path}, task {i}", task) for i, task in enumerate(spec.tasks)], path.parent)

    def __len__(self) -> int:
        return len(self._tasks)

    def group(self, index: int) -> str:
        """Return how many devices the task has."""
        return f"{self._tasks[index].num_devices} devices"

    def build(self, index: int, name: str) -> ShardingTask:
        """Return the task under its own name if it has one."""
        task = self._tasks[index]
        if task.name:
            return task
        return ShardingTask(task.tables, task.topology, task.batch_size, task.precision, task.optimizer, name)
