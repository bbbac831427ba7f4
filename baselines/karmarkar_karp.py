"""The largest differencing method for any number of devices, with memory repaired afterwards."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from baselines.greedy import place_greedily, whole_table_ms
from shardgym.arrays import Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.evaluation.solver import check_solve_arguments
from shardgym.plans.feasibility import check_possible
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ShardingTask


class KarmarkarKarp:
    """Partition tables by k-way largest differencing of their times alone, then move tables until memory suffices.

    Karmarkar and Karp (1982), "The differencing method of set partitioning", for k sets. ZionEX reports it as usually
    better balanced than greedy placement (Mudigere et al., ISCA 2022). A table's time is its forward and backward
    compute alone on a device; the oracle prices all tables in one query. The method knows no memory. The set with the
    most bytes goes to the device with the most memory. While one overflows, the table moves that adds least load to a
    device with room, or else two tables swap. Where neither helps, tables are placed as in `lpt_whole`.
    """

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return a table-wise plan; `seed` makes no difference, as nothing is drawn.

        Raises:
            NoFeasiblePlanError: a table fits nowhere; the message gives its bytes and the largest room left.
            InputError: an argument is of another kind, or `cost` cannot price tasks of this kind.
            MeasurementError: `cost` has no time for single tables.
        """
        check_solve_arguments(task, cost, seed)
        check_possible(task)
        times = whole_table_ms(task, cost).tolist()
        sizes = [task.table_bytes(table) for table in task.tables]
        sets = difference(times, task.num_devices)
        by_bytes = sorted(sets, key=lambda tables: sum(sizes[n] for n in tables), reverse=True)
        by_memory = np.argsort(-np.array(task.capacity_bytes), kind="stable")
        devices = np.zeros(task.num_tables, dtype=np.int64)
        for device, tables in zip(by_memory.tolist(), by_bytes, strict=True):
            devices[tables] = device
        repaired = repair_memory(devices, np.array(times), np.array(sizes), np.array(task.capacity_bytes))
        return place_greedily(task, times) if repaired is None else ShardingPlan.table_wise(task, repaired.tolist())


class _Partition(NamedTuple):
    """Items in at most k sets, the lightest first; sets without items are left out."""

    key: tuple[float, int]
    sets: list[tuple[float, list[int]]]


def difference(costs: Sequence[float], count: int) -> list[list[int]]:
    """Return items in `count` sets of about the same cost, the lightest first, by largest differencing.

    Every item begins as a partition with one set filled. The two partitions with the largest differences between their
    sets are joined, the heaviest set of one with the lightest of the other, until one partition is left.
    """
    if count == 1:
        return [list(range(len(costs)))]
    heap = [_Partition((-cost, n), [(cost, [n])]) for n, cost in enumerate(costs)]
    heapq.heapify(heap)
    made = len(heap)
    while len(heap) > 1:
        one = heapq.heappop(heap).sets
        other = heapq.heappop(heap).sets
        # As long as there are empty sets, the heaviest meet these; the lightest of one meet the lightest of the other.
        meeting = max(len(one) + len(other) - count, 0)
        sets = [
            *((a[0] + b[0], a[1] + b[1]) for a, b in zip(reversed(one[:meeting]), other[:meeting], strict=True)),
            *one[meeting:],
            *other[meeting:],
        ]
        sets.sort(key=lambda item: item[0])
        lightest = sets[0][0] if len(sets) == count else 0.0
        heapq.heappush(heap, _Partition((lightest - sets[-1][0], made), sets))
        made += 1
    filled = [items for _, items in heap[0].sets]
    return [[] for _ in range(count - len(filled))] + filled


def repair_memory(devices: Ints, costs: Floats, sizes: Ints, memory: Ints) -> Ints | None:
    """Return the devices of items after moves and swaps by which none overflows; None where there are none."""
    devices = devices.copy()
    count = len(memory)
    while True:
        used = np.zeros(count, dtype=np.int64)
        np.add.at(used, devices, sizes)
        room = memory - used
        source = int(room.argmin())
        if room[source] >= 0:
            return devices
        load = np.bincount(devices, weights=costs, minlength=count)
        here = np.flatnonzero(devices == source)
        others = np.flatnonzero((devices != source) & (room[devices] >= 0))
        after = np.where(sizes[here, None] <= room, load + costs[here, None], np.inf)
        if np.isfinite(after).any():
            n, target = np.unravel_index(int(after.argmin()), after.shape)
            devices[here[n]] = target
            continue
        # A swap must make the fuller device smaller, and leave the other within its memory.
        given = sizes[here, None] - sizes[others]
        fits = (given > 0) & (given <= room[devices[others]])
        swapped = np.where(fits, load[devices[others]] + costs[here, None] - costs[others], np.inf)
        if not np.isfinite(swapped).any():
            return None
        n, m = np.unravel_index(int(swapped.argmin()), swapped.shape)
        devices[here[n]] = devices[others[m]]
        devices[others[m]] = source
