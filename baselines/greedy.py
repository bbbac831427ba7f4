"""Rules for whole tables: random, greedy (DreamShard: `sharders.py`; Graham 1969), and largest differencing."""

import abc
import dataclasses
import heapq
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.ties import quantized
from shardgym.errors import InputError, MeasurementError, NoFeasiblePlanError, check_instance, check_int
from shardgym.evaluation.solver import check_solve_arguments
from shardgym.plans.feasibility import check_possible, exceeds_devices
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import COLUMN_UNIT, Shard
from shardgym.tasks.task import ShardingTask, exact_bytes

_GIB = 2**30


class Greedy(abc.ABC):
    """Balance one figure per table over the devices by `place_greedily`, without querying a cost model."""

    @abc.abstractmethod
    def _figures(self, task: ShardingTask) -> list[float]:
        """Return the figure of each table."""

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return the plan, see `Solver`; `cost` and `seed` are ignored."""
        del cost
        check_instance("task", task, ShardingTask)
        check_int("seed", seed)
        return place_greedily(task, self._figures(task), in_host=exceeds_devices(task))


class SizeGreedy(Greedy):
    """Balance memory in GB, including optimiser state, which the published rule leaves out."""

    def _figures(self, task: ShardingTask) -> list[float]:
        return [task.table_bytes(table) / _GIB for table in task.tables]


class DimGreedy(Greedy):
    """Balance widths."""

    def _figures(self, task: ShardingTask) -> list[float]:
        return [float(table.embedding_dim) for table in task.tables]


class LookupGreedy(Greedy):
    """Balance dimension times pooling factor, the values looked up per sample."""

    def _figures(self, task: ShardingTask) -> list[float]:
        return [table.embedding_dim * table.pooling_factor for table in task.tables]


class SizeLookupGreedy(Greedy):
    """Balance dimension times pooling factor times log10 of the rows."""

    def _figures(self, task: ShardingTask) -> list[float]:
        return [table.embedding_dim * table.pooling_factor * math.log10(table.num_embeddings) for table in task.tables]


def place_greedily(
    task: ShardingTask,
    costs: Sequence[float],
    shards: Sequence[Shard] | None = None,
    speeds: Sequence[float] | None = None,
    *,
    in_host: bool = False,
) -> ShardingPlan:
    """Place the costliest shard first, each on the device with the smallest sum of costs that has room.

    This is the greedy rule of NeuroShard, DreamShard and AutoShard (`sharders.py`). It sorts tables by (cost, size,
    index), descending, and breaks ties by fewer bytes, then by the lower device number. Unlike the published rule,
    which places it on the last device, it raises an error for a table that fits nowhere.

    Args:
        task: the task.
        costs: cost of each shard.
        shards: shards that hold every cell of every table once, on any devices; whole tables when None.
        speeds: relative speeds that divide the devices' sums; all equal when None.
        in_host: whether a shard that fits on no device goes to host memory, with kernel fused_uvm, by the same rule
            over devices whose hosts have room.

    Raises:
        NoFeasiblePlanError: a shard fits nowhere, or no plan can hold it.
    """
    pieces = [Shard.whole(table, 0) for table in task.tables] if shards is None else shards
    sizes = [piece.bytes(task) for piece in pieces]
    room = list(task.capacity_bytes)
    host_room = [task.topology.host_memory_bytes] * task.topology.num_hosts
    # By sum of costs, then bytes, then number; in a heap, because the first one nearly always has room.
    devices = [(0.0, 0, device) for device in range(task.num_devices)]
    placed: list[tuple[Shard, int]] = []
    for n in sorted(range(len(pieces)), key=lambda n: (costs[n], sizes[n], n), reverse=True):
        piece = pieces[n]
        size = sizes[n]
        passed = []
        chosen = None
        while devices and chosen is None and piece.num_columns % COLUMN_UNIT == 0:
            first = heapq.heappop(devices)
            if room[first[2]] >= size:
                chosen = first
            else:
                passed.append(first)
        if in_host and chosen is None and passed:
            on_host = dataclasses.replace(piece, compute_kernel="fused_uvm")
            size = on_host.bytes(task)
            needed = on_host.host_bytes(task)
            hosts = task.topology
            able = (of for of in passed if room[of[2]] >= size and host_room[hosts.host_of(of[2])] >= needed)
            chosen = next(able, None)
            if chosen is not None:
                passed.remove(chosen)
                piece = on_host
                host_room[hosts.host_of(chosen[2])] -= needed
        if chosen is None:
            devices_with_room(task, piece, np.array(room, dtype=np.int64))  # raises, as there is none
        assert chosen is not None
        load, used, device = chosen
        placed.append((piece, device))
        room[device] -= size
        heapq.heappush(
            devices, (load + (costs[n] if speeds is None else costs[n] / speeds[device]), used + size, device)
        )
        for other in passed:
            heapq.heappush(devices, other)
    # Searches call this again and again where it fails: shards are made once all have a place.
    return ShardingPlan.of(task, [piece.on(device) for piece, device in placed])


def devices_with_room(task: ShardingTask, shard: Shard, room: Ints) -> Ints:
    """Return the devices where a shard fits, in ascending order; `room` is the bytes left on each, shape (D,)."""
    if shard.num_columns % COLUMN_UNIT:
        raise NoFeasiblePlanError(
            f"table '{shard.table}' has {shard.num_columns} columns: no plan is feasible, because "
            f"FBGEMM needs widths divisible by {COLUMN_UNIT}"
        )
    size = shard.bytes(task)
    fitting: Ints = np.flatnonzero(room >= size)
    if not fitting.size:
        device = int(room.argmax())
        is_whole = shard.num_columns == task.table(shard.table).embedding_dim
        piece = "" if is_whole else f"a piece of {shard.num_columns} columns of "
        left = int(room[device])
        cut = "columns" if shard.num_columns > COLUMN_UNIT else "rows"
        raise NoFeasiblePlanError(
            f"{piece}table '{shard.table}' of {exact_bytes(size)} fits on no device: the largest room left is "
            f"{exact_bytes(left)} on device {device}, {exact_bytes(size - left)} too few; cut it by {cut}, or give "
            "more devices or more memory"
        )
    return fitting


class RandomSolver:
    """Place each table, the largest first, on a device drawn uniformly among those with room.

    The published rule draws among all devices and fails when memory overflows. Where memory does not bind, all plans
    are equally likely, as with the published rule.
    """

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return a random feasible plan, see `Solver`; if this fails, another seed may succeed."""
        del cost
        check_instance("task", task, ShardingTask)
        rng = np.random.default_rng(check_int("seed", seed))
        sizes = [task.table_bytes(table) for table in task.tables]
        room = np.array(task.capacity_bytes, dtype=np.int64)
        devices = [0] * task.num_tables
        for n in sorted(range(task.num_tables), key=lambda n: (sizes[n], n), reverse=True):
            devices[n] = int(rng.choice(devices_with_room(task, Shard.whole(task.tables[n], 0), room)))
            room[devices[n]] -= sizes[n]
        return ShardingPlan.table_wise(task, devices)


