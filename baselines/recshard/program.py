"""The mixed-integer program of RecShard: a device for every table, and how much of it is in the device's memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from baselines.milp.linear_program import LinearProgram, Sum
from neuroshard.row_splits import Split
from shardgym.tasks.task import ShardingTask

#: Times are scaled so that an even share of all of them is this much, and memory so that the largest has it: HiGHS
#: allows errors of a millionth, in any unit.
_SCALE = 1000.0
#: Splits of a table that the program mixes: with twice as many it takes two to three times as long.
_MOST_SPLITS = 6


def assign(
    task: ShardingTask,
    splits: Sequence[Sequence[Split]],
    column_ms: float,
    *,
    gap: float,
    nodes: int,
    time_limit_s: float,
) -> list[int] | None:
    """Return a device for every table so that the slowest device takes least; None where no solution was found.

    A table is on one device. Of its splits any mixture may be chosen: they save less and less per byte, so that a
    mixture of two that follow each other is the cheapest for its bytes, and needs no whole number. Memory of devices
    and hosts is obeyed.

    Args:
        task: the task.
        splits: of each table, see `splits_of`.
        column_ms: what a device takes to exchange one column.
        gap: relative gap at which HiGHS may stop.
        nodes: of the search tree at most.
        time_limit_s: likewise, which makes results depend on the machine.
    """
    devices = range(task.num_devices)
    topology = task.topology
    fastest = sum(of_table[-1].ms for of_table in splits)
    columns = [column_ms * table.embedding_dim * table.num_features for table in task.tables]
    per_ms = _SCALE / max((fastest + sum(columns)) / task.num_devices, 1e-9)
    per_byte = _SCALE / max(task.capacity_bytes)
    per_host_byte = _SCALE / max(topology.host_memory_bytes, 1)
    program = LinearProgram()
    slowest = program.variable()
    busy = [slowest * -1.0 for _ in devices]
    used = [Sum() for _ in devices]
    on_host = [Sum() for _ in range(topology.num_hosts)]
    places = []
    for n, of_table in enumerate(map(_some, splits)):
        chosen = [program.flag() for _ in devices]
        program.equal(Sum.of(chosen), 1.0)
        places.append([place.number for place in chosen])
        for device, place in zip(devices, chosen, strict=True):
            host = topology.host_of(device)
            busy[device] += place * ((of_table[0].ms + columns[n]) * per_ms)
            used[device] += place * (of_table[0].device_bytes * per_byte)
            on_host[host] += place * (of_table[0].host_bytes * per_host_byte)
            for before, after in itertools.pairwise(of_table):
                part = program.variable(1.0)
                program.at_most(part, place)
                busy[device] += part * ((after.ms - before.ms) * per_ms)
                used[device] += part * ((after.device_bytes - before.device_bytes) * per_byte)
                on_host[host] += part * ((after.host_bytes - before.host_bytes) * per_host_byte)
    for device in devices:
        program.at_most(busy[device])
        program.at_most(used[device], task.capacity_bytes[device] * per_byte)
    for terms in on_host:
        program.at_most(terms, topology.host_memory_bytes * per_host_byte)
    found = program.minimise(slowest, gap=gap, nodes=nodes, time_limit_s=time_limit_s)
    if found.values is None:
        return None
    return [int(np.argmax(found.values[chosen])) for chosen in places]


def _some(splits: Sequence[Split]) -> list[Split]:
    """Return a few of a table's splits, the first and the last among them, about as far from each other in time."""
    if len(splits) <= _MOST_SPLITS:
        return list(splits)
    times = np.array([split.ms for split in splits])
    wanted = np.linspace(times[0], times[-1], _MOST_SPLITS)
    places = sorted({int(np.argmin(np.abs(times - ms))) for ms in wanted} | {0, len(splits) - 1})
    return [splits[place] for place in places]
