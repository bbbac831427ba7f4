"""Ways to split the rows of a table between device and host memory, the largest saving per byte first."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.shard_keys import ShardKey, shard_key
from shardgym.costs.ties import BITS, rounded
from shardgym.plans.shard import Shard
from shardgym.tables.table import EmbeddingTable, ZipfIds
from shardgym.tasks.task import ShardingTask

#: Shares of a table's rows, popular ones first, that splits put into the memory of the device.
SHARES = tuple(2.0 ** (-n / 2) for n in range(28, 0, -1))


class Split(NamedTuple):
    """A way to hold a table on one device and its host."""

    shards: tuple[Shard, ...]  #: shards of the table, on device 0
    ms: float  #: compute that they add to their device
    device_bytes: int  #: their device memory
    host_bytes: int  #: their host memory


def splits_of(task: ShardingTask, costs: AdditiveCosts, *, in_host: bool, row_cuts: bool) -> list[list[Split]]:
    """Return the efficient splits of each table, with ascending device memory and falling savings of time per byte.

    If rows are ordered by frequency, popular rows are `fused` and the others `fused_uvm`. Otherwise, a cache of as many
    rows finds the popular ones. `in_host` allows rows in host memory, and `row_cuts` allows cuts by rows.
    """
    ways = [_ways(table, in_host=in_host, row_cuts=row_cuts) for table in task.tables]
    keys = [key for of_table in ways for shards in of_table for key in keys_on_one_device(task, shards)]
    vectors = costs.vectors(costs.encode_keys(task, keys))
    shard_ms = added_ms(task, costs, vectors).tolist()
    found = []
    position = 0
    for of_table in ways:
        splits = []
        for shards in of_table:
            ms = sum(shard_ms[position : position + len(shards)])
            position += len(shards)
            sizes = [(shard.bytes(task), shard.host_bytes(task)) for shard in shards]
            splits.append(Split(shards, ms, *map(sum, zip(*sizes, strict=True))))
        # The lower convex hull of times over bytes of the device, up to the least time.
        hull: list[Split] = []
        for split in sorted(splits, key=lambda split: (split.device_bytes, split.ms)):
            if hull and split.ms >= hull[-1].ms:
                continue
            while len(hull) > 1 and _saving(hull[-2], hull[-1]) <= _saving(hull[-2], split):
                hull.pop()
            hull.append(split)
        found.append(hull)
    return found


def added_ms(task: ShardingTask, costs: AdditiveCosts, vectors: Floats) -> Floats:
    """Return the compute in ms, (n,), that shards add to a device with a typical load of a task."""
    whole = [ShardKey(table.name, table.num_embeddings, table.embedding_dim) for table in task.tables]
    typical = costs.vectors(costs.encode_keys(task, whole))
    # In this order on all processors.
    proportions = np.array([sum(column) for column in typical.T.tolist()])
    # Rounded, so that all comparisons are the same on all processors.
    return rounded(np.maximum(costs.least_ms(vectors, proportions), 0.0).sum(axis=1), BITS)


def _ways(table: EmbeddingTable, *, in_host: bool, row_cuts: bool) -> list[tuple[Shard, ...]]:
    whole = Shard.whole(table, 0)
    if not in_host:
        return [(whole,)]
    ways: list[tuple[Shard, ...]] = [(dataclasses.replace(whole, compute_kernel="fused_uvm"),), (whole,)]
    rows = table.num_embeddings
    by_frequency = isinstance(table.ids, ZipfIds) and table.ids.row_order == "by_frequency"
    if by_frequency and row_cuts:
        counts = sorted({round(share * rows) for share in SHARES} - {0, rows})
        for count in counts:
            hot = dataclasses.replace(whole, rows=(0, count))
            ways.append((hot, dataclasses.replace(whole, rows=(count, rows), compute_kernel="fused_uvm")))
    else:
        ways += [
            (dataclasses.replace(whole, compute_kernel="fused_uvm_caching", cache_load_factor=share),)
            for share in SHARES
            if share * rows >= 1
        ]
    return ways


def keys_on_one_device(task: ShardingTask, shards: Sequence[Shard]) -> list[ShardKey]:
    """Return the keys of shards that together hold a table on one device."""
    return [shard_key(task, shard)._replace(summed_on_device=len(shards) > 1) for shard in shards]


def _saving(before: Split, after: Split) -> float:
    """Return the time saved per byte."""
    return (before.ms - after.ms) / max(after.device_bytes - before.device_bytes, 1)
