"""The inner search over the simulator compiled by numba: finds the plans of `GridSearch` with `AdditiveDeviceSets`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from neuroshard.compiled_predictor import ComputeHead, head_ms
from neuroshard.compiled_prices import CompiledPrices
from neuroshard.device_sets import AdditiveDeviceSets
from neuroshard.grid_search import BestPlacements, Cutoff, InnerSearch, PartialPlacements, best_placements
from neuroshard.jit import jit
from shardgym.arrays import Floats, Ints
from shardgym.incumbent import Budget

#: Steps between looks at the clock.
_STEPS = 64
#: Shards of all column plans together that are worth another thread.
_WORTH_A_THREAD = 2000
#: A slot that no set has taken.
_FREE = -1


class SetTable(NamedTuple):
    """Device sets by number, see `DeviceSets`, in an open hash table by key.

    Attributes:
        slots: number of the set in each slot or `_FREE`; a power of 2 of them, twice the capacity at least.
        keys: of sets, shape (capacity,); so are the others up to `compute_ms`.
        parents: which set each is made of.
        added: and which shard.
        sums: added latents, shape (capacity, 32).
        shard_keys: shape (R,); so are the other ones of shards.
        head: of the compute network.
    """

    slots: Ints
    keys: npt.NDArray[np.uint64]
    parents: Ints
    added: Ints
    sums: Floats
    widths: Floats
    compute_ms: Floats
    shard_keys: npt.NDArray[np.uint64]
    shard_latents: Floats
    shard_widths: Floats
    head: ComputeHead


class Limits(NamedTuple):
    """What rules devices out.

    Attributes:
        max_columns: of a device, one per value of the grid, ascending, shape (M,).
        memory: bytes of every device, shape (D,).
        shard_columns: shape (R,).
        shard_bytes: shape (R,).
    """

    max_columns: Floats
    memory: Ints
    shard_columns: Ints
    shard_bytes: Ints


class CompiledDeviceSets(AdditiveDeviceSets):
    """The same sets, looked up and priced by compiled code.

    Args:
        prices: of the task.
    """

    def __init__(self, prices: CompiledPrices) -> None:
        super().__init__(prices)
        self._head = prices.head

    def clear(self) -> None:
        """See `DeviceSets`."""
        super().clear()
        self._slots = _slots_for(self._keys[:1], len(self._keys))

    def add(self, sets: Ints, shards: Ints) -> Ints:
        """See `DeviceSets`."""
        self.reserve(len(sets))
        self.count, numbers = add_all(self.table(), self.count, sets, shards)
        return numbers

    def reserve(self, more: int) -> None:
        """Make room for so many more sets."""
        if self.count + more > len(self._keys):
            capacity = 2 * (self.count + more)
            self._reserve(capacity)
            self._slots = _slots_for(self._keys[: self.count], capacity)

    def table(self) -> SetTable:
        """Return what compiled code works on, until there has to be more room."""
        return SetTable(
            self._slots, self._keys, self._parents, self._added, self._sums, self._widths, self.compute_ms,
            self._shard_keys, self._latents, self._shard_widths, self._head,
        )  # fmt: skip


class CompiledGridSearch:
    """`GridSearch` in compiled code.

    Args:
        device_sets: prices devices.
        budget: of time.
    """

    def __init__(self, device_sets: CompiledDeviceSets, budget: Budget) -> None:
        self.device_sets: CompiledDeviceSets = device_sets
        self._budget = budget
        self._memory: Ints = np.array(device_sets.shards.task.topology.memory_bytes, dtype=np.int64)

    def place(self, plans: Ints, max_columns: Floats, cutoff: Cutoff) -> BestPlacements:
        """See `InnerSearch`."""
        self.device_sets.trim()
        count, steps = plans.shape
        limits = Limits(max_columns, self._memory, self.device_sets.shards.columns, self.device_sets.shards.bytes)
        # Every limit of every plan may come to lead to devices of its own.
        capacity = count * len(max_columns)
        partial = PartialPlacements.start(count, len(max_columns), len(self._memory), capacity)
        plans = np.ascontiguousarray(plans)
        step = 0
        used = count
        while used and step < steps:
            self._budget.check()
            self.device_sets.reserve(2 * capacity)
            step, used, self.device_sets.count = advance(
                partial,
                used,
                self.device_sets.table(),
                self.device_sets.count,
                limits,
                plans,
                step,
                min(step + _STEPS, steps),
            )
        return best_placements(
            self.device_sets, partial.plan[:used], partial.low[:used], partial.sets[:used], count, cutoff
        )


class ThreadedSearch:
    """Shares column plans out over inner searches, a thread each.

    Args:
        searches: with device sets of their own; they must let other threads run, as compiled ones do.
    """

    def __init__(self, searches: Sequence[InnerSearch]) -> None:
        self._searches = searches
        self.device_sets = searches[0].device_sets

    def place(self, plans: Ints, max_columns: Floats, cutoff: Cutoff) -> BestPlacements:
        """See `InnerSearch`."""
        if plans.size < len(self._searches) * _WORTH_A_THREAD:
            return self._searches[0].place(plans, max_columns, cutoff)
        parts = np.array_split(plans, min(len(self._searches), len(plans)))
        with ThreadPoolExecutor(len(parts)) as pool:
            jobs = [
                pool.submit(search.place, part, max_columns, cutoff)
                for search, part in zip(self._searches, parts, strict=False)
            ]
            found = [job.result() for job in jobs]
        where = [(best, n) for best in found for n in range(len(best.costs))]

        def devices_of(plan: int) -> list[list[int]]:
            best, n = where[plan]
            return best.devices_of(n)

        return BestPlacements(np.concatenate([best.costs for best in found]), devices_of)


@jit
def advance(
    partial: PartialPlacements, used: int, table: SetTable, count: int, limits: Limits, plans: Ints, first: int,
    last: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Place the shards of some steps in all partial placements.

    Args:
        partial: the first `used` are under way.
        used: partial placements.
        table: device sets.
        count: device sets in it.
        limits: of devices.
        plans: shards of each column plan in the order they are placed, shape (C, n).
        first: step.
        last: step, itself not taken.

    Returns:
        The step that comes next, earlier than `last` when the table may get too small or no placement is left; partial
        placements; device sets.
    """
    devices = np.empty(len(partial.plan), dtype=np.int64)
    for step in range(first, last):
        if count + len(partial.plan) > len(table.keys):
            return step, used, count
        used = choose_devices(partial, used, limits, plans[:, step], devices)
        new = count
        for n in range(used):
            shard = plans[partial.plan[n], step]
            device = devices[n]
            number = _find_or_append(table, count, partial.sets[n, device], shard)
            count = max(count, number + 1)
            partial.sets[n, device] = number
            partial.bytes[n, device] += limits.shard_bytes[shard]
            partial.columns[n, device] += limits.shard_columns[shard]
        _price_new(table, new, count)
        for n in range(used):
            partial.ms[n, devices[n]] = table.compute_ms[partial.sets[n, devices[n]]]
        if not used:
            return step + 1, used, count
    return last, used, count


