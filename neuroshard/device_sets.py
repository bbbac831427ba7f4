"""Device sets: sets of shards on one device, each priced only once, and how costs price them."""

from __future__ import annotations

import abc
from typing import ClassVar, NamedTuple

import numpy as np

from neuroshard.jit import jit
from neuroshard.shard_table import ShardTable, plan_of
from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel
from shardgym.costs.links import LOADS
from shardgym.costs.plan_cost import COMPUTE_COLUMNS
from shardgym.costs.ties import quantized

#: The number of the set of an empty device.
EMPTY = 0

_FIRST_CAPACITY = 2**16
#: Sets that may be kept from one call of the inner search to the next.
_MOST_KEPT = 200_000


class SetTable(NamedTuple):
    """Sets by number, and the hash table that compiled code needs to add more."""

    #: An open hash table: key and number of the set in each slot, or 0 where there is none; a power of 2 of them, twice
    #: the capacity at least; shape (S, 2).
    slots: Ints
    keys: Ints  #: key of each set, shape (capacity,)
    parents: Ints  #: set without the last shard, shape (capacity,)
    added: Ints  #: last shard of each set, shape (capacity,)
    sums: Floats  #: sum of the vectors of each set's shards, shape (capacity, V)
    passes_ms: Floats  #: forward and backward compute of each priced set, quantized, shape (capacity, 2)
    #: Their sum, by which shards are placed, shape (capacity,). A set without a price has the sum of its parent's and
    #: of its last shard's alone.
    compute_ms: Floats
    shard_keys: Ints  #: random key of each shard, shape (R,)
    shard_vectors: Floats  #: vector of each shard, shape (R, V)
    shard_ms: Floats  #: compute of each shard alone, NaN if not priced yet, shape (R,)

    @classmethod
    def of_capacity(cls, capacity: int, shard_keys: Ints, shard_vectors: Floats, shard_ms: Floats) -> SetTable:
        """Return a table with the empty set and room for `capacity` sets."""
        slots = np.zeros((2 ** int(2 * capacity - 1).bit_length(), 2), dtype=np.int64)
        keys, parents, added = np.empty((3, capacity), dtype=np.int64)
        sums = np.empty((capacity, shard_vectors.shape[1]))
        passes_ms, compute_ms = np.empty((capacity, 2)), np.empty(capacity)
        table = cls(slots, keys, parents, added, sums, passes_ms, compute_ms, shard_keys, shard_vectors, shard_ms)
        for array in (table.keys, table.sums, table.passes_ms, table.compute_ms):
            array[EMPTY] = 0
        return table

    def larger(self, capacity: int, count: int) -> SetTable:
        """Return a table with the first `count` of these sets and room for `capacity`."""
        table = self.of_capacity(capacity, *self[-3:])
        for old, new in zip(self[1:-3], table[1:-3], strict=True):
            new[:count] = old[:count]
        fill(table.slots, table.keys[:count])
        return table


class DeviceSets(abc.ABC):
    """Sets of shards by number; 0 is the empty one.

    Adding a shard to a set makes a new set. Unlike in the published cache, the order of shards does not matter: the key
    of a set is the sum of random 64-bit keys of its shards.

    Args:
        shards: shards of the task.
        vectors: vectors of shards, which sets add up, shape (R, V).
    """

    #: How many sets of each placement the search guesses that it will need while few are new, so that they are priced
    #: together.
    ahead: ClassVar[int] = 0

    def __init__(self, shards: ShardTable, vectors: Floats) -> None:
        self.shards = shards
        keys = np.random.default_rng(0).integers(-(2**63), 2**63, size=len(shards))
        self.table = SetTable.of_capacity(_FIRST_CAPACITY, keys, vectors, np.full(len(shards), np.nan))
        self.count = 1  #: sets so far

    def trim(self) -> None:
        """Forget all sets but the empty one if there are many."""
        if self.count > _MOST_KEPT:
            self.table = self.table.larger(_FIRST_CAPACITY, 1)
            self.count = 1

    def reserve(self, more: int) -> None:
        """Make room for `more` sets."""
        capacity = len(self.table.keys)
        if self.count + more > capacity:
            self.table = self.table.larger(max(2 * capacity, self.count + more), self.count)

    def add(self, sets: Ints, shards: Ints) -> Ints:
        """Add one shard to each of some sets, price new sets together, and return the resulting sets, shape (n,)."""
        self.reserve(len(sets))
        numbers = np.empty_like(sets)
        self.price_up_to(add_all(self.table, self.count, sets, shards, numbers))
        return numbers

    def price_up_to(self, count: int) -> None:
        """Price the sets after the first `count` in one call."""
        if count > self.count:
            passes_ms = self._price(self.count, count)
            self.table.passes_ms[self.count : count] = passes_ms
            self.table.compute_ms[self.count : count] = passes_ms[:, 0] + passes_ms[:, 1]
            self.count = count

    def single_ms(self, shards: Ints) -> Floats:
        """Return the compute of shards alone on a device in ms, shape (...)."""
        ms = self.table.shard_ms[shards]
        if np.isnan(ms).any():
            new = np.unique(shards[np.isnan(ms)])
            sets = self.add(np.full_like(new, EMPTY), new)
            self.table.shard_ms[new] = self.table.compute_ms[sets]
            ms = self.table.shard_ms[shards]
        return ms

    def members(self, number: int) -> list[int]:
        """Return the shards of a set."""
        shards = []
        while number != EMPTY:
            shards.append(int(self.table.added[number]))
            number = int(self.table.parents[number])
        return shards

    def lower_bounds(self, sets: Ints) -> Floats:
        """Return lower bounds on plans' costs in ms, possibly 0, given the devices' sets, (P, D) to (P,)."""
        return np.zeros(len(sets), dtype=np.float64)

    @abc.abstractmethod
    def total_ms(self, sets: Ints) -> Floats:
        """Return plans' costs in ms, quantized, including communication, (P, D) to (P,)."""

    @abc.abstractmethod
    def _price(self, first: int, last: int) -> Floats:
        """Return forward and backward ms, quantized, of the sets from `first` to `last`, itself not priced; (n, 2)."""


