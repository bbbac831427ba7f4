"""PoolTasks: random tasks for training, drawn from the half of a pool that no suite draws from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from shardgym.errors import InputError
from shardgym.suites import load_suite
from shardgym.suites.sources import DrawnSource
from shardgym.task import ShardingTask

#: Tasks of each group of the suite: more than a training run will see.
PER_GROUP = 2**14


class PoolTasks(Sequence[ShardingTask]):
    """Tasks of the train half of a pool, sized like those of a suite. Each is drawn when it is asked for.

    Args:
        pool: name or path of a pool.
        suite: name or path of a suite whose tasks are drawn; its numbers of tables and devices, widths, sizes and
            memory are taken, with its groups in turn.

    Attributes:
        max_devices: devices of a task at most.
        max_tables: tables of a task at most.

    Raises:
        InputError: the suite's tasks are not drawn.
        UnknownNameError: no such pool or suite.
    """

    def __init__(self, pool: str, suite: str) -> None:
        source = load_suite(suite).source
        if not isinstance(source, DrawnSource):
            raise InputError(f"suite '{suite}' is not drawn at random, so it cannot say how to draw tasks from a pool")
        self._name = f"{pool}/train"
        self._source = source.redrawn(pool, "train", PER_GROUP)
        groups = self._source.groups
        self.max_devices = max(group.num_devices for group in groups)
        self.max_tables = max(group.num_tables[1] for group in groups)

    def __len__(self) -> int:
        return len(self._source)

    @overload
    def __getitem__(self, index: int) -> ShardingTask: ...
    @overload
    def __getitem__(self, index: slice) -> list[ShardingTask]: ...
    def __getitem__(self, index: int | slice) -> ShardingTask | list[ShardingTask]:
        positions = range(len(self))[index]
        return self._build(positions) if isinstance(positions, int) else [self._build(i) for i in positions]

    def _build(self, index: int) -> ShardingTask:
        return self._source.build(index, f"{self._name}/{index}")
