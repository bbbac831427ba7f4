"""What times depend on: keys of shards, their loads, and plans as arrays of shards and devices."""

import functools
from collections import Counter
from typing import NamedTuple

from shardgym.arrays import Ints
from shardgym.costs.links import (
    COLUMNS,
    DOMAIN_ROW_COLUMNS,
    GROUP_BYTES,
    IDS,
    LOADS,
    REPLICA_BYTES,
    REPLICAS,
    ROW_COLUMNS,
    SHARDS,
)
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import ComputeKernel, Shard
from shardgym.tables.row_access import access_share, distinct_ids, position_matters
from shardgym.tables.row_popularity import CacheMisses, cache_misses, popularity
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ELEMENT_BYTES, ShardingTask, block_bytes

#: Bytes of an id of 8 bytes and its weight of 4, over those of the id.
_WEIGHTED_ID = 1.5
#: Of a pooled lookup whose id is sent once for all of its repeats, over the bytes of an id: 4 that say which one it is.
_POSITION = 0.5


class ShardKey(NamedTuple):
    """What the time of a shard depends on. Where its columns begin does not matter."""

    table: str
    rows: int
    columns: int
    #: Devices whose samples each holder looks up: 1 for a table that all devices hold, the size of a group in 2D
    #: parallelism; 0 stands for all devices.
    served: int = 0
    #: Whether one fast domain of several has all pieces of these columns, so that their sums are added up inside of it
    #: before they leave it.
    in_domain: bool = False
    #: Where its rows begin, if some are known to be more popular than others; else 0, and 0 for all rows.
    first_row: int = 0
    compute_kernel: ComputeKernel = "fused"  #: which memory its rows are in, see `Shard`
    cache_load_factor: float = 0.0
    #: Whether its device has all rows of these columns, in shards of several kernels, so that their sums are added up
    #: there and go to others as those of a whole table do.
    summed_on_device: bool = False

    @property
    def row_range(self) -> tuple[int, int]:
        """First row and the row after the last; of any such rows, where their place does not matter."""
        return self.first_row, self.first_row + self.rows


class PlanBatch(NamedTuple):
    """P complete plans as arrays. They may be of different tasks with the same number of devices."""

    num_devices: int  #: D of every plan
    counts: Ints  #: pairs of a shard and a device that holds it, of each plan, all at least 1, shape (P,)
    shards: Ints  #: of these pairs, numbers from `NumberedShards.encode_keys`, plan after plan, shape (H,)
    devices: Ints  #: likewise, shape (H,)
    groups: Ints | None = None  #: of 2D parallelism in each plan, shape (P,); None where each plan has one
    #: Number of each plan's task, shape (P,); None where its shards say it, see `NumberedShards.share_shards`.
    tasks: Ints | None = None


def shard_key(task: ShardingTask, shard: Shard, served: int = 0, *, in_domain: bool = False) -> ShardKey:
    """Return what the time of a shard depends on; arguments as the attributes of `ShardKey`."""
    first_row = shard.rows[0] if shard.rows[0] and position_matters(task.table(shard.table)) else 0
    key = ShardKey(shard.table, shard.num_rows, shard.num_columns, served, in_domain, first_row)
    if shard.memory == "device":  # as nearly all are
        return key
    return key._replace(compute_kernel=shard.compute_kernel, cache_load_factor=shard.cache_load_factor)


def plan_keys(task: ShardingTask, plan: ShardingPlan) -> list[ShardKey]:
    """Return what the times of a plan's shards depend on, in their order."""
    keys = _keys_of_kinds(task, plan)
    if not plan.leaves_devices:
        return keys
    rows: Counter[tuple[str, tuple[int, int], tuple[int, ...]]] = Counter()
    for shard in plan.shards:
        rows[shard.table, shard.columns, shard.devices] += shard.num_rows
    return [
        key._replace(
            summed_on_device=key.rows
            < rows[shard.table, shard.columns, shard.devices]
            == task.table(shard.table).num_embeddings
        )
        for key, shard in zip(keys, plan.shards, strict=True)
    ]


