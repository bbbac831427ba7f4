"""Devices priced by sums over their shards, as searches and environments do it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardgym import Shard, ShardingTask
from shardgym.arrays import Floats
from shardgym.costs.base import CostModel


def compute_ms(cost: CostModel, task: ShardingTask, devices: Sequence[Sequence[Shard]]) -> Floats:
    """Return forward and backward ms of devices that hold these shards, by an additive cost, shape (D, 2)."""
    costs = cost.additive()
    assert costs is not None
    sums = np.stack([costs.latents(costs.encode(task, shards)).sum(axis=0) for shards in devices])
    return costs.device_ms(sums, np.array([len(shards) for shards in devices]))


def table_wise_totals(cost: CostModel, task: ShardingTask, placements: Sequence[Sequence[int]]) -> Floats:
    """Return the totals of plans of whole tables, given by the device of each table, shape (P,)."""
    costs = cost.additive()
    assert costs is not None
    shards = costs.encode(task, [Shard.whole(table, 0) for table in task.tables])
    held = np.array(placements)[:, None] == np.arange(task.num_devices)[:, None]
    sums, widths = held @ costs.latents(shards), held @ costs.widths(shards)
    return costs.per_device_ms(costs.add_task(task), sums, held.sum(axis=2), widths).sum(axis=2).max(axis=1)
