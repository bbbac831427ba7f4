"""Prices of many placements of the same shards together: added up where the oracle allows it, else plan by plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from shardgym.arrays import Bools, Floats
from shardgym.costs.base import CostModel
from shardgym.plan import Shard, ShardingPlan
from shardgym.task import ShardingTask

#: Elements of the arrays of one query; larger ones leave the processor's cache.
_ELEMENTS_AT_ONCE = 2**18


class PlacementPrices:
    """Prices placements of C candidate shards.

    A placement says which candidates each device holds, as booleans of shape (D, C). A candidate may be on several
    devices: it stands for columns of a table, and which columns these are is settled when a plan is made.

    Args:
        task: the task.
        cost: the oracle.
        shards: the candidates; the columns that they begin with and their devices do not matter.

    Raises:
        InputError: `cost` cannot price tasks of this kind.
    """

    def __init__(self, task: ShardingTask, cost: CostModel, shards: Sequence[Shard]) -> None:
        self._task = task
        self._cost = cost
        self._shards = list(shards)
        self._additive = cost.additive()
        if self._additive is not None:
            self._number = self._additive.add_task(task)
            encoded = self._additive.encode(task, self._shards)
            self._latents = self._additive.latents(encoded)
            self._widths = self._additive.widths(encoded)

    def totals(self, placements: Bools) -> Floats:
        """Return what the slowest device takes in ms, (P, D, C) to (P,); infinite for infeasible plans."""
        if self._additive is None:
            plans = [self.plan(placement) for placement in placements]
            return np.array([cost.total_ms for cost in self._cost.evaluate(self._task, plans)])
        step = max(_ELEMENTS_AT_ONCE // placements[0].size, 1)
        pieces = [self._added_up(placements[n : n + step]) for n in range(0, len(placements), step)]
        return np.concatenate(pieces)

    def _added_up(self, placements: Bools) -> Floats:
        assert self._additive is not None
        held = placements.astype(np.float64)
        counts = placements.sum(axis=2)
        phases = self._additive.per_device_ms(self._number, held @ self._latents, counts, held @ self._widths)
        return np.asarray(phases.sum(axis=2).max(axis=1), dtype=np.float64)

    def plan(self, placement: Bools) -> ShardingPlan:
        """Return a placement as a plan; a table's columns are handed out from the left, to the lowest device first.

        Args:
            placement: shape (D, C); the widths of each table's shards add up to the table's.
        """
        next_column = dict.fromkeys((shard.table for shard in self._shards), 0)
        placed = []
        for device, candidate in np.argwhere(placement).tolist():
            shard = self._shards[candidate]
            first = next_column[shard.table]
            next_column[shard.table] = first + shard.num_columns
            columns = (first, first + shard.num_columns)
            placed.append(dataclasses.replace(shard, columns=columns, device=device))
        return ShardingPlan.of(self._task, placed)
