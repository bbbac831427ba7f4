"""TaskShards: what placing needs of the tasks that were drawn, as arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from shardgym.arrays import GrowingArrays, Ints
from shardgym.envs.figures import Figures
from shardgym.envs.observation import ObservationBuilder
from shardgym.envs.observation_space import DEVICE_FEATURES, Layout
from shardgym.envs.shards import SplitLimits
from shardgym.envs.vector.features import empty_devices
from shardgym.envs.vector.shard_kinds import ShardKinds
from shardgym.task import ELEMENT_BYTES, ShardingTask

Prepare = Callable[[ShardingTask], tuple[Figures, ObservationBuilder]]


class TaskShards:
    """The tasks, numbered as they were first drawn, and the kinds of shards there are of them.

    Args:
        prepare: gives figures and observations of a task.
        layout: of the observation space.
        limits: how often shards may be halved.

    Attributes:
        kinds: of shards; those of one task lie together.
        tasks: `kind`, `kinds`: first kind and how many; `first`, `count`: the first table in `tables` and how many;
            `batch`: samples; `element_bytes`; `devices`; `capacity`: bytes of devices, -1 where there is none;
            `largest` of them; `bytes`, `dims`, `lookups`: sums over tables; `scale`: what shares of these are relative
            to; `empty`: features of devices that hold nothing; `hash`; `name`.
        tables: `kind` of every task's tables, whole, in the order in which they come up.
        figures: of the tasks.
    """

    def __init__(self, prepare: Prepare, layout: Layout, limits: SplitLimits) -> None:
        self._prepare, self._devices, self._limits = prepare, layout.max_devices, limits
        self._clear()

    def __len__(self) -> int:
        return len(self.figures)

    def slot(self, task: ShardingTask) -> int:
        """Return the number of a task; one that is new is added."""
        key = task.digest, task.name
        if key not in self._slots:
            self._slots[key] = self._add(task)
        return self._slots[key]

    def kinds_of(self, slot: int) -> Ints:
        """Return the kinds of shards of a task."""
        return np.asarray(np.arange(self.tasks["kinds"][slot]) + self.tasks["kind"][slot], dtype=np.int64)

    def keep(self, slots: Ints) -> tuple[Ints, Ints]:
        """Forget all other tasks.

        Args:
            slots: numbers of those to keep.

        Returns:
            Of every old task its new number, and what is added to the kinds of its shards; shape (tasks,).
        """
        figures, first = self.figures, self.tasks["kind"]
        number, shift = np.zeros((2, len(figures)), dtype=np.int64)
        self._clear()
        for slot in np.unique(slots).tolist():
            number[slot] = self.slot(figures[slot].task)
            shift[slot] = self.tasks["kind"][number[slot]] - first[slot]
        return number, shift

    def _clear(self) -> None:
        ints, floats, words = ((), np.int64), ((), np.float64), ((), np.object_)
        self.kinds, self.tables = ShardKinds(self._limits), GrowingArrays(kind=ints)
        self.tasks = GrowingArrays(
            kind=ints, kinds=ints, first=ints, count=ints, batch=floats, element_bytes=floats, devices=ints,
            capacity=((self._devices,), np.int64), largest=floats, bytes=ints, dims=ints, lookups=floats,
            scale=((3,), np.float64), empty=((self._devices, len(DEVICE_FEATURES)), np.float32), hash=words, name=words,
        )  # fmt: skip
        self.figures: list[Figures] = []
        self._slots: dict[tuple[str, str], int] = {}

    def _add(self, task: ShardingTask) -> int:
        figures, builder = self._prepare(task)
        whole = self.kinds.add(figures, builder)
        capacity = np.full(self._devices, -1)
        capacity[: task.num_devices] = figures.capacity
        sums = figures.sizes.sum(), figures.dims.sum(), figures.lookups.sum()
        row: dict[str, Any] = {
            "kind": whole[0], "kinds": len(self.kinds) - whole[0], "first": self.tables.append(kind=whole),
            "count": len(whole), "batch": task.batch_size, "element_bytes": ELEMENT_BYTES[task.precision],
            "devices": task.num_devices, "capacity": capacity, "largest": capacity.max(), "bytes": sums[0],
            "dims": sums[1], "lookups": sums[2], "scale": [sums[0], sums[1], sums[2] or 1.0],
            "empty": empty_devices(capacity), "hash": task.digest, "name": task.name,
        }  # fmt: skip
        self.figures.append(figures)
        return self.tasks.append(**{name: [value] for name, value in row.items()})
