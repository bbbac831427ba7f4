"""How much of a device's work each shard is, as far as that can be told without a cost model."""

from __future__ import annotations

from shardgym.plan import Shard, ShardingPlan
from shardgym.task import ShardingTask


def values_per_sample(task: ShardingTask, shard: Shard) -> float:
    """Return values that a shard looks up per sample: ids times columns, rows being equally likely.

    0 for a table that the task does not have, so that a wrong plan can be drawn.
    """
    if not task.has_table(shard.table):
        return 0.0
    table = task.table(shard.table)
    return table.pooling_factor * shard.num_rows / table.num_embeddings * shard.num_columns


def device_loads(task: ShardingTask, plan: ShardingPlan) -> list[float]:
    """Return values looked up per sample on every device."""
    return [sum(values_per_sample(task, shard) for shard in plan.on(d)) for d in range(task.num_devices)]


def device_columns(task: ShardingTask, plan: ShardingPlan) -> list[int]:
    """Return the columns that every device holds, a row shard with its full width: what it sends per sample."""
    return [sum(shard.num_columns for shard in plan.on(d)) for d in range(task.num_devices)]


def lookup_shares(task: ShardingTask, plan: ShardingPlan, device: int) -> list[tuple[Shard, float]]:
    """Return the shards of a device with their share of its lookups, largest first."""
    return _shares([(shard, values_per_sample(task, shard)) for shard in plan.on(device)])


def column_shares(plan: ShardingPlan, device: int) -> list[tuple[Shard, float]]:
    """Return the shards of a device with their share of its columns, largest first."""
    return _shares([(shard, float(shard.num_columns)) for shard in plan.on(device)])


def _shares(loads: list[tuple[Shard, float]]) -> list[tuple[Shard, float]]:
    total = sum(load for _, load in loads) or 1.0
    return sorted(((shard, load / total) for shard, load in loads), key=lambda pair: -pair[1])