@jit
def choose_devices(partial: PartialPlacements, used: int, limits: Limits, shards: Ints, devices: Ints) -> int:
    """Choose the device of each partial placement, splitting those whose limits lead to different devices.

    The largest limit allows the most devices. Limits too small for the device that it leads to become a placement of
    their own that looks again, and so on. What finds no device is given up. Returns how many there are then.
    """
    n = 0
    while n < used:
        shard = shards[partial.plan[n]]
        device = least_loaded(partial, n, limits, shard)
        if device < 0:
            used -= 1
            if n < used:
                _copy(partial, used, n)
            continue
        devices[n] = device
        least = np.searchsorted(limits.max_columns, partial.columns[n, device] + limits.shard_columns[shard])
        if least > partial.low[n]:
            _copy(partial, n, used)
            partial.high[used] = least - 1
            used += 1
            partial.low[n] = least
        n += 1
    return used


@jit
def least_loaded(partial: PartialPlacements, n: int, limits: Limits, shard: int) -> int:
    """Return the allowed device with the least compute (ties: fewer bytes, lower number); -1 for none."""
    best = -1
    least_ms = np.inf
    least_bytes = 0
    max_columns = limits.max_columns[partial.high[n]]
    columns = limits.shard_columns[shard]
    size = limits.shard_bytes[shard]
    for device in range(len(limits.memory)):
        ms = partial.ms[n, device]
        used = partial.bytes[n, device]
        better = ms < least_ms or (ms == least_ms and used < least_bytes)
        if better and used + size <= limits.memory[device] and partial.columns[n, device] + columns <= max_columns:
            best = device
            least_ms = ms
            least_bytes = used
    return best


@jit
def _copy(partial: PartialPlacements, source: int, target: int) -> None:
    """Make one partial placement like another."""
    partial.plan[target] = partial.plan[source]
    partial.low[target] = partial.low[source]
    partial.high[target] = partial.high[source]
    partial.sets[target] = partial.sets[source]
    partial.ms[target] = partial.ms[source]
    partial.bytes[target] = partial.bytes[source]
    partial.columns[target] = partial.columns[source]


def _slots_for(keys: npt.NDArray[np.uint64], capacity: int) -> Ints:
    """Return slots for so many sets, those with the given keys in them."""
    slots: Ints = np.full(2 ** int(2 * capacity - 1).bit_length(), _FREE)
    _fill(slots, keys)
    return slots


@jit
def _fill(slots: Ints, keys: npt.NDArray[np.uint64]) -> None:
    for number in range(len(keys)):
        slot = np.int64(keys[number] & np.uint64(len(slots) - 1))
        while slots[slot] != _FREE:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = number


@jit
def _find_or_append(table: SetTable, count: int, parent: int, shard: int) -> int:
    """Return the number of a set with one shard more: `count` when it is new, and then not priced yet."""
    key = table.keys[parent] + table.shard_keys[shard]
    slot = np.int64(key & np.uint64(len(table.slots) - 1))
    while table.slots[slot] != _FREE:
        number: int = table.slots[slot]
        if table.keys[number] == key:
            return number
        slot = (slot + 1) & (len(table.slots) - 1)
    table.slots[slot] = count
    table.keys[count] = key
    table.parents[count] = parent
    table.added[count] = shard
    table.widths[count] = table.widths[parent] + table.shard_widths[shard]
    for n in range(table.sums.shape[1]):
        table.sums[count, n] = table.sums[parent, n] + table.shard_latents[shard, n]
    return count


@jit
def _price_new(table: SetTable, first: int, count: int) -> None:
    """Price the sets from `first` on, all in one call of the head."""
    if count > first:
        table.compute_ms[first:count] = head_ms(table.head, table.sums[first:count])


@jit
def add_all(table: SetTable, count: int, sets: Ints, shards: Ints) -> tuple[int, Ints]:
    """Add one shard to each of some sets; return how many sets there are then, and the numbers."""
    numbers = np.empty_like(sets)
    first = count
    for n in range(len(sets)):
        numbers[n] = _find_or_append(table, count, sets[n], shards[n])
        count = max(count, numbers[n] + 1)
    _price_new(table, first, count)
    return count, numbers
