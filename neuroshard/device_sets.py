"""Device sets: what one device may hold, each priced once however often the search comes across it, and by what."""

from __future__ import annotations

import abc
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from neuroshard.shard_table import ShardTable, plan_of
from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel
from shardgym.ties import quantized

#: The number of the set of an empty device.
EMPTY = 0

_FIRST_CAPACITY = 1024
#: Sets that may be kept from one call of the inner search to the next.
_MOST_KEPT = 200_000


class DeviceSets(abc.ABC):
    """Sets of shards by number; 0 is the empty one.

    A set is made by adding a shard to another. The published cache knows a set only in the order in which it came
    together. Here the order does not matter: the key of a set is the sum of random 64-bit keys of its shards.

    Args:
        shards: of the task.

    Attributes:
        shards: of the task.
        count: sets so far.
        compute_ms: forward plus backward compute of each set, quantized, shape (capacity,).
    """

    #: Names of the arrays with a row per set.
    _arrays: ClassVar[tuple[str, ...]] = ("compute_ms", "_keys", "_parents", "_added")

    def __init__(self, shards: ShardTable) -> None:
        self.shards = shards
        rng = np.random.default_rng(0)
        self._shard_keys: npt.NDArray[np.uint64] = rng.integers(2**64, size=len(shards), dtype=np.uint64)
        self._single_ms: Floats = np.full(len(shards), np.nan)
        self.clear()

    def clear(self) -> None:
        """Forget all sets but the empty one."""
        self.count = 1
        self.compute_ms: Floats = np.zeros(_FIRST_CAPACITY)
        self._keys: npt.NDArray[np.uint64] = np.zeros(_FIRST_CAPACITY, dtype=np.uint64)
        self._parents: Ints = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self._added: Ints = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self._known: dict[int, int] = {0: EMPTY}

    def trim(self) -> None:
        """Forget all sets when there are many."""
        if self.count > _MOST_KEPT:
            self.clear()

    def add(self, sets: Ints, shards: Ints) -> Ints:
        """Return the sets that adding one shard to each of some sets gives, pricing new ones together; shape (n,)."""
        keys = (self._keys[sets] + self._shard_keys[shards]).tolist()
        numbers = list(map(self._known.get, keys))
        new = []
        following = self.count
        for n, number in enumerate(numbers):
            if number is None:
                # The same new set may come up more than once in a call.
                numbers[n] = self._known.setdefault(keys[n], following)
                if numbers[n] == following:
                    new.append(n)
                    following += 1
        if new:
            self._append(sets[new], shards[new])
        return np.array(numbers, dtype=np.int64)

    def single_ms(self, shards: Ints) -> Floats:
        """Return what shards alone on a device compute in ms, shape (n,)."""
        new = np.unique(shards[np.isnan(self._single_ms[shards])])
        if new.size:
            sets = self.add(np.full_like(new, EMPTY), new)  # first: it may replace the arrays by larger ones
            self._single_ms[new] = self.compute_ms[sets]
        return self._single_ms[shards]

    def members(self, number: int) -> list[int]:
        """Return the shards of a set."""
        shards = []
        while number != EMPTY:
            shards.append(int(self._added[number]))
            number = int(self._parents[number])
        return shards

    def lower_bounds(self, sets: Ints) -> Floats:
        """Return what whole plans take at least in ms; 0 where nothing is certain.

        Args:
            sets: of every device of every plan, shape (P, D).

        Returns:
            Shape (P,).
        """
        return np.zeros(len(sets), dtype=np.float64)

    @abc.abstractmethod
    def total_ms(self, sets: Ints) -> Floats:
        """Return what whole plans take in ms, communication included and quantized; (P, D) to (P,)."""

    @abc.abstractmethod
    def _price(self, numbers: Ints, sets: Ints, shards: Ints) -> Floats:
        """Return compute in ms, quantized, of new sets `numbers`, of one of `sets` and of `shards` each; shape (n,)."""

    def _append(self, sets: Ints, shards: Ints) -> None:
        """Number new sets consecutively and price them."""
        numbers = np.arange(self.count, self.count + len(shards))
        if numbers[-1] >= len(self.compute_ms):
            self._reserve(2 * int(numbers[-1]))
        ms = self._price(numbers, sets, shards)
        self.count += len(shards)
        self.compute_ms[numbers] = ms
        self._keys[numbers] = self._keys[sets] + self._shard_keys[shards]
        self._parents[numbers] = sets
        self._added[numbers] = shards

    def _reserve(self, capacity: int) -> None:
        """Make room for sets."""
        for name in self._arrays:
            array = getattr(self, name)
            grown = np.zeros((capacity, *array.shape[1:]), dtype=array.dtype)
            grown[: len(array)] = array
            setattr(self, name, grown)


