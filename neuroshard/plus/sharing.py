"""Tables that devices share evenly, by rows or as replicas: the ways to share them, and their loads on each device.

Such a table is not placed: all devices, or all devices of one node, have a part of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.shard_keys import ShardKey
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import COLUMN_UNIT, ComputeKernel, Shard
from shardgym.tables.row_access import position_matters
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask

#: TorchRec's sharding types of tables that devices share.
SharedType = Literal["row_wise", "table_row_wise", "grid_shard", "data_parallel"]
SHARED_TYPES: tuple[str, ...] = get_args(SharedType)
#: Kernels with their cache load factors that tables cut by rows over devices may have besides `fused`.
_HOST_KERNELS: tuple[tuple[ComputeKernel, float], ...] = (
    ("fused_uvm", 0.0),
    *(("fused_uvm_caching", 2.0**-n) for n in (6, 4, 2, 1)),
)


class Form(NamedTuple):
    """One way to share one table."""

    table: int  #: position in the task
    kind: SharedType  #: TorchRec's sharding type
    #: Vectors that it adds to devices, those of a node for `table_row_wise`, else all, shape (n, V).
    vectors: Floats
    bytes: Ints  #: bytes on these devices, shape (n,)
    host_bytes: Ints  #: bytes on their hosts, shape (n,)
    compute_kernel: ComputeKernel = "fused"  #: see `Shard`
    cache_load_factor: float = 0.0  #: see `Shard`

    @property
    def way(self) -> str:
        """TorchRec's sharding type, and the kernel unless it is `fused`."""
        if self.compute_kernel == "fused":
            return self.kind
        return f"{self.kind} {self.compute_kernel} {self.cache_load_factor}"


class Place(NamedTuple):
    """A form, and the first of the consecutive devices that share it."""

    form: Form
    first: int

    @property
    def devices(self) -> slice:
        """Devices that share the table."""
        return slice(self.first, self.first + len(self.form.bytes))


class Shared(NamedTuple):
    """Tables that devices share, and their sums and bytes, which follow from them."""

    places: Mapping[int, Place]  #: places by the position of the table
    sums: Floats  #: sums of vectors of each device, shape (D, V)
    bytes: Ints  #: bytes on each device, shape (D,)

    def changed(self, without: Iterable[int], more: Iterable[Place]) -> Shared:
        """Return these tables without some, by position, and with more."""
        dropped = {*without}
        places = {table: place for table, place in self.places.items() if table not in dropped}
        places |= {place.form.table: place for place in more}
        # Added up anew, in one order, so that rounding does not depend on how the search came here.
        return shared(places.values(), self.sums.shape)


def shared(places: Iterable[Place], shape: tuple[int, ...]) -> Shared:
    """Return shared tables, given at most one place for each, and the shape of sums, (D, V)."""
    ordered = sorted(places, key=lambda place: place.form.table)
    sums = np.zeros(shape)
    sizes = np.zeros(shape[0], dtype=np.int64)
    for place in ordered:
        sums[place.devices] += place.form.vectors
        sizes[place.devices] += place.form.bytes
    return Shared({place.form.table: place for place in ordered}, sums, sizes)


