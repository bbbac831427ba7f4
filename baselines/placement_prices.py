"""Prices of many placements at once, and of the neighbours of one placement; additive oracles make both fast."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from baselines.lpt import halves
from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.links import LOADS
from shardgym.costs.ties import quantized
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tasks.task import ShardingTask

#: Elements of the arrays of one query; larger ones leave the processor's cache.
_ELEMENTS_AT_ONCE = 2**18
#: Forms in which a shard can be on a device; positions along the second axis of shards' arrays.
_WHOLE, _LEFT, _RIGHT = range(3)


class PlacementPrices:
    """Prices placements of C candidate shards. Prices are quantized, see `shardgym.costs.ties`.

    A placement is a boolean array (D, C) of the candidates on each device. A candidate stands for a number of columns
    of a table, so it may be on several devices; its first column and its devices do not matter.
    """

    def __init__(self, task: ShardingTask, cost: CostModel, shards: Sequence[Shard]) -> None:
        self._task = task
        self._cost = cost
        self._shards = list(shards)
        self._additive = cost.additive()
        if self._additive is not None:
            self._number = self._additive.add_task(task)
            self._vectors = self._additive.vectors(self._additive.encode(task, self._shards))

    def totals(self, placements: Bools) -> Floats:
        """Return the costs of placements in ms, (P, D, C) to (P,); infinite for infeasible plans."""
        if self._additive is None:
            plans = [self.plan(placement) for placement in placements]
            return quantized(np.array([cost.total_ms for cost in self._cost.evaluate(self._task, plans)]))
        step = max(_ELEMENTS_AT_ONCE // placements[0].size, 1)
        found = []
        for n in range(0, len(placements), step):
            sums = placements[n : n + step].astype(np.float64) @ self._vectors
            found.append(self._additive.slowest_ms(self._number, self._additive.compute_ms(sums), sums[..., -LOADS:]))
        return np.concatenate(found)

    def plan(self, placement: Bools) -> ShardingPlan:
        """Return a placement as a plan, assigning each table's columns from the left by device number."""
        next_column = dict.fromkeys((shard.table for shard in self._shards), 0)
        placed = []
        for device, candidate in np.argwhere(placement).tolist():
            shard = self._shards[candidate]
            first = next_column[shard.table]
            next_column[shard.table] = first + shard.num_columns
            columns = (first, first + shard.num_columns)
            placed.append(shard.with_columns(*columns).on(device))
        return ShardingPlan.of(self._task, placed)


class Changes(NamedTuple):
    """M changes of a placement. Each moves a shard, or its right half, and may move another shard back."""

    given: Ints  #: shard that moves, shape (M,)
    target: Ints  #: its new device, shape (M,)
    returned: Ints  #: shard of that device that moves back, -1 for none, shape (M,)
    halved: Bools  #: whether the left half stays, shape (M,)

    def take(self, which: Ints | Bools | slice) -> Changes:
        """Return some of the changes."""
        return Changes(self.given[which], self.target[which], self.returned[which], self.halved[which])


def joined(changes: Sequence[Changes]) -> Changes:
    """Concatenate changes."""
    return Changes(*(np.concatenate(values) for values in zip(*changes, strict=True)))