class AdditivePrices:
    """What devices and plans of one task take by an additive cost model, from added latents of their shards.

    Times are quantized, see `shardgym.ties`.

    Args:
        shards: of the task.
        costs: of the cost model.

    Attributes:
        shards: as given.

    Raises:
        InputError: `costs` knows no tasks of this kind.
    """

    def __init__(self, shards: ShardTable, costs: AdditiveCosts) -> None:
        self.shards = shards
        self._costs = costs
        self._task = costs.add_task(shards.task)

    def latents(self, rows: Ints) -> Floats:
        """Return what some shards, encoded together, add to the sum of their device; zeros for others, shape (R, K)."""
        shards = self.shards
        # Making a `Shard` of every row, which checks its fields, would take longer than encoding them.
        tables = [(table.name, table.num_embeddings) for table in shards.task.tables]
        described = zip(shards.tables[rows].tolist(), shards.columns[rows].tolist(), strict=True)
        keys = [(*tables[table], columns) for table, columns in described]
        known = self._costs.latents(self._costs.encode_keys(shards.task, keys))
        latents = np.zeros((len(shards), known.shape[1]))
        latents[rows] = known
        return latents

    def compute_ms(self, sums: Floats, counts: Ints) -> Floats:
        """Return what devices compute in ms, from added latents (..., K) and numbers of shards (...), shape (...)."""
        return quantized(self._costs.device_ms(sums, counts).sum(axis=-1))

    def slowest_ms(self, compute: Floats, widths: Floats) -> Floats:
        """Return what plans take in ms, communication included, from compute and columns, (P, D) each, shape (P,)."""
        return self._costs.slowest_ms(self._task, compute, widths)


class AdditiveDeviceSets(DeviceSets):
    """Sets priced by sums over their shards: one vector addition each, and one call for all new ones.

    Args:
        prices: of the task; shards that halving leads to are encoded at once, here and never again.
    """

    _arrays = (*DeviceSets._arrays, "_sums", "_counts", "_widths")

    def __init__(self, prices: AdditivePrices) -> None:
        self._prices = prices
        shards = prices.shards
        self._latents = prices.latents(shards.reached_by_halving())
        self._shard_widths: Floats = shards.columns.astype(np.float64)
        super().__init__(shards)

    def clear(self) -> None:
        """See `DeviceSets`."""
        super().clear()
        self._sums: Floats = np.zeros((len(self.compute_ms), self._latents.shape[1]))
        self._counts: Ints = np.zeros(len(self.compute_ms), dtype=np.int64)
        self._widths: Floats = np.zeros(len(self.compute_ms))

    def lower_bounds(self, sets: Ints) -> Floats:
        """Return the compute of each plan's busiest device: communication takes no negative time."""
        return np.asarray(self.compute_ms[sets].max(axis=1), dtype=np.float64)

    def total_ms(self, sets: Ints) -> Floats:
        """See `DeviceSets`."""
        return self._prices.slowest_ms(self.compute_ms[sets], self._widths[sets])

    def _price(self, numbers: Ints, sets: Ints, shards: Ints) -> Floats:
        self._widths[numbers] = self._widths[sets] + self._shard_widths[shards]
        self._counts[numbers] = self._counts[sets] + 1
        self._sums[numbers] = self._sums[sets] + self._latents[shards]
        return self._prices.compute_ms(self._sums[numbers], self._counts[numbers])


class EvaluatedDeviceSets(DeviceSets):
    """Sets priced by any cost model, which evaluates plans of made-up tasks: every new set is what one device holds.

    This is slow with most cost models; the search is made for additive ones.

    Args:
        shards: of the task.
        cost: any cost model.
    """

    def __init__(self, shards: ShardTable, cost: CostModel) -> None:
        self._cost = cost
        super().__init__(shards)

    def total_ms(self, sets: Ints) -> Floats:
        """See `DeviceSets`."""
        plans = [plan_of(self.shards, [self.members(number) for number in row]) for row in sets.tolist()]
        return quantized(np.array([cost.total_ms for cost in self._cost.evaluate(self.shards.task, plans)]))

    def _price(self, numbers: Ints, sets: Ints, shards: Ints) -> Floats:
        del numbers
        devices = [[*self.members(number), shard] for number, shard in zip(sets.tolist(), shards.tolist(), strict=True)]
        task, plan = self.shards.with_own_tables(devices)
        (cost,) = self._cost.evaluate(task, [plan])
        return quantized(cost.compute_ms)