def _keys_of_kinds(task: ShardingTask, plan: ShardingPlan) -> list[ShardKey]:
    """Return keys that know of kinds and holders."""
    topology = task.topology
    one_domain = topology.fast_domain_size >= topology.num_devices
    if not plan.has_replicas and (one_domain or not any(shard.rows[0] for shard in plan.shards)):
        return [shard_key(task, shard) for shard in plan.shards]
    # Sums are added up in one domain where no other domain has parts of them, and where places of domains are pairs.
    group = plan.group_size or task.num_devices
    domain = topology.fast_domain_size
    paired = group > domain and group % domain == 0
    of_domains = "table_row_wise", "grid_shard"
    names = dict.fromkeys(shard.table for shard in plan.shards)
    staged = {table: paired and plan.kind_of(table, task) in of_domains for table in names}
    keys = []
    for shard in plan.shards:
        served = 0 if len(shard.devices) == 1 else task.num_devices // len(shard.devices)
        in_domain = staged[shard.table] and shard.num_rows < task.table(shard.table).num_embeddings
        keys.append(shard_key(task, shard, served, in_domain=in_domain))
    return keys


def host_misses(task: ShardingTask, key: ShardKey) -> CacheMisses:
    """Return what of a shard's rows in the memory of the host a batch finds in no cache: all of it without one."""
    if key.compute_kernel == "fused":
        return CacheMisses()
    if key.compute_kernel == "fused_uvm":
        return CacheMisses(bypassed=1.0, bypassed_lookups=1.0)
    return _cache_misses(task.table(key.table), task.batch_size, key.row_range, key.cache_load_factor)


@functools.lru_cache(maxsize=65536)  # any number of columns misses the same rows
def _cache_misses(table: EmbeddingTable, batch_size: int, row_range: tuple[int, int], share: float) -> CacheMisses:
    draws = batch_size * table.pooling_factor / table.run_length
    cells = popularity(table, batch_size, *row_range)
    return cache_misses(cells, draws, share * (row_range[1] - row_range[0]))


def shard_loads(task: ShardingTask, key: ShardKey) -> list[float]:
    """Return the loads of a shard, by the columns of `shardgym.costs.links`.

    A table that features share has a block of columns and a bag for each of them, so it counts as so many shards. An id
    with its weight takes 12 bytes in place of 8, so it counts as one and a half. Columns are in the task's precision,
    whatever the weights are in: FBGEMM's operators put out FP32 for FP16 tables, too, unless told otherwise.

    Of an unpooled table all rows travel, and none are added up on the way: whether it is cut by rows or not, its
    columns count once for each id that a sample has there, and go by the all-to-all.
    """
    table = task.table(key.table)
    features = table.num_features
    loads = [0.0] * LOADS
    loads[SHARDS] = features
    if key.served == 1:
        loads[REPLICAS] = features
        loads[REPLICA_BYTES] = key.rows * key.columns * ELEMENT_BYTES[task.precision_of(table)]
        return loads
    lookups = table.pooling_factor * access_share(table, *key.row_range)
    sent = lookups
    if task.dedup_ids:
        sent = distinct_ids(table, task.batch_size, key.row_range, task.num_devices) / task.batch_size
        sent += _POSITION * lookups if table.is_pooled else 0.0
    loads[IDS] = sent + (_WEIGHTED_ID - 1) * lookups if table.weighted else sent
    columns = key.columns * features
    # Pieces of a table add up to its columns once, and as wide as the others is also what nobody looks up.
    share = key.rows / table.num_embeddings
    if not table.is_pooled:
        loads[COLUMNS] = key.columns * sent
    elif share == 1 or key.summed_on_device:
        loads[COLUMNS] = columns * share
    else:
        loads[DOMAIN_ROW_COLUMNS if key.in_domain else ROW_COLUMNS] = columns * share
    if key.served:
        loads[GROUP_BYTES] = block_bytes(key.rows, key.columns, task.precision_of(table), task.optimizer_of(table))
    return loads


def values_sent(task: ShardingTask, shard: Shard) -> float:
    """Return the values that a shard puts out for a sample; 0 for replicas and tables that the task lacks."""
    if shard.is_replicated(task) or not task.has_table(shard.table):
        return 0.0
    table = task.table(shard.table)
    pooled = shard.num_columns * table.num_features
    return pooled if table.is_pooled else shard_loads(task, shard_key(task, shard))[COLUMNS]


def output_widths(task: ShardingTask, plan: ShardingPlan) -> list[float]:
    """Return the values that each device puts out for others per sample, see `values_sent`, shape (D,)."""
    return [sum(values_sent(task, shard) for shard in plan.on(d)) for d in range(task.num_devices)]
