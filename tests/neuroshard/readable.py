"""NeuroShard with the inner search in NumPy, which finds the plans that the compiled one must find."""

from __future__ import annotations

from typing import Any

from neuroshard.device_sets import AdditiveDeviceSets, AdditivePrices
from neuroshard.grid_search import GridSearch
from neuroshard.shard_table import ShardTable
from neuroshard.solver import NeuroShard
from shardgym.costs.base import CostModel
from shardgym.incumbent import Budget


def readable_search(shards: ShardTable, cost: CostModel, budget: Budget) -> GridSearch:
    """Return the inner search in NumPy, over any additive cost."""
    return GridSearch(AdditiveDeviceSets(AdditivePrices(shards, cost.additive())), budget)


class ReadableNeuroShard(NeuroShard):
    """The same solver with that inner search."""

    def _inner_search(self, shards: ShardTable, cost: CostModel, budget: Budget) -> GridSearch:
        return readable_search(shards, cost, budget)


def neuroshard(compiled: bool, **settings: Any) -> NeuroShard:
    """Return the solver with one of the two inner searches."""
    return (NeuroShard if compiled else ReadableNeuroShard)(**settings)
