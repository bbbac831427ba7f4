"""Groups of 2D parallelism: possible sizes, and a plan of all groups as a plan of the devices of one group."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.links import ExchangeTimes, group_of
from shardgym.costs.shard_keys import ShardKey
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology


def group_sizes(task: ShardingTask) -> list[int]:
    """Return the sizes of groups that a task allows and that have room for its tables, the largest first.

    A group has whole nodes and at least two devices. There are no sizes if the task does not allow groups, if a step
    counts against memory, or if devices differ in memory.
    """
    devices, domain = task.num_devices, task.topology.fast_domain_size
    if task.group_sync_interval is None or task.step_memory is not None or len(set(task.capacity_bytes)) > 1:
        return []
    sizes = (size for size in range(devices // 2, max(domain, 2) - 1, -1) if devices % size == 0 and size % domain == 0)
    return [size for size in sizes if task.total_bytes <= size * task.capacity_bytes[0]]


def task_of_group(task: ShardingTask, size: int) -> ShardingTask:
    """Return the task of one group of `size` devices, with its share of the samples."""
    return dataclasses.replace(group_of(task, size), group_sync_interval=None, name="")


def plan_of_groups(task: ShardingTask, shards: Iterable[Shard], size: int) -> ShardingPlan:
    """Return the plan in which every group holds these shards of the first one."""
    firsts = range(0, task.num_devices, size)
    held = (
        dataclasses.replace(shard, devices=tuple(sorted(first + d for first in firsts for d in shard.devices)))
        for shard in shards
    )
    return ShardingPlan.of(task, held, size)


class GroupCosts(AdditiveCosts):
    """Prices of the devices of one group within the whole task; all other groups do the same."""

    def __init__(self, costs: AdditiveCosts, task: ShardingTask, size: int) -> None:
        number = costs.add_task(task)
        super().__init__(costs.latents(np.zeros(0, dtype=np.int64)).shape[1])
        self._costs = costs
        self._of = task
        self._number = number
        self._size = size

    def describe(self, task: ShardingTask, keys: Sequence[ShardKey]) -> dict[str, npt.NDArray[Any]]:
        """See `NumberedShards`; the same places of all groups hold each shard."""
        del task
        return self._costs.describe(self._of, [self._in_groups(key) for key in keys])

    def key_loads(self, task: ShardingTask, key: ShardKey) -> list[float]:
        """See `NumberedShards`."""
        del task
        return self._costs.key_loads(self._of, self._in_groups(key))

    def ids_hidden(self, task: ShardingTask) -> bool:
        """See `NumberedShards`."""
        del task
        return self._costs.ids_hidden(self._of)

    def device_ms(self, sums: Floats, counts: Floats) -> Floats:
        """See `AdditiveCosts`."""
        return self._costs.device_ms(sums, counts)

    def operator_ms(self, sums: Floats, counts: Floats) -> Floats:
        """See `AdditiveCosts`."""
        return self._costs.operator_ms(sums, counts)

    def all_to_all_links(self, task: ShardingTask) -> tuple[Topology, int]:
        """See `AdditiveCosts`; returns the links of a group's task."""
        return self._costs.all_to_all_links(task)

    def exchanges_in_groups(self, number: int, groups: int, compute_ms: Floats, loads: Floats) -> ExchangeTimes:
        """See `NumberedShards`; returns the exchanges of a group, and that of weights with the other groups."""
        del number, groups
        return self._costs.exchanges_in_groups(self._number, self._of.num_devices // self._size, compute_ms, loads)

    def _in_groups(self, key: ShardKey) -> ShardKey:
        """Return the key in the whole task; a table that all devices hold stays one."""
        return key if key.served == 1 else key._replace(served=self._size)
