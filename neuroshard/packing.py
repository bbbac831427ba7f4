"""Packing: column plans and placements by memory alone, for tasks in which the searches find none."""

import numpy as np

from neuroshard.shard_table import ShardTable, plan_of, units_of
from shardgym.arrays import Ints
from shardgym.errors import NoFeasiblePlanError
from shardgym.tasks.task import exact_bytes

#: Shards that the exhaustive part of the packing places before it gives up.
_MOST_STEPS = 20_000


def pack(shards: ShardTable) -> list[list[int]]:
    """Halve the largest shard until all shards can be packed; return the rows of `shards` on every device."""
    rows = shards.whole.tolist()
    memory = np.array(shards.task.capacity_bytes, dtype=np.int64)
    while True:
        sizes = shards.bytes[rows]
        if sizes.max() <= memory.max():
            placed = _place_all(sizes, memory)
            if placed is not None:
                return [[rows[n] for n in np.flatnonzero(placed == device)] for device in range(len(memory))]
        able = np.flatnonzero(shards.halves[rows] >= 0)
        if not able.size:
            largest = rows[int(sizes.argmax())]
            raise NoFeasiblePlanError(
                "no packing found with every table halved as often as widths allow: the largest shard left, of table "
                f"'{shards.shard(largest).table}', has {exact_bytes(int(sizes.max()))}, and the largest device "
                f"{exact_bytes(int(memory.max()), '')}"
            )
        largest = int(able[sizes[able].argmax()])
        rows[largest] = int(shards.halves[rows[largest]])
        rows.append(rows[largest])


def pack_units(shards: ShardTable) -> Ints:
    """Pack tables by halving, or else by cutting anywhere; return units of each table on each device, shape (D, T)."""
    try:
        units = units_of(shards, plan_of(shards, pack(shards)))
    except NoFeasiblePlanError:
        units = _fill(shards)
        if units is None:
            raise
    assert units is not None, "a packing cuts no rows"
    return units


def _fill(shards: ShardTable) -> Ints | None:
    """Give as many units as fit to the device with most room, largest units first; None if one fits nowhere."""
    units = np.zeros((shards.task.num_devices, len(shards.units)), dtype=np.int64)
    room = np.array(shards.task.capacity_bytes, dtype=np.int64)
    for table in (-shards.bytes[shards.first + 1]).argsort(kind="stable").tolist():
        first = int(shards.first[table])
        left = int(shards.units[table])
        while left:
            device = int(room.argmax())
            fitting = int(shards.bytes[first : first + left + 1].searchsorted(room[device], side="right")) - 1
            if not fitting:
                return None
            units[device, table] += fitting
            room[device] -= shards.bytes[first + fitting]
            left -= fitting
    return units


def _place_all(sizes: Ints, memory: Ints) -> Ints | None:
    """Return a device per shard: largest first to the most room, else to the least that suffices, else by search."""
    order = sizes.argsort(kind="stable")[::-1]
    for pick in (np.argmax, np.argmin):
        placed = np.full(len(sizes), -1)
        room = memory.copy()
        for n in order:
            fitting = np.flatnonzero(room >= sizes[n])
            if not fitting.size:
                break
            device = fitting[pick(room[fitting])]
            placed[n] = device
            room[device] -= sizes[n]
        else:
            return placed
    return _backtrack(sizes, order, memory)


def _backtrack(sizes: Ints, order: Ints, memory: Ints) -> Ints | None:
    """Try devices shard by shard, going back where one fits nowhere; None when there is no way or it takes too long."""
    if sizes.sum() > memory.sum():
        return None
    placed = np.full(len(sizes), -1)
    room = memory.copy()
    untried: list[list[int]] = [_fullest_first(room, int(sizes[order[0]]))]
    for _ in range(_MOST_STEPS):
        n = order[len(untried) - 1]
        if placed[n] >= 0:
            room[placed[n]] += sizes[n]
            placed[n] = -1
        if not untried[-1]:
            untried.pop()
            if not untried:
                return None
            continue
        placed[n] = untried[-1].pop(0)
        room[placed[n]] -= sizes[n]
        if len(untried) == len(order):
            return placed
        untried.append(_fullest_first(room, int(sizes[order[len(untried)]])))
    return None


def _fullest_first(room: Ints, size: int) -> list[int]:
    """Return devices with room for a shard, one of those that have the same room."""
    rooms, first = np.unique(room, return_index=True)
    return [int(device) for device in first[rooms >= size]]
