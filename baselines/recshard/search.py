"""RecShard's local search over the tables of each device, and over the rows in its memory."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from neuroshard.row_splits import Split, keys_on_one_device
from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.links import LOADS
from shardgym.evaluation.solver import Budget, Incumbent
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ShardingTask

#: Pairs of tables that are tried at most to make the plan cheaper.
_MOST_SWAPS = 2000
#: A change must save more than this share of the cost.
_LEAST_GAIN = 1e-9
#: Changes that are priced together: enough for one call, with few wasted.
_AT_ONCE = 32


class _Filled(NamedTuple):
    """What a device holds: its tables, each in the split that suits it best."""

    steps: Ints
    host_bytes: int
    ms: float
    vector: Floats


class _Change(NamedTuple):
    """A table that goes to another device, and one that comes back from there; -1 for none."""

    given: int
    target: int
    returned: int


class Search:
    """Local search over assignments of tables to devices, each with its best splits.

    Only a device's own tables share its memory, so pricing a change takes two devices and one exchange.
    """

    def __init__(
        self, task: ShardingTask, costs: AdditiveCosts, splits: list[list[Split]], incumbent: Incumbent
    ) -> None:
        self._task = task
        self._costs = costs
        self._number = costs.add_task(task)
        self._incumbent = incumbent
        self.splits = splits
        self._best: list[int] | None = None
        links, element_bytes = costs.all_to_all_links(task)
        devices = task.num_devices
        outside = max(0, devices - links.fast_domain_size)
        per_peer = task.batch_size * element_bytes / devices * 1e3
        #: What a device takes to send and receive one column of the whole batch, forward and backward.
        self.column_ms = 2 * per_peer * max(
            (devices - outside - 1) / links.intra_bandwidth, outside / links.inter_bandwidth
        )  # fmt: skip
        # All splits one after another, those of a table from its number in `_first` on.
        every = [(n, split) for n, of_table in enumerate(splits) for split in of_table]
        self._first: Ints = np.cumsum([0, *map(len, splits[:-1])])
        keys = [key for _, split in every for key in keys_on_one_device(task, split.shards)]
        begin = np.cumsum([0, *(len(split.shards) for _, split in every[:-1])])
        self._vectors = np.add.reduceat(costs.vectors(costs.encode_keys(task, keys)), begin, axis=0)
        self._ms = np.array([split.ms + self._exchange_ms(n) for n, split in every])
        self._device_bytes = np.array([split.device_bytes for _, split in every], dtype=np.int64)
        self._host_bytes = np.array([split.host_bytes for _, split in every], dtype=np.int64)
        # Steps to a table's next split, what saves the most time per byte first.
        steps = []
        for n, of_table in enumerate(splits):
            least = math.inf
            for step, (now, after) in enumerate(itertools.pairwise(of_table)):
                more = after.device_bytes - now.device_bytes
                least = min(least, (now.ms - after.ms) / max(more, 1))  # never before the table's last step
                steps.append((-least, n, step, more))
        steps.sort()
        self._step_tables: Ints = np.array([n for _, n, _, _ in steps], dtype=np.int64)
        self._step_bytes: Ints = np.array([more for _, _, _, more in steps], dtype=np.int64)
        self._fillings: dict[tuple[int, bytes], _Filled | None] = {}

    def offer(self, devices: list[int] | None) -> None:
        """Offer the plan of an assignment."""
        filled = None if devices is None else self._fill_all(devices)
        if devices is not None and filled is not None:
            sums = np.stack([of_device.vector for of_device in filled])
            self._offer_priced(devices, float(self._costs.total_ms(self._number, sums[None])[0]))

    def _offer_priced(self, devices: list[int], total_ms: float) -> bool:
        """Offer the plan of an assignment that respects memory; returns whether it is the best so far."""
        before = self._incumbent.cost_ms
        self._incumbent.update(functools.partial(self._plan, devices), total_ms)
        if self._incumbent.cost_ms < before * (1 - _LEAST_GAIN):
            self._best = devices
            return True
        return False

    def _plan(self, devices: list[int]) -> ShardingPlan:
        """Return the plan of an assignment that respects memory."""
        steps = [0] * len(devices)
        for device in set(devices):
            tables = np.flatnonzero(np.array(devices) == device)
            filled = self._fill(device, tables)
            assert filled is not None
            for n, step in zip(tables.tolist(), filled.steps.tolist(), strict=True):
                steps[n] = step
        shards = [
            shard.on(device)
            for n, (step, device) in enumerate(zip(steps, devices, strict=True))
            for shard in self.splits[n][step].shards
        ]
        return ShardingPlan.of(self._task, shards)

    def greedy(self) -> list[int] | None:
        """Place the longest tables first, in their fastest splits, each on the device with the least time so far.

        Counts only the memory that tables need at least. Returns None if that fails.
        """
        task = self._task
        topology = task.topology
        busy = [0.0] * task.num_devices
        room = list(task.capacity_bytes)
        host_room = [topology.host_memory_bytes] * topology.num_hosts
        devices = [0] * task.num_tables
        for n in sorted(range(task.num_tables), key=lambda n: (-self.splits[n][0].ms, n)):
            least, fastest = self.splits[n][0], self.splits[n][-1]
            able = [
                d
                for d in range(task.num_devices)
                if least.device_bytes <= room[d] and least.host_bytes <= host_room[topology.host_of(d)]
            ]
            if not able:
                return None
            device = min(able, key=lambda d: (busy[d], d))
            devices[n] = device
            busy[device] += fastest.ms + self._exchange_ms(n)
            room[device] -= least.device_bytes
            host_room[topology.host_of(device)] -= least.host_bytes
        return devices

    def improve(self, budget: Budget) -> None:
        """Move or swap tables of the slowest device as long as that makes the plan cheaper."""
        left = _MOST_SWAPS
        while left > 0 and self._best is not None:
            tried = self._try_changes(self._best, left, budget)
            if tried is None:
                return
            left -= tried

    def _try_changes(self, devices: list[int], most: int, budget: Budget) -> int | None:
        """Make the first change that makes the plan cheaper; returns how many were tried, None where none did."""
        filled = self._fill_all(devices)
        assert filled is not None
        slowest = max(range(len(filled)), key=lambda device: (filled[device].ms, -device))
        sums = np.stack([of_device.vector for of_device in filled])
        compute_ms = self._costs.exact_compute_ms(sums)
        changes = itertools.islice(self._changes(devices, slowest), most)
        tried = 0
        while some := list(itertools.islice(changes, _AT_ONCE)):
            budget.check()
            after = [self._after(devices, filled, slowest, change) for change in some]
            able = [n for n, pair in enumerate(after) if pair is not None]
            pairs = [pair for pair in after if pair is not None]
            totals = self._changed_ms(slowest, [some[n].target for n in able], pairs, sums, compute_ms)
            for n, total_ms in zip(able, totals, strict=True):
                if self._offer_priced(_changed(devices, slowest, some[n]), total_ms):
                    return tried + n + 1
            tried += len(some)
        return None

    def _changed_ms(
        self, slowest: int, targets: list[int], pairs: list[tuple[_Filled, _Filled]], sums: Floats, compute_ms: Floats
    ) -> list[float]:
        """Return the costs of plans in which two devices hold something else."""
        if not pairs:
            return []
        rows = np.arange(len(pairs))
        after = np.array([[here.vector, there.vector] for here, there in pairs])
        after_ms = self._costs.exact_compute_ms(after)
        compute = np.tile(compute_ms, (len(pairs), 1, 1))
        loads = np.tile(sums[:, -LOADS:], (len(pairs), 1, 1))
        for place, devices in enumerate((np.full(len(pairs), slowest), np.array(targets))):
            compute[rows, devices] = after_ms[:, place]
            loads[rows, devices] = after[:, place, -LOADS:]
        return self._costs.exact_slowest_ms(self._number, compute, loads).tolist()  # type: ignore[no-any-return]

    def _changes(self, devices: Sequence[int], slowest: int) -> Iterator[_Change]:
        """Yield changes in which a table leaves the slowest device, alone or for another, the longest first."""
        here = sorted((n for n, d in enumerate(devices) if d == slowest), key=lambda n: -self.splits[n][-1].ms)
        others = [d for d in range(self._task.num_devices) if d != slowest]
        yield from (_Change(n, device, -1) for n in here for device in others)
        yield from (
            _Change(n, device, other) for n in here for other, device in enumerate(devices) if device != slowest
        )

    def _after(
        self, devices: Sequence[int], filled: Sequence[_Filled], slowest: int, change: _Change
    ) -> tuple[_Filled, _Filled] | None:
        """Fill the slowest device and the other one after a change; None if memory does not suffice."""
        changed = np.array(_changed(devices, slowest, change))
        here = self._fill(slowest, np.flatnonzero(changed == slowest))
        there = None if here is None else self._fill(change.target, np.flatnonzero(changed == change.target))
        if here is None or there is None:
            return None
        now = [here if d == slowest else there if d == change.target else of for d, of in enumerate(filled)]
        return (here, there) if self._others_have_room(now) else None

    def _fill_all(self, devices: Sequence[int]) -> list[_Filled] | None:
        """Fill all devices of an assignment; None if memory does not suffice."""
        held = np.array(devices)
        found = []
        for device in range(self._task.num_devices):
            filled = self._fill(device, np.flatnonzero(held == device))
            if filled is None:
                return None
            found.append(filled)
        return found if self._others_have_room(found) else None

    def _others_have_room(self, filled: Sequence[_Filled]) -> bool:
        """Say whether the memory of hosts is enough."""
        topology = self._task.topology
        room = [topology.host_memory_bytes] * topology.num_hosts
        for device, of_device in enumerate(filled):
            room[topology.host_of(device)] -= of_device.host_bytes
        return min(room) >= 0

    def _fill(self, device: int, tables: Ints) -> _Filled | None:
        """Return the splits of a device's tables: memory goes to where it saves the most time; None if it lacks."""
        key = self._task.capacity_bytes[device], tables.tobytes()
        if key not in self._fillings:
            self._fillings[key] = self._filled(key[0], tables)
        return self._fillings[key]

    def _filled(self, room: int, tables: Ints) -> _Filled | None:
        room -= int(self._device_bytes[self._first[tables]].sum())
        if room < 0:
            return None
        here = np.zeros(self._task.num_tables, dtype=np.bool_)
        here[tables] = True
        wanted = np.flatnonzero(here[self._step_tables])
        step_tables = self._step_tables[wanted]
        sizes = self._step_bytes[wanted]
        fitting = int(np.searchsorted(np.cumsum(sizes), room, side="right"))
        steps = np.bincount(step_tables[:fitting], minlength=self._task.num_tables)
        room -= int(sizes[:fitting].sum())
        # Of a table whose next step does not fit, none of those after it are taken.
        ended = set()
        for n, more in zip(step_tables[fitting:].tolist(), sizes[fitting:].tolist(), strict=True):
            if more > room:
                ended.add(n)
            elif n not in ended:
                room -= more
                steps[n] += 1
        rows = self._first[tables] + steps[tables]
        # One after the other, so that the sum is the same on all processors.
        ms = sum(self._ms[rows].tolist())
        return _Filled(steps[tables], int(self._host_bytes[rows].sum()), ms, self._vectors[rows].sum(axis=0))

    def _exchange_ms(self, table: int) -> float:
        of = self._task.tables[table]
        return self.column_ms * of.embedding_dim * of.num_features


def _changed(devices: Sequence[int], slowest: int, change: _Change) -> list[int]:
    """Return the assignment after a change."""
    changed = list(devices)
    changed[change.given] = change.target
    if change.returned >= 0:
        changed[change.returned] = slowest
    return changed
