"""Which tables have their rows on SSDs rather than in the memory of hosts, where that has no room for all of them."""

from __future__ import annotations

import dataclasses

from neuroshard.row_splits import added_ms
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.shard_keys import shard_key
from shardgym.plans.shard import SSD_OPTIMIZERS, Shard
from shardgym.tasks.task import ShardingTask


def ssd_choices(task: ShardingTask, costs: AdditiveCosts) -> list[frozenset[str]]:
    """Return names of tables that may have rows on SSDs while others may not; the cheapest plan of all these counts.

    SSDs are for what hosts have no room for: as few tables as leave the others room in devices and hosts together, none
    if they have that, then as few as leave them room in hosts alone, as rows with caches need, then all, as at once
    where hosts have no memory. Those come first that take the least time per byte there, with caches of one share. Only
    tables whose optimisers FBGEMM has for SSDs are among them, and none where devices have no SSD.

    Args:
        task: the task.
        costs: of its shards.
    """
    topology = task.topology
    tables = [table for table in task.tables if task.optimizer_of(table) in SSD_OPTIMIZERS]
    if not topology.ssd_bytes or not tables:
        return [frozenset()]
    share = min(1.0, task.total_capacity_bytes / task.total_bytes)
    shards = [
        dataclasses.replace(Shard.whole(table, 0), compute_kernel="key_value", cache_load_factor=share)
        for table in tables
    ]
    vectors = costs.vectors(costs.encode_keys(task, [shard_key(task, shard) for shard in shards]))
    sizes = [shard.ssd_bytes(task) for shard in shards]
    per_byte = [ms / size for ms, size in zip(added_ms(task, costs, vectors).tolist(), sizes, strict=True)]
    order = sorted(range(len(tables)), key=lambda n: (per_byte[n], n))
    on_hosts = topology.num_hosts * topology.host_memory_bytes
    found = []
    for room in (task.total_capacity_bytes + on_hosts, on_hosts, 0) if on_hosts else (0,):
        left = task.total_bytes
        chosen = set()
        for n in order:
            if left <= room:
                break
            chosen.add(tables[n].name)
            left -= sizes[n]
        found.append(frozenset(chosen))
    return list(dict.fromkeys(found))
