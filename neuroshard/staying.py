"""Devices that change places, so that a plan leaves as much as it can where the plan in use has it."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy.optimize import linear_sum_assignment

from shardgym.arrays import Floats
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tasks.task import ShardingTask


def plan_like(task: ShardingTask, plan: ShardingPlan, in_use: ShardingPlan) -> ShardingPlan:
    """Return a plan in which devices have changed places, so that most of what they hold stays.

    Only shards with all rows of a table move, which single devices hold; rows over several devices stay in their order,
    as TorchRec has them. Devices change places inside of fast domains, and with their domains, where these are of one
    size. With devices that differ, the plan may then be infeasible, or cost something else.

    Args:
        task: whose tables and devices both plans are for.
        plan: to come.
        in_use: before it.
    """
    devices = task.num_devices
    domain = task.topology.fast_domain_size
    if devices % domain or plan.group_size is not None:
        return plan
    heights = {table.name: table.num_embeddings for table in task.tables}

    def moves(shard: Shard) -> bool:
        return len(shard.devices) == 1 and shard.num_rows == heights[shard.table]

    stays = np.zeros((devices, devices))  # bytes of each device now, if it gets what each is to have
    for table in task.tables:
        old = [shard for shard in in_use.of_table(table.name) if shard.num_rows == table.num_embeddings]
        for shard in filter(moves, plan.of_table(table.name)):
            for other in old:
                columns = min(shard.columns[1], other.columns[1]) - max(shard.columns[0], other.columns[0])
                if columns > 0:
                    stays[list(other.devices), shard.devices[0]] += columns * (
                        task.table_bytes(table) / table.embedding_dim
                    )
    count = devices // domain
    blocks = stays.reshape(count, domain, count, domain).swapaxes(1, 2)
    inner = [[_best(blocks[n, m]) for m in range(count)] for n in range(count)]
    rows = np.arange(domain)
    gains = np.array([[blocks[n, m, rows, inner[n][m]].sum() for m in range(count)] for n in range(count)])
    place = {
        m * domain + int(then): n * domain + now
        for n, m in enumerate(_best(gains))
        for now, then in enumerate(inner[n][m])
    }
    shards = (
        dataclasses.replace(shard, devices=(place[shard.devices[0]],)) if moves(shard) else shard
        for shard in plan.shards
    )
    return ShardingPlan.of(task, shards)


def _best(gains: Floats) -> list[int]:
    """Return the column of each row of a square, so that the sum is largest."""
    columns: list[int] = linear_sum_assignment(gains, maximize=True)[1].tolist()
    return columns