class LPTWhole:
    """The longest table first, each to the device with the smallest sum of times that has room; tables stay whole.

    This is the rule of Graham (1969), "Bounds on multiprocessing timing anomalies". A table's time is its forward and
    backward compute alone on a device; the oracle prices all tables in one query. A device's sum is an estimate, since
    fused kernels take less. Ties go to the larger table. If the tables exceed the memory of all devices and the oracle
    prices host memory, tables that fit nowhere go to hosts; the rule counts them as if they were on devices.
    """

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return a plan, see `Solver`; `seed` is ignored."""
        check_solve_arguments(task, cost, seed)
        in_host = cost.host_memory and exceeds_devices(task)
        check_possible(task, in_host=in_host)
        return place_greedily(task, whole_table_ms(task, cost).tolist(), in_host=in_host)


def whole_table_ms(task: ShardingTask, cost: CostModel) -> Floats:
    """Return forward plus backward compute of every table alone on a device, as `alone_ms` does, shape (T,)."""
    return alone_ms(task, cost, [Shard.whole(table, 0) for table in task.tables])


def alone_ms(task: ShardingTask, cost: CostModel, shards: Sequence[Shard]) -> Floats:
    """Return forward plus backward compute of each of n shards alone on a device, in ms, quantized, shape (n,).

    The query is a plan for an artificial task that has each shard as a table on a device of its own, split where
    `cost.max_devices` requires it. Shards must have all rows; their devices do not matter. Errors of the cost
    propagate, for example if a measured cost has no time for single shards.
    """
    if not shards:
        return np.zeros(0)
    tables = tuple(
        dataclasses.replace(task.table(shard.table), name=f"shard {n}", embedding_dim=shard.num_columns)
        for n, shard in enumerate(shards)
    )
    most = cost.max_devices or len(tables)
    parts = []
    for start in range(0, len(tables), most):
        some = tables[start : start + most]
        apart = dataclasses.replace(
            task, tables=some, topology=task.topology.roomy(len(some)), step_memory=None, name=""
        )
        try:
            (answer,) = cost.evaluate(apart, [ShardingPlan.table_wise(apart, range(len(some)))])
        except InputError as error:  # of a table that its user knows by another name
            raise InputError(re.sub(r"'shard (\d+)'", lambda n: f"'{shards[int(n[1])].table}'", str(error))) from None
        if not answer.feasible:
            raise MeasurementError(f"cost '{cost.name}' cannot price single shards: {answer.reason}")
        parts.append(answer.compute_ms)
    return quantized(np.concatenate(parts))


class KarmarkarKarp:
    """Partition tables by k-way largest differencing of their times, then move tables until memory suffices.

    Karmarkar and Karp (1982), "The differencing method of set partitioning", for k sets. ZionEX reports that it usually
    balances better than greedy placement (Mudigere et al., ISCA 2022). A table's time is its forward and backward
    compute alone on a device; the oracle prices all tables in one query. The method ignores memory. The set with the
    most bytes goes to the device with the most memory. While a device overflows, the solver moves the table that adds
    least load to a device with room, or swaps two tables. If neither helps, it falls back to `lpt_whole`.
    """

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return a plan, see `Solver`; `seed` is ignored."""
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
    """Return items in `count` sets of similar cost, the lightest first, by largest differencing.

    Every item starts as a partition with one non-empty set. The method joins the two partitions with the largest
    differences between their sets, heaviest set with lightest, until one partition is left.
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
    """Move and swap items until no device overflows, and return their devices; None if that fails."""
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
