"""Packing: column plans and placements by memory alone, for tasks on which the published search finds nothing."""

from __future__ import annotations

import numpy as np

from neuroshard.kinds import Kinds
from shardgym.arrays import Ints
from shardgym.errors import NoFeasiblePlanError
from shardgym.plan import COLUMN_UNIT
from shardgym.task import ShardingTask

#: Shards that the exhaustive part of the packing places before it gives up.
_PATIENCE = 20_000


def check_possible(task: ShardingTask) -> None:
    """Refuse tasks that no halving of columns can make feasible.

    Raises:
        NoFeasiblePlanError: a width cannot be fused, or the tables are larger than all devices together.
    """
    for table in task.tables:
        if table.embedding_dim % COLUMN_UNIT:
            raise NoFeasiblePlanError(
                f"table '{table.name}' has {table.embedding_dim} columns: no plan is feasible, "
                f"FBGEMM needs widths divisible by {COLUMN_UNIT}"
            )
    if task.total_bytes > task.topology.total_memory_bytes:
        raise NoFeasiblePlanError(
            f"the tables take {task.total_bytes} bytes, the devices have {task.topology.total_memory_bytes} together"
        )


def pack(kinds: Kinds) -> list[list[int]]:
    """Halve the largest shard until all shards can be packed.

    Args:
        kinds: what tables can be halved to.

    Returns:
        Kinds on every device.

    Raises:
        NoFeasiblePlanError: the shards cannot be packed even when nothing is left to halve.
    """
    task, shards = kinds.task, kinds.whole.tolist()
    room = np.array(task.topology.memory_bytes, dtype=np.int64)
    while True:
        sizes = kinds.bytes[shards]
        if sizes.max() <= room.max():
            placed = _packed(sizes, room)
            if placed is not None:
                return [[shards[n] for n in np.flatnonzero(placed == device)] for device in range(len(room))]
        able = np.flatnonzero(kinds.halves[shards] >= 0)
        if not able.size:
            raise _cannot(kinds, shards, room)
        largest = int(able[sizes[able].argmax()])
        shards[largest] = int(kinds.halves[shards[largest]])
        shards.append(shards[largest])


def _packed(sizes: Ints, room: Ints) -> Ints | None:
    """Return a device per shard: largest first to the most room, else to the least that suffices, else by search."""
    order = sizes.argsort(kind="stable")[::-1]
    for pick in (np.argmax, np.argmin):
        placed, left = np.full(len(sizes), -1), room.copy()
        for n in order:
            fitting = np.flatnonzero(left >= sizes[n])
            if not fitting.size:
                break
            device = fitting[pick(left[fitting])]
            placed[n] = device
            left[device] -= sizes[n]
        else:
            return placed
    return _searched(sizes, order, room)


def _searched(sizes: Ints, order: Ints, room: Ints) -> Ints | None:
    """Try devices shard by shard, going back where one fits nowhere; None when there is no way or patience ends."""
    if sizes.sum() > room.sum():
        return None
    placed, left = np.full(len(sizes), -1), room.copy()
    ways: list[list[int]] = [_ways(left, int(sizes[order[0]]))]
    for _ in range(_PATIENCE):
        n = order[len(ways) - 1]
        if placed[n] >= 0:
            left[placed[n]] += sizes[n]
            placed[n] = -1
        if not ways[-1]:
            ways.pop()
            if not ways:
                return None
            continue
        placed[n] = ways[-1].pop(0)
        left[placed[n]] -= sizes[n]
        if len(ways) == len(order):
            return placed
        ways.append(_ways(left, int(sizes[order[len(ways)]])))
    return None


def _ways(left: Ints, size: int) -> list[int]:
    """Return devices with room for a shard, fullest first, one of those that have the same room."""
    rooms, first = np.unique(left, return_index=True)
    return [int(device) for device in first[rooms >= size]]


def _cannot(kinds: Kinds, shards: list[int], room: Ints) -> NoFeasiblePlanError:
    largest = max(shards, key=lambda kind: int(kinds.bytes[kind]))
    shard = kinds.shard(largest)
    return NoFeasiblePlanError(
        f"no packing found with every table halved as often as widths allow: the largest shard left, of table "
        f"'{shard.table}', has {int(kinds.bytes[largest])} bytes, the largest device {int(room.max())}"
    )
