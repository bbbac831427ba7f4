"""The inner search: greedy placement of column plans under every limit of a device's width."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from neuroshard.device_sets import DeviceSets, SetTable, find_or_append
from neuroshard.jit import jit
from shardgym.arrays import Floats, Ints
from shardgym.evaluation.solver import Budget

#: Devices scored in one call: few enough for a processor's cache.
_DEVICES_PER_CALL = 2048
#: New sets of a step up to which calls cost more than prices of guesses that were wrong.
_FEW_SETS = 100


class Cutoff:
    """The cost above which column plans are dropped, that of the K-th best of the beam's level so far.

    Args:
        keep: K, the number of column plans that go on to the next level.
    """

    def __init__(self, keep: int) -> None:
        self._least: Floats = np.full(keep, np.inf)

    def together_with(self, costs: Floats) -> float:
        """Return the cutoff with the costs of more column plans, without storing them."""
        last = len(self._least) - 1
        return float(np.partition(np.concatenate([self._least, costs]), last)[last])

    def update(self, costs: Floats) -> None:
        """Store the costs of more column plans of the level."""
        self._least = np.sort(np.concatenate([self._least, costs]))[: len(self._least)]


class BestPlacements(NamedTuple):
    """The best placement of each of C column plans."""

    costs: Floats  #: in ms, shape (C,); infinite without a placement or above the cutoff
    #: Gives the shards on every device for a column plan by number, until more is placed.
    devices_of: Callable[[int], list[list[int]]]


#: What `PartialPlacements.state` says of a placement: its column plan, its first and its last limit, how many shards
#: are placed, and the device that the last one went to, whose `ms` is not up to date.
PLAN, LOW, HIGH, STEP, LAST = range(5)
#: What `PartialPlacements.held` says of a device: its set by number and by key, and what it uses.
SET, KEY, BYTES, COLUMNS = range(4)


class PartialPlacements(NamedTuple):
    """Partial placements, each of one column plan under one or more successive width limits.

    Limits share a partial placement as long as they lead to the same devices. There is room for N of them, plus a row
    for looking ahead.
    """

    state: Ints  #: `PLAN` and so on of each, shape (N + 1, 5)
    held: Ints  #: `SET` and so on of every device, shape (N + 1, D, 4)
    ms: Floats  #: compute of every device, shape (N + 1, D)

    @classmethod
    def start(cls, plans: int, limits: int, devices: int) -> PartialPlacements:
        """Return empty placements of column plans, each under all limits, with room for each limit on its own."""
        rows = plans * limits + 1
        state = np.zeros((rows, 5), dtype=np.int64)
        state[:plans, PLAN] = np.arange(plans)
        state[:plans, HIGH] = limits - 1
        return cls(state, np.zeros((rows, devices, 4), dtype=np.int64), np.zeros((rows, devices)))


class Limits(NamedTuple):
    """Limits that rule devices out."""

    max_columns: Floats  #: maximum columns per device, one per value of the grid, ascending, shape (M,)
    memory: Ints  #: bytes of every device, shape (D,)
    shard_columns: Ints  #: columns of every shard, shape (R,)
    shard_bytes: Ints  #: bytes of every shard, shape (R,)


class GridSearch:
    """Places shards in a given order, each on the device with the least compute so far that has room for it.

    All column plans and all limits advance together, shard by shard. Compiled code chooses devices and looks up sets;
    one call prices all new sets of a step.
    """

    def __init__(self, device_sets: DeviceSets, budget: Budget) -> None:
        self.device_sets = device_sets
        self._budget = budget
        self._memory: Ints = np.array(device_sets.shards.task.capacity_bytes, dtype=np.int64)

    def place(self, plans: Ints, max_columns: Floats, cutoff: Cutoff) -> BestPlacements:
        """Find the best placement of each column plan over a grid of width limits.

        Args:
            plans: shards of each column plan in the order of placing, shape (C, n).
            max_columns: maximum columns per device, one per value of the grid, ascending, shape (M,).
            cutoff: cost above which a column plan is of no interest and gets an infinite cost.
        """
        sets = self.device_sets
        sets.trim()
        sets.single_ms(plans.ravel())
        limits = Limits(max_columns, self._memory, sets.shards.columns, sets.shards.bytes)
        partial = PartialPlacements.start(len(plans), len(max_columns), len(self._memory))
        used, count, ahead = len(plans), -1, sets.ahead
        while count != sets.count:
            self._budget.check()
            sets.reserve((1 + ahead) * len(partial.state))
            count = sets.count
            used, more = advance(partial, used, sets.table, count, limits, plans, ahead)
            ahead = sets.ahead if more - count < (1 + ahead) * _FEW_SETS else 0
            sets.price_up_to(more)
        state, held = partial.state[:used], partial.held[:used]
        return best_placements(sets, state[:, PLAN], state[:, LOW], held[:, :, SET], len(plans), cutoff)


@jit
def advance(
    partial: PartialPlacements, used: int, table: SetTable, priced: int, limits: Limits, plans: Ints, ahead: int
) -> tuple[int, int]:
    """Place the next shards of all partial placements until each needs the price of a new set.

    A shard goes to the allowed device with the least compute (ties: fewer bytes, lower number). The largest limit
    chooses first, as it allows the most devices. Limits too small for its device split off into a placement of their
    own, which chooses again, and so on. A placement without a device is abandoned.

    At a missing price, the function guesses the devices of some more shards, so that one call prices most sets that
    will be needed next.

    Args:
        partial: partial placements, of which the first `used` are in use.
        used: number of partial placements.
        table: device sets, with room for `ahead` + 1 new ones per partial placement.
        priced: number of device sets, all priced.
        limits: limits of devices.
        plans: shards of each column plan in the order of placing, shape (C, n).
        ahead: number of shards to guess.

    Returns:
        The new numbers of partial placements and device sets. Placements are complete when no set is new.
    """
    state = partial.state
    held = partial.held
    all_ms = partial.ms
    memory = limits.memory
    count = priced
    n: int = np.int64(0)  # type: ignore[assignment]  # no literal, for which numba would compile callees once more
    while n < used:
        row = n
        guesses = ahead
        while state[row, STEP] < plans.shape[1]:
            last = state[row, LAST]
            if row != n or held[row, last, SET] >= priced:
                if guesses == 0:
                    break
                guesses -= 1
                if row == n:
                    row = len(state) - 1
                    copy_placement(state, held, all_ms, n, row)
            all_ms[row, last] = table.compute_ms[held[row, last, SET]]
            shard = plans[state[row, PLAN], state[row, STEP]]
            columns = limits.shard_columns[shard]
            size = limits.shard_bytes[shard]
            max_columns = limits.max_columns[state[row, HIGH]]
            best = -1
            least_ms = np.inf
            least_bytes = 0
            for device in range(len(memory)):
                ms = all_ms[row, device]
                if ms <= least_ms:
                    filled = held[row, device, BYTES]
                    better = ms < least_ms or filled < least_bytes
                    allowed = filled + size <= memory[device] and held[row, device, COLUMNS] + columns <= max_columns
                    if better and allowed:
                        best = device
                        least_ms = ms
                        least_bytes = filled
            if best < 0:
                break
            wide = held[row, best, COLUMNS] + columns
            if row == n:
                low = state[n, LOW]
                while limits.max_columns[low] < wide:
                    low += 1
                if low > state[n, LOW]:
                    copy_placement(state, held, all_ms, n, used)
                    state[used, HIGH] = low - 1
                    used += 1
                    state[n, LOW] = low
            key = held[row, best, KEY] + table.shard_keys[shard]
            number = find_or_append(table, count, held[row, best, SET], key, shard)
            count = max(count, number + 1)
            held[row, best, SET] = number
            held[row, best, KEY] = key
            held[row, best, BYTES] += size
            held[row, best, COLUMNS] = wide
            state[row, LAST] = best
            state[row, STEP] += 1
        if row == n and state[n, STEP] < plans.shape[1] and held[n, state[n, LAST], SET] < priced:
            used -= 1
            copy_placement(state, held, all_ms, used, n)
        else:
            n += 1
    return used, count


@jit
def copy_placement(state: Ints, held: Ints, ms: Floats, source: int, target: int) -> None:
    """Copy one partial placement to another."""
    for n in range(state.shape[1]):
        state[target, n] = state[source, n]
    for device in range(held.shape[1]):
        for n in range(held.shape[2]):
            held[target, device, n] = held[source, device, n]
        ms[target, device] = ms[source, device]


def best_placements(
    device_sets: DeviceSets, plan: Ints, low: Ints, sets: Ints, count: int, cutoff: Cutoff
) -> BestPlacements:
    """Return the cheapest placement of each column plan, including communication; ties go to the smallest limit.

    Placements are scored in the order of their lower bounds. From the first bound above the cutoff on, no placement can
    be among the best column plans, and none is scored. Placements have a column plan out of `count`, `plan`, (P,), a
    first limit, `low`, (P,), and the sets of their devices, `sets`, (P, D).
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
