"""Allocations: how many units of each table every device holds, from plans and to plans."""

from __future__ import annotations

import numpy as np

from neuroshard.plus.shelf import Shelf
from shardgym.arrays import Ints
from shardgym.plan import COLUMN_UNIT, ShardingPlan


def plan_of(shelf: Shelf, units: Ints) -> ShardingPlan:
    """Return a plan; columns are handed out from the left, to the lowest device first.

    Args:
        shelf: of the task.
        units: of each table on each device, shape (D, T); adds up to the tables' units over devices.
    """
    shards = []
    for table in range(units.shape[1]):
        used = 0
        for device in np.flatnonzero(units[:, table]).tolist():
            held = int(units[device, table])
            shards.append(shelf.shard(int(shelf.first[table]) + held, used * COLUMN_UNIT, device))
            used += held
    return ShardingPlan.of(shelf.task, shards)


def units_of(shelf: Shelf, plan: ShardingPlan) -> Ints | None:
    """Return what each device holds of each table, shape (D, T); None for a plan with tables cut by rows.

    Shards of one table on one device become one.
    """
    task = shelf.task
    position = {table.name: n for n, table in enumerate(task.tables)}
    units = np.zeros((task.num_devices, task.num_tables), dtype=np.int64)
    for shard in plan.shards:
        table = position[shard.table]
        if shard.num_rows != task.tables[table].num_embeddings:
            return None
        units[shard.device, table] += shard.num_columns // COLUMN_UNIT
    return units
