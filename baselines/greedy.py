"""The four greedy heuristics that the field compares with (NeuroShard, DreamShard: `sharders.py`)."""

from __future__ import annotations

import abc
import math

from baselines.placement import place_greedily
from shardgym.arguments import check_instance, check_int
from shardgym.costs.base import CostModel
from shardgym.plan import ShardingPlan
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask

_GIB = 2**30


class Greedy(abc.ABC):
    """Balance one figure per table over the devices; see `place_greedily`. Asks no cost model and draws nothing."""

    @abc.abstractmethod
    def table_cost(self, task: ShardingTask, table: EmbeddingTable) -> float:
        """Return the figure that is balanced."""

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return the plan; `cost` and `seed` make no difference.

        Raises:
            NoFeasiblePlanError: a table fits nowhere; the message gives its bytes and the largest room left.
            InputError: no task, or a seed that is no whole number.
        """
        del cost
        check_instance("task", task, ShardingTask)
        check_int("seed", seed)
        return place_greedily(task, [self.table_cost(task, table) for table in task.tables])


class SizeGreedy(Greedy):
    """Balance memory, in GB. The published figure leaves out optimiser state, which is counted here."""

    def table_cost(self, task: ShardingTask, table: EmbeddingTable) -> float:
        """Return the table's memory in GiB."""
        return task.table_bytes(table) / _GIB


class DimGreedy(Greedy):
    """Balance widths."""

    def table_cost(self, task: ShardingTask, table: EmbeddingTable) -> float:
        """Return the embedding dimension."""
        del task
        return float(table.embedding_dim)


class LookupGreedy(Greedy):
    """Balance dimension times pooling factor."""

    def table_cost(self, task: ShardingTask, table: EmbeddingTable) -> float:
        """Return values looked up per sample."""
        del task
        return table.embedding_dim * table.pooling_factor


class SizeLookupGreedy(Greedy):
    """Balance dimension times pooling factor times log10 of the rows."""

    def table_cost(self, task: ShardingTask, table: EmbeddingTable) -> float:
        """Return values looked up per sample, weighted by how large the table is; 0 for a table of one row."""
        del task
        return table.embedding_dim * table.pooling_factor * math.log10(table.num_embeddings)