class Neighbourhood:
    """A mutable placement and the prices of its changes, quantized, see `shardgym.costs.ties`.

    An additive oracle prices a change by its two devices; any other oracle evaluates a whole plan per change. No device
    gets two shards of a table.
    """

    def __init__(self, task: ShardingTask, cost: CostModel, plan: ShardingPlan) -> None:
        self._task = task
        self._cost = cost
        self._additive = cost.additive()
        self._number = 0 if self._additive is None else self._additive.add_task(task)
        self._memory: Ints = np.array(task.capacity_bytes, dtype=np.int64)
        self._position = {table.name: n for n, table in enumerate(task.tables)}
        self.shards = list(plan.shards)
        self.devices: Ints = np.array([shard.devices[0] for shard in self.shards], dtype=np.int64)
        self._tables: Ints = np.array([self._position[shard.table] for shard in self.shards], dtype=np.int64)
        self.can_be_halved, self._bytes, self._vectors = self._describe(self.shards)
        self._sum_up(range(task.num_devices))

    def _describe(self, shards: Sequence[Shard]) -> tuple[Bools, Ints, Floats]:
        """Return whether shards have halves, (n,), and the bytes, (n, 3), and vectors, (n, 3, K + 3), of all three."""
        parts = [halves(shard) for shard in shards]
        forms = [form for shard, two in zip(shards, parts, strict=True) for form in (shard, *(two or (shard, shard)))]
        sizes = np.array([form.bytes(self._task) for form in forms], dtype=np.int64).reshape(-1, 3)
        if self._additive is None:
            vectors = np.zeros((len(forms), LOADS))
        else:
            vectors = self._additive.vectors(self._additive.encode(self._task, forms))
        return np.array([bool(two) for two in parts]), sizes, vectors.reshape(len(shards), 3, -1)

    def _sum_up(self, devices: Sequence[int] | range) -> None:
        """Add up what is on devices; anew, as what subtraction leaves of large latents would drown small ones."""
        if len(devices) == self._task.num_devices:
            self._room = self._memory.copy()
            self._sums: Floats = np.zeros((len(devices), self._vectors.shape[2]))
            self._holds: Bools = np.zeros((len(devices), self._task.num_tables), dtype=np.bool_)
        for device in devices:
            here = np.flatnonzero(self.devices == device)
            self._room[device] = self._memory[device] - self._bytes[here, _WHOLE].sum()
            self._sums[device] = self._vectors[here, _WHOLE].sum(axis=0)
            self._holds[device] = False
            self._holds[device, self._tables[here]] = True
        #: Forward and backward compute of every device in ms, shape (D, 2); zeros where the oracle is not additive.
        self._passes_ms = self._compute_ms(self._sums)

    @property
    def compute_ms(self) -> Floats:
        """Forward plus backward compute of every device, shape (D,); zeros if the oracle is not additive."""
        return self._passes_ms[:, 0] + self._passes_ms[:, 1]

    def _compute_ms(self, sums: Floats) -> Floats:
        return np.zeros((*sums.shape[:-1], 2)) if self._additive is None else self._additive.compute_ms(sums)

    def are_allowed(self, changes: Changes) -> Bools:
        """Say which changes leave a feasible plan without two shards of a table on a device, shape (M,)."""
        given, target, returned, halved = changes
        source = self.devices[given]
        back = returned >= 0
        sent = self._bytes[given, np.where(halved, _RIGHT, _WHOLE)]
        left = np.where(halved, self._bytes[given, _LEFT], 0)
        received = np.where(back, self._bytes[returned, _WHOLE], 0)
        allowed = (target != source) & (~halved | self.can_be_halved[given])
        allowed &= sent - received <= self._room[target]
        allowed &= left + received - self._bytes[given, _WHOLE] <= self._room[source]
        meets = self._holds[target, self._tables[given]]
        # Two parts of one table do not swap either: that changes nothing worth a query.
        met = back & self._holds[source, self._tables[returned]]
        return np.asarray(allowed & ~meets & ~met, dtype=np.bool_)

    def costs_ms(self, changes: Changes) -> Floats:
        """Return the plan's cost in ms after each change, shape (M,)."""
        if self._additive is None:
            plans = [ShardingPlan.of(self._task, self._changed(changes, n)) for n in range(len(changes.given))]
            return quantized(np.array([cost.total_ms for cost in self._cost.evaluate(self._task, plans)]))
        given, target, returned, halved = changes
        rows = np.arange(len(given))
        source = self.devices[given]
        sent = self._vectors[given, np.where(halved, _RIGHT, _WHOLE)]
        left = np.where(halved[:, None], self._vectors[given, _LEFT], 0.0)
        received = np.where(returned[:, None] >= 0, self._vectors[returned, _WHOLE], 0.0)
        sums = np.stack([
            self._sums[source] - self._vectors[given, _WHOLE] + left + received,
            self._sums[target] + sent - received,
        ])  # fmt: skip
        compute = np.tile(self._passes_ms, (len(rows), 1, 1))
        loads = np.tile(self._sums[:, -LOADS:], (len(rows), 1, 1))
        compute[rows, source], compute[rows, target] = self._compute_ms(sums)
        loads[rows, source], loads[rows, target] = sums[..., -LOADS:]
        return self._additive.slowest_ms(self._number, compute, loads)

    def make(self, changes: Changes, number: int) -> None:
        """Make one of the changes."""
        given = int(changes.given[number])
        source = int(self.devices[given])
        target = int(changes.target[number])
        self.shards = self._changed(changes, number)
        if changes.halved[number]:
            described = self._describe([self.shards[given], self.shards[-1]])
            self._tables = np.append(self._tables, self._tables[given])
            self.can_be_halved = np.append(self.can_be_halved, described[0][1:])
            self._bytes = np.concatenate([self._bytes, described[1][1:]])
            self._vectors = np.concatenate([self._vectors, described[2][1:]])
            self.can_be_halved[given], self._bytes[given], self._vectors[given] = (values[0] for values in described)
        self.devices = np.array([shard.devices[0] for shard in self.shards], dtype=np.int64)
        self._sum_up((source, target))

    def _changed(self, changes: Changes, number: int) -> list[Shard]:
        """Return the shards after a change; a right half comes last, other shards stay where they are in the list."""
        given, target, returned, halved = (values[number] for values in changes)
        shards = self.shards.copy()
        shard = shards[given]
        if halved:
            shards[given], right = halves(shard)
            shards.append(right.on(int(target)))
        else:
            shards[given] = shard.on(int(target))
        if returned >= 0:
            shards[returned] = shards[returned].on(shard.devices[0])
        return shards

    def plan_maker(self) -> Callable[[], ShardingPlan]:
        """Return a function that makes a plan of the current placement."""
        return functools.partial(ShardingPlan.of, self._task, self.shards)