def forms_of(
    task: ShardingTask, costs: AdditiveCosts, kinds: Container[str], *, in_host: bool = False
) -> list[list[Form]]:
    """Return the ways to share each table by TorchRec's sharding types `kinds` that some device has memory for.

    If `in_host`, rows may be in host memory, with caches of several sizes.
    """
    devices, domain = task.num_devices, task.topology.fast_domain_size
    several = has_domains(task)
    ways: list[tuple[int, SharedType, list[ShardKey]]] = []
    for n, table in enumerate(task.tables if devices > 1 else ()):
        width = table.embedding_dim
        if takes_rows(table, devices):
            ways.append((n, "row_wise", row_keys(table, devices, width, in_domain=False)))
        # TorchRec cuts unpooled tables by rows over all devices alone.
        if several and table.is_pooled and takes_rows(table, domain):
            ways.append((n, "table_row_wise", row_keys(table, domain, width, in_domain=True)))
            part, rest = divmod(width, devices // domain)
            if not rest and part % COLUMN_UNIT == 0:
                of_node = row_keys(table, domain, part, in_domain=True)
                ways.append((n, "grid_shard", of_node * (devices // domain)))
        # FBGEMM's dense kernel pools rows on CPUs.
        if table.is_pooled or task.topology.device != "cpu-core":
            ways.append((n, "data_parallel", [ShardKey(table.name, table.num_embeddings, width, served=1)] * devices))
    ways = [way for way in ways if way[1] in kinds]
    ways += [
        (n, kind, [key._replace(compute_kernel=kernel, cache_load_factor=share) for key in of_way])
        for n, kind, of_way in ways
        if kind != "data_parallel"
        for kernel, share in (_HOST_KERNELS if in_host else ())
    ]
    keys = list(dict.fromkeys(key for _, _, of_way in ways for key in of_way))
    if not keys:
        return [[] for _ in task.tables]
    vectors = costs.vectors(costs.encode_keys(task, keys))
    sizes, on_host = np.array([piece_bytes(task, key) for key in keys], dtype=np.int64).T
    number = {key: n for n, key in enumerate(keys)}
    most = max(task.capacity_bytes)
    found: list[list[Form]] = [[] for _ in task.tables]
    for n, kind, of_way in ways:
        rows = [number[key] for key in of_way]
        if sizes[rows].max() <= most:
            kernel = of_way[0].compute_kernel, of_way[0].cache_load_factor
            # Replicas are the same everywhere: one vector is enough for all devices.
            alike = np.broadcast_to(vectors[rows[0]], (len(rows), vectors.shape[1]))
            of_devices = alike if kind == "data_parallel" else vectors[rows]
            found[n].append(Form(n, kind, of_devices, sizes[rows], on_host[rows], *kernel))
    return found


def piece_bytes(task: ShardingTask, key: ShardKey) -> tuple[int, int]:
    """Return the bytes of a piece on each of its devices, and on their hosts."""
    holders = task.num_devices // key.served if key.served else 1
    if key.compute_kernel == "fused":
        table = task.table(key.table)
        return task.block_bytes(table, key.rows, key.columns, first_row=key.first_row, num_holders=holders), 0
    kernel = key.compute_kernel, key.cache_load_factor
    shard = Shard(key.table, key.row_range, (0, key.columns), tuple(range(holders)), *kernel)
    return shard.bytes(task), shard.host_bytes(task)


def row_keys(table: EmbeddingTable, devices: int, columns: int, *, in_domain: bool) -> list[ShardKey]:
    """Return the keys of a table's pieces by rows."""
    blocks = row_blocks(table, devices)
    firsts = np.cumsum(blocks) - blocks if position_matters(table) else np.zeros(len(blocks), dtype=np.int64)
    return [
        ShardKey(table.name, rows, columns, in_domain=in_domain, first_row=first)
        for rows, first in zip(blocks, firsts.tolist(), strict=True)
    ]


def shards_of(task: ShardingTask, place: Place) -> list[Shard]:
    """Return the shards of a table that devices share."""
    form = place.form
    table = task.tables[form.table]
    if form.kind == "data_parallel":
        return [Shard.whole(table, *range(task.num_devices))]
    if form.kind == "grid_shard":
        domain = task.topology.fast_domain_size
        width = table.embedding_dim * domain // task.num_devices
        shards = [
            Shard(table.name, shard.rows, (node * width, (node + 1) * width), shard.devices)
            for node in range(task.num_devices // domain)
            for shard in even_rows(table, domain, node * domain)
        ]
    else:
        shards = even_rows(table, len(form.bytes), place.first)
    if form.compute_kernel == "fused":
        return shards
    return [
        dataclasses.replace(shard, compute_kernel=form.compute_kernel, cache_load_factor=form.cache_load_factor)
        for shard in shards
    ]


def places_of(task: ShardingTask, plan: ShardingPlan, forms: Sequence[Sequence[Form]]) -> list[Place]:
    """Return the places of the tables that devices share in a plan, if they have one of these forms."""
    devices = task.num_devices
    found = []
    for table, of_table in zip(task.tables, forms, strict=True):
        shards = sorted(plan.of_table(table.name), key=lambda shard: shard.devices)
        kind = plan.kind_of(table.name, task)
        for form in (form for form in of_table if form.kind == kind):
            place = Place(form, shards[0].devices[0] if len(form.bytes) < devices else 0)
            if sorted(shards_of(task, place), key=lambda shard: shard.devices) == shards:
                found.append(place)
    return found


def has_domains(task: ShardingTask) -> bool:
    """Say whether there are several fast domains of equal size, in which tables may be cut by rows."""
    domain = task.topology.fast_domain_size
    return 1 < domain < task.num_devices and task.num_devices % domain == 0


def takes_rows(table: EmbeddingTable, devices: int) -> bool:
    """Say whether a table can be cut evenly by rows over so many devices, two or more, and is not mean-pooled."""
    # TorchRec divides mean-pooled tables that are cut by rows by the wrong bag sizes.
    return table.pooling != "mean" and devices > 1 and len(row_blocks(table, devices)) == devices


def row_blocks(table: EmbeddingTable, devices: int) -> Sequence[int]:
    """Return the rows of pieces of ceil(rows / devices), the last one smaller, as TorchRec cuts them."""
    block = -(-table.num_embeddings // devices)
    whole, rest = divmod(table.num_embeddings, block)
    return [block] * whole + [rest] * (rest > 0)


def even_rows(table: EmbeddingTable, devices: int, first: int = 0) -> list[Shard]:
    """Return a table cut into `row_blocks`, one for each of so many devices from the first one on."""
    columns = (0, table.embedding_dim)
    ends = np.cumsum(row_blocks(table, devices)).tolist()
    return [
        Shard.unchecked(table=table.name, rows=(start, end), columns=columns, devices=(device,))
        for device, (start, end) in enumerate(zip([0, *ends], ends, strict=False), first)
    ]