class AdditiveDeviceSets(DeviceSets):
    """Sets priced by an additive cost: one vector addition per set, and one call for all new sets.

    Args:
        shards: shards of the task; the constructor describes all that halving leads to.
        costs: additive costs of the cost model.
    """

    ahead = 3

    def __init__(self, shards: ShardTable, costs: AdditiveCosts) -> None:
        self._costs = costs
        self._task = costs.add_task(shards.task)
        super().__init__(shards, shards.vectors(costs, shards.reached_by_halving()))

    def lower_bounds(self, sets: Ints) -> Floats:
        """Return the compute of each plan's busiest device."""
        return np.asarray(self.table.compute_ms[sets].max(axis=1), dtype=np.float64)

    def total_ms(self, sets: Ints) -> Floats:
        """See `DeviceSets`."""
        return self._costs.slowest_ms(self._task, self.table.passes_ms[sets], self.table.sums[sets, -LOADS:])

    def _price(self, first: int, last: int) -> Floats:
        return self._costs.compute_ms(self.table.sums[first:last])


class EvaluatedDeviceSets(DeviceSets):
    """Sets priced by any cost model through plans of artificial tasks, whose devices hold the new sets.

    This is slow with most cost models; the search is made for additive ones.
    """

    def __init__(self, shards: ShardTable, cost: CostModel) -> None:
        self._cost = cost
        super().__init__(shards, np.zeros((len(shards), 0)))

    def total_ms(self, sets: Ints) -> Floats:
        """See `DeviceSets`."""
        plans = [plan_of(self.shards, [self.members(number) for number in row]) for row in sets.tolist()]
        return quantized(np.array([cost.total_ms for cost in self._cost.evaluate(self.shards.task, plans)]))

    def _price(self, first: int, last: int) -> Floats:
        most = self._cost.max_devices or last - first
        parts = []
        for start in range(first, last, most):
            numbers = range(start, min(start + most, last))
            task, plan = self.shards.with_own_tables([self.members(number) for number in numbers])
            (cost,) = self._cost.evaluate(task, [plan])
            parts.append(cost.per_device[:, COMPUTE_COLUMNS])
        return quantized(np.concatenate(parts))


@jit
def fill(slots: Ints, keys: Ints) -> None:
    """Insert all sets but the empty one into empty slots."""
    for number in range(1, len(keys)):
        slot = keys[number] & (len(slots) - 1)
        while slots[slot, 1] != EMPTY:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot, 0] = keys[number]
        slots[slot, 1] = number


@jit
def find_or_append(table: SetTable, count: int, parent: int, key: int, shard: int) -> int:
    """Return the number of a set with one more shard: `count` if the set is new and therefore not priced.

    `parent` is the number of the set without the shard, `key` the key of the set with it.
    """
    last = len(table.slots) - 1
    slot = key & last
    while table.slots[slot, 1] != EMPTY:
        if table.slots[slot, 0] == key:
            number: int = table.slots[slot, 1]
            return number
        slot = (slot + 1) & last
    table.slots[slot, 0] = key
    table.slots[slot, 1] = count
    table.keys[count] = key
    table.parents[count] = parent
    table.added[count] = shard
    for n in range(table.sums.shape[1]):
        table.sums[count, n] = table.sums[parent, n] + table.shard_vectors[shard, n]
    table.compute_ms[count] = table.compute_ms[parent] + table.shard_ms[shard]
    return count


@jit
def add_all(table: SetTable, count: int, sets: Ints, shards: Ints, numbers: Ints) -> int:
    """Add one shard to each of some sets; write the resulting numbers to `numbers` and return the new set count."""
    for n in range(len(sets)):
        key = table.keys[sets[n]] + table.shard_keys[shards[n]]
        numbers[n] = find_or_append(table, count, sets[n], key, shards[n])
        count = max(count, numbers[n] + 1)
    return count
