"""What devices of a plan look up in a batch, as expected and counted in a stream: lookups and distinct rows, (2, D)."""

import numpy as np

from shardgym.tables.row_access import access_share, distinct_rows


def expected_loads(task, plan):
    loads = np.zeros((2, task.num_devices))
    for shard in plan.shards:
        table, served = task.table(shard.table), 1 / len(shard.devices)
        loads[0, list(shard.devices)] += (
            served * task.batch_size * table.pooling_factor * access_share(table, *shard.rows)
        )
        loads[1, list(shard.devices)] += distinct_rows(table, task.batch_size, *shard.rows, served)
    return loads


def replayed_loads(task, plan, stream):
    """What several devices hold each looks up for its part of the samples, which are in the order of devices."""
    loads = np.zeros((2, task.num_devices))
    for shard in plan.shards:
        bags = stream[shard.table]
        ends = np.concatenate([[0], np.cumsum(bags.lengths)])
        parts = np.arange(len(shard.devices) + 1) * task.batch_size // len(shard.devices)
        for device, first, last in zip(shard.devices, ends[parts], ends[parts[1:]], strict=False):
            ids = bags.indices[first:last]
            hits = ids[(ids >= shard.rows[0]) & (ids < shard.rows[1])]
            loads[:, device] += len(hits), len(np.unique(hits))
    return loads
