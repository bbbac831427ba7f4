"""Placing tables whole, one after another, on devices that have room: what the heuristics share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from shardgym.arrays import Ints
from shardgym.errors import NoFeasiblePlanError
from shardgym.plan import COLUMN_UNIT, ShardingPlan
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask

#: Chooses among devices with room: (table's position, its bytes, devices with room in ascending order) -> device.
Choice = Callable[[int, int, Ints], int]


def place(task: ShardingTask, order: Iterable[int], choose: Choice) -> ShardingPlan:
    """Place tables whole in the given order, each on a device with room for it.

    Args:
        task: what to place.
        order: every position in `task.tables` once.
        choose: picks the device.

    Raises:
        NoFeasiblePlanError: a table fits nowhere, or no plan can hold it.
    """
    room = np.array(task.topology.memory_bytes, dtype=np.int64)
    devices = [0] * task.num_tables
    for position in order:
        table = task.tables[position]
        check_width(table)
        size = task.table_bytes(table)
        fitting = np.flatnonzero(room >= size)
        if not fitting.size:
            raise fits_nowhere(table, size, room)
        devices[position] = device = choose(position, size, fitting)
        room[device] -= size
    return ShardingPlan.table_wise(task, devices)


def place_greedily(task: ShardingTask, costs: Sequence[float]) -> ShardingPlan:
    """Place the costliest table first, each on the device with the smallest sum of costs that has room.

    The greedy of NeuroShard, DreamShard and AutoShard (`sharders.py`): tables sorted by (cost, size, index)
    descending; ties go to the device with fewer bytes, then to the lower number. Unlike there, a table that fits
    nowhere ends the search instead of landing on the last device.

    Args:
        task: what to place.
        costs: one per table.

    Raises:
        NoFeasiblePlanError: a table fits nowhere, or no plan can hold it.
    """
    load = np.zeros(task.num_devices)
    used = np.zeros(task.num_devices, dtype=np.int64)

    def lightest(position: int, size: int, fitting: Ints) -> int:
        loads = load[fitting]
        tied = fitting[loads == loads.min()]
        device = int(tied[used[tied].argmin()])
        load[device] += costs[position]
        used[device] += size
        return device

    sizes = [task.table_bytes(table) for table in task.tables]
    return place(task, descending(costs, sizes), lightest)


def descending(*keys: Sequence[float]) -> Iterator[int]:
    """Return positions sorted by the keys in turn, then by position, all descending."""
    rows = zip(*keys, range(len(keys[0])), strict=True)
    return (int(row[-1]) for row in sorted(rows, reverse=True))


def check_width(table: EmbeddingTable) -> None:
    """Raise `NoFeasiblePlanError` when no cut of the table has widths that FBGEMM takes."""
    if table.embedding_dim % COLUMN_UNIT:
        raise NoFeasiblePlanError(
            f"table '{table.name}' has {table.embedding_dim} columns: no plan is feasible, "
            f"FBGEMM needs widths divisible by {COLUMN_UNIT}"
        )


def fits_nowhere(table: EmbeddingTable, size: int, room: Ints) -> NoFeasiblePlanError:
    """Return the error for a table that has no device left."""
    device = int(room.argmax())
    return NoFeasiblePlanError(
        f"table '{table.name}' of {size} bytes fits on no device: the largest room left is {int(room[device])} bytes "
        f"on device {device}"
    )
