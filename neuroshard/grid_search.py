"""The inner search, readable and for every cost model: greedy placement under every limit of a device's width."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from neuroshard.device_sets import EMPTY, DeviceSets
from shardgym.arrays import Bools, Floats, Ints
from shardgym.incumbent import Budget

#: Devices scored in one call: few enough for a processor's cache.
_DEVICES_PER_CALL = 1024


class Cutoff:
    """The cost above which a column plan stays behind: that of the K-th best of its level of the beam so far.

    Args:
        keep: K, column plans that go on to the next level.
    """

    def __init__(self, keep: int) -> None:
        self._least: Floats = np.full(keep, np.inf)

    def together_with(self, costs: Floats) -> float:
        """Return the cutoff, given the costs of some more column plans; these are not remembered."""
        last = len(self._least) - 1
        return float(np.partition(np.concatenate([self._least, costs]), last)[last])

    def update(self, costs: Floats) -> None:
        """Remember the costs of more column plans of the level."""
        self._least = np.sort(np.concatenate([self._least, costs]))[: len(self._least)]


class BestPlacements(NamedTuple):
    """The best placement of each of C column plans.

    Attributes:
        costs: in ms, shape (C,); infinite without a placement, or when above the cutoff.
        devices_of: gives the shards on every device for a column plan by number, until more is placed.
    """

    costs: Floats
    devices_of: Callable[[int], list[list[int]]]


class InnerSearch(Protocol):
    """Places the shards of column plans."""

    @property
    def device_sets(self) -> DeviceSets:
        """What prices devices and placements."""

    def place(self, plans: Ints, max_columns: Floats, cutoff: Cutoff) -> BestPlacements:
        """Find the best placement of each column plan over a grid of width limits.

        Args:
            plans: shards of each column plan in the order they are placed, shape (C, n).
            max_columns: largest columns of a device, one per value of the grid, ascending, shape (M,).
            cutoff: what costs more is of no interest; it gets an infinite cost.

        Raises:
            OutOfTime: the budget is spent.
        """


class PartialPlacements(NamedTuple):
    """Placements under way, N of them, each for one column plan and one or more width limits in succession.

    As long as two limits lead to the same devices, they are one partial placement.

    Attributes:
        plan: which column plan each is of, shape (N,).
        low: first limit, shape (N,).
        high: last limit, shape (N,).
        sets: what every device holds, shape (N, D).
        ms: compute of every device, shape (N, D).
        bytes: used of every device, shape (N, D).
        columns: of every device, shape (N, D).
    """

    plan: Ints
    low: Ints
    high: Ints
    sets: Ints
    ms: Floats
    bytes: Ints
    columns: Ints

    @classmethod
    def start(cls, plans: int, limits: int, devices: int, capacity: int | None = None) -> PartialPlacements:
        """Return column plans with nothing placed, each under all limits; with room for more where that is wanted."""
        capacity = capacity or plans
        return cls(
            plan=np.arange(capacity),
            low=np.zeros(capacity, dtype=np.int64),
            high=np.full(capacity, limits - 1),
            sets=np.full((capacity, devices), EMPTY),
            ms=np.zeros((capacity, devices)),
            bytes=np.zeros((capacity, devices), dtype=np.int64),
            columns=np.zeros((capacity, devices), dtype=np.int64),
        )


class GridSearch:
    """Places shards in a given order, each on the device with the least compute so far that has room for it.

    All column plans and all limits advance together, shard by shard.

    Args:
        device_sets: prices devices.
        budget: of time.
    """

    def __init__(self, device_sets: DeviceSets, budget: Budget) -> None:
        self.device_sets = device_sets
        self._budget = budget
        self._memory: Ints = np.array(device_sets.shards.task.topology.memory_bytes, dtype=np.int64)

    def place(self, plans: Ints, max_columns: Floats, cutoff: Cutoff) -> BestPlacements:
        """See `InnerSearch`."""
        self.device_sets.trim()
        partial = PartialPlacements.start(len(plans), len(max_columns), len(self._memory))
        for step in range(plans.shape[1]):
            self._budget.check()
            partial = self._place_next(partial, plans[partial.plan, step], max_columns)
            if not partial.plan.size:
                break
        return best_placements(self.device_sets, partial.plan, partial.low, partial.sets, len(plans), cutoff)

    def _place_next(self, partial: PartialPlacements, shards: Ints, max_columns: Floats) -> PartialPlacements:
        """Place one shard in each partial placement, splitting those whose limits lead to different devices.

        The largest limit allows the most devices. Limits too small for the device that it leads to are looked at again
        without that device, and so on. What finds no device is given up.
        """
        columns = self.device_sets.shards.columns[shards]
        size = self.device_sets.shards.bytes[shards]
        wide = partial.columns + columns[:, None]
        has_room = partial.bytes + size[:, None] <= self._memory
        index = np.arange(len(shards))
        high = partial.high
        parts = []
        while index.size:
            device, ms = _least_loaded(partial, index, has_room[index] & (wide[index] <= max_columns[high][:, None]))
            least = np.maximum(max_columns.searchsorted(wide[index, device]), partial.low[index])
            placed = np.isfinite(ms)
            parts.append((index[placed], device[placed], least[placed], high[placed]))
            again = placed & (least > partial.low[index])
            index = index[again]
            high = least[again] - 1
        index, device, low, high = (np.concatenate(part) for part in zip(*parts, strict=True))
        partial = PartialPlacements._make(values[index] for values in partial)._replace(low=low, high=high)
        at = (np.arange(len(index)), device)
        partial.sets[at] = self.device_sets.add(partial.sets[at], shards[index])
        partial.ms[at] = self.device_sets.compute_ms[partial.sets[at]]
        partial.bytes[at] += size[index]
        partial.columns[at] += columns[index]
        return partial


def _least_loaded(partial: PartialPlacements, index: Ints, allowed: Bools) -> tuple[Ints, Floats]:
    """Return the allowed device with the least compute (ties: fewer bytes, lower number) and its ms or infinity."""
    ms = np.where(allowed, partial.ms[index], np.inf)
    least = ms.min(axis=1)
    tied = ms == least[:, None]
    return np.where(tied, partial.bytes[index], np.iinfo(np.int64).max).argmin(axis=1), least


def best_placements(
    device_sets: DeviceSets, plan: Ints, low: Ints, sets: Ints, count: int, cutoff: Cutoff
) -> BestPlacements:
    """Keep the cheapest placement of each column plan, communication included; ties go to the least limit.

    Placements are scored in the order of their lower bounds. Where the bound is above the cutoff, neither they nor what
    follows can be among the best column plans, and none of them is scored.

    Args:
        device_sets: prices placements.
        plan: which column plan each placement is of, shape (P,).
        low: first limit of each, shape (P,).
        sets: of the devices of each, shape (P, D).
        count: column plans.
        cutoff: of the level.
    """
    costs = np.full(count, np.inf)
    best = np.full(count, -1)
    bounds = device_sets.lower_bounds(sets)
    order = np.lexsort((low, bounds))
    size = max(_DEVICES_PER_CALL // sets.shape[1], 1)
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        batch = batch[bounds[batch] <= cutoff.together_with(costs)]
        if not batch.size:
            break
        totals = device_sets.total_ms(sets[batch])
        for n, total in zip(batch.tolist(), totals.tolist(), strict=True):
            row = plan[n]
            if total < costs[row] or (total == costs[row] and low[n] < low[best[row]]):
                costs[row] = total
                best[row] = n
    return BestPlacements(costs, lambda number: [device_sets.members(one) for one in sets[best[number]].tolist()])
