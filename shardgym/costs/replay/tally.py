"""What one batch makes the devices of a plan send and look up, counted shard by shard."""

import contextlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from cachetools import LRUCache

from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.devices import DeviceConstants
from shardgym.costs.links import DOMAIN_ROW_COLUMNS, LOADS, ROW_COLUMNS, samples_per_device
from shardgym.costs.replay.row_counts import RowCounts
from shardgym.costs.roofline import ID_BYTES, WEIGHT_BYTES, compute_ms, dense_update_bytes
from shardgym.costs.shard_keys import ShardKey
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.step_memory import LENGTH_BYTES
from shardgym.tasks.task import ELEMENT_BYTES, OPTIMIZER_STATE, ShardingTask, block_bytes

#: Of a pooled lookup whose id is sent once for all of its repeats: which one it is.
_POSITION_BYTES = 4
#: What a device runs a fused operator of its own for: whether tables are pooled, the holders of a rectangle, and the
#: column of `shardgym.costs.links` that partial sums of pieces of rows count in, -1 where there are none.
OperatorKind = tuple[bool, int, int]


@dataclass
class Tally:
    """What devices send and compute in one batch."""

    #: Bytes of ids and lengths of bags that go from the device of the sample to the one that looks them up, shape (D,
    #: D).
    ids: Floats
    #: Bytes of rows, and of pooled rows of tables whose rows are whole, which go back, shape (D, D) from the device
    #: that looks up. Gradients go the other way.
    outputs: Floats
    #: Columns of pooled tables cut by rows, by the number of copies of their rows: loads by the columns of
    #: `shardgym.costs.links`, shape (D, LOADS) each.
    partial_sums: dict[int, Floats]
    #: Bytes that the holders of a rectangle have to exchange, by their number, shape (D,) each.
    copied: dict[int, Floats]
    work_ms: Floats  #: forward and backward compute without fixed costs of operators, shape (D, 2)
    operators: dict[OperatorKind, Bools]  #: whether a device runs one, by kind, shape (D,) each

    def add_operator(self, kind: OperatorKind, devices: Ints) -> None:
        """Say that devices run an operator."""
        self.operators.setdefault(kind, np.zeros(len(self.work_ms), dtype=np.bool_))[devices] = True

    @property
    def num_operators(self) -> Ints:
        """Fused operators that each device runs, shape (D,)."""
        return np.asarray(np.sum([*self.operators.values()], axis=0), dtype=np.int64)


class Counted(NamedTuple):
    """What n shards of a table with the same number of holders come to, on whatever devices they lie."""

    looked_up: Floats  #: ids of the samples of each device, or different ones, that are looked up, shape (n, D)
    id_bytes: Floats  #: that are sent for them, shape (n, D)
    work_ms: Floats  #: forward and backward compute of every holder, shape (n, holders, 2)


def counted_bytes(counted: Counted) -> int:
    """Return the memory of what shards come to."""
    return sum(array.nbytes for array in counted)


def tally(
    task: ShardingTask,
    plan: ShardingPlan,
    counts: Callable[[str], RowCounts],
    device: DeviceConstants,
    known: LRUCache[Hashable, Counted],
    batch: int = 0,
) -> Tally:
    """Count one batch.

    The samples of each of n equal blocks of consecutive devices look up a rectangle with n holders at the one inside of
    their block. In plans that are feasible that is the nearest: the device itself, one of its link domain, or the one
    of its group. `counts` returns those of a table, by name; the device prices lookups; `known` is what was counted
    before with these constants, and the same streams.
    """
    devices = task.num_devices
    pairs = devices, devices
    found = Tally(np.zeros(pairs), np.zeros(pairs), {}, {}, np.zeros((devices, 2)), {})
    for table in task.tables:
        _TableTally(task, table, plan, counts, device, known, batch).add_to(found)
    np.fill_diagonal(found.ids, 0.0)
    np.fill_diagonal(found.outputs, 0.0)
    return found


class _TableTally:
    """Counts one table; arguments as `tally`."""

    def __init__(
        self, task: ShardingTask, table: EmbeddingTable, plan: ShardingPlan, counts: Callable[[str], RowCounts],
        device: DeviceConstants, known: LRUCache[Hashable, Counted], batch: int,
    ) -> None:  # fmt: skip
        self._task = task
        self._table = table
        self._counts = counts
        self._device = device
        self._group_size = plan.group_size
        self._samples = samples_per_device(task.batch_size, task.num_devices)
        self._element_bytes = ELEMENT_BYTES[task.precision]
        self._by_copies: dict[int, list[Shard]] = {}
        for shard in plan.of_table(table.name):
            self._by_copies.setdefault(len(shard.devices), []).append(shard)
        self._rows: dict[int, Ints] = {
            copies: np.array([shard.rows for shard in shards], dtype=np.int64)
            for copies, shards in self._by_copies.items()
        }
        self._edges = np.unique(np.concatenate([*self._rows.values()]))
        self._known = known
        #: All that what shards come to depends on, besides rows, columns and holders.
        self._key = (
            batch, table, task.batch_size, task.num_devices, task.precision, task.optimizer, task.dedup_ids,
            self._edges.tobytes(),
        )  # fmt: skip

    def add_to(self, found: Tally) -> None:
        """Add this table's shards."""
        devices = self._task.num_devices
        to_server = np.zeros((devices, devices), dtype=np.bool_)
        for copies, shards in self._by_copies.items():
            self._add_class(found, to_server, copies, shards)
        found.ids += to_server * (self._samples * self._table.num_features * LENGTH_BYTES)[:, None]

    def _add_class(self, found: Tally, to_server: Bools, copies: int, shards: Sequence[Shard]) -> None:
        """Add the shards with so many holders; say in `to_server` which device asks which for ids."""
        task = self._task
        table = self._table
        devices = task.num_devices
        per_block = devices // copies
        holders = np.array([shard.devices for shard in shards], dtype=np.int64)
        rows = self._rows[copies]
        columns = np.array([shard.columns for shard in shards], dtype=np.float64)
        columns = columns[:, 1] - columns[:, 0]
        key = (*self._key, copies, self._are_groups(copies), rows.tobytes(), columns.tobytes())
        counted = self._known.get(key)
        if counted is None:
            counted = self._counted(copies, columns, shards)
            with contextlib.suppress(ValueError):  # larger than all that is kept
                self._known[key] = counted
        if copies < devices:
            source = np.broadcast_to(np.arange(devices), counted.looked_up.shape)
            server = np.repeat(holders, per_block, axis=1)
            to_server[source, server] = True
            found.ids += _pairs(source, server, counted.id_bytes)
            whole = np.diff(rows, axis=1)[:, 0] == table.num_embeddings
            row_bytes = (columns * self._element_bytes)[:, None]
            if not table.is_pooled:
                found.outputs += _pairs(server, source, counted.looked_up * row_bytes)
            elif whole.any():
                bags = np.where(whole[:, None], self._samples * table.num_features, 0)
                found.outputs += _pairs(server, source, bags * row_bytes)
            if table.is_pooled and not whole.all():
                cut = [shard for shard in shards if shard.num_rows < table.num_embeddings]
                self._add_partial_sums(found, copies, cut)
        if copies > 1:
            # What holders exchange, as `links.replica_exchange_ms` takes it.
            task = self._task
            precision = task.precision_of(self._table)
            in_groups = self._are_groups(copies)
            held = found.copied.setdefault(copies, np.zeros(task.num_devices))
            for shard in shards:
                weights = shard.num_rows * shard.num_columns * ELEMENT_BYTES[precision]
                with_state = block_bytes(shard.num_rows, shard.num_columns, precision, task.optimizer_of(self._table))
                of_step = with_state / (task.group_sync_interval or 1)
                held[list(shard.devices)] += of_step if in_groups else weights
        sent_whole = (rows[:, 1] - rows[:, 0] == table.num_embeddings) | (not table.is_pooled) | (copies == devices)
        if sent_whole.any():
            found.add_operator((table.is_pooled, copies, -1), holders[sent_whole].ravel())
        np.add.at(found.work_ms, holders.ravel(), counted.work_ms.reshape(-1, 2))

    def _add_partial_sums(self, found: Tally, copies: int, shards: Sequence[Shard]) -> None:
        """Add pieces of rows with so many holders, as `shardgym.costs.shard_keys.shard_loads` counts them."""
        devices = self._task.num_devices
        per_block = devices // copies
        domain = self._task.topology.fast_domain_size
        loads = found.partial_sums.setdefault(copies, np.zeros((devices, LOADS)))
        of_columns: dict[tuple[int, int], list[Shard]] = {}
        for shard in shards:
            of_columns.setdefault(shard.columns, []).append(shard)
        for pieces in of_columns.values():
            domains = {shard.devices[0] // domain for shard in pieces}
            paired = per_block > domain and per_block % domain == 0
            column = DOMAIN_ROW_COLUMNS if paired and len(domains) == 1 else ROW_COLUMNS
            num_rows = sum(shard.num_rows for shard in pieces)
            for shard in pieces:
                width = shard.num_columns * self._table.num_features * shard.num_rows / num_rows
                loads[list(shard.devices), column] += width
            found.add_operator((True, copies, column), np.array([shard.devices for shard in pieces]).ravel())

    def _counted(self, copies: int, columns: Floats, shards: Sequence[Shard]) -> Counted:
        """Return what shards with so many holders come to."""
        task = self._task
        table = self._table
        rows = self._rows[copies]
        counts = self._counts(table.name)
        found = counts.counts(self._edges)
        # Rows of pooled tables are looked up as often as they are in bags, however their ids are sent.
        of_ids = found.distinct if task.dedup_ids and not table.is_pooled else found.lookups
        id_bytes = ID_BYTES * (found.distinct if task.dedup_ids else found.lookups)
        if table.is_pooled:
            id_bytes = id_bytes + (_POSITION_BYTES * task.dedup_ids + WEIGHT_BYTES * table.weighted) * found.lookups
        of_edges = np.searchsorted(self._edges, rows)
        looked_up = _between(of_ids, of_edges)
        of_blocks = len(rows), copies, task.num_devices // copies
        ids = looked_up.reshape(of_blocks).sum(axis=2)
        is_everywhere = copies == task.num_devices
        touched = found.distinct if is_everywhere else counts.touched(self._edges, copies)
        distinct = _between(touched, of_edges)
        bags = self._samples.reshape(of_blocks[1:]).sum(axis=1) * float(table.num_features)
        per_weight, per_row = OPTIMIZER_STATE[task.optimizer_of(table)]
        forward, backward = compute_ms(
            self._device,
            batch_size=np.broadcast_to(bags, ids.shape),
            ids=ids,
            distinct=np.minimum(distinct, ids),
            width_bytes=columns[:, None] * ELEMENT_BYTES[task.precision_of(table)],
            output_bytes=columns[:, None] * self._element_bytes,
            state_bytes=4 * (per_weight * columns[:, None] + per_row),
            id_bytes=ID_BYTES + WEIGHT_BYTES * table.weighted,
            outputs=None if table.is_pooled else ids,
            adagrad_columns=columns[:, None] * (task.optimizer_of(table) == "adagrad"),
        )
        more_tables = (table.num_features - 1) * self._device.table_ms
        work = np.stack([forward, backward], axis=-1) + more_tables
        if copies > 1 and not self._are_groups(copies):
            keys = [ShardKey(table.name, shard.num_rows, shard.num_columns) for shard in shards]
            dense = np.array([dense_update_bytes(task, key, self._device.dense_passes) for key in keys])
            work[..., 1] += (dense / self._device.stream_bandwidth * 1e3)[:, None]
        return Counted(looked_up, _between(id_bytes, of_edges), work)

    def _are_groups(self, copies: int) -> bool:
        """Say whether so many holders are the same places of the plan's groups, which exchange weights."""
        return self._group_size is not None and copies * self._group_size == self._task.num_devices


def _between(values: Floats, of_edges: Ints) -> Floats:
    """Add up what falls into ranges between edges, given by the first and the last edge of each, shape (n, 2)."""
    totals = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, out=totals[1:])
    return np.asarray(totals[of_edges[:, 1]] - totals[of_edges[:, 0]], dtype=np.float64)


def _pairs(sender: Ints, receiver: Ints, num_bytes: Floats) -> Floats:
    """Add up bytes by sender and receiver, shape (D, D); arguments of shape (n, D)."""
    devices = sender.shape[1]
    where = (sender * devices + receiver).ravel()
    found = np.bincount(where, weights=np.broadcast_to(num_bytes, sender.shape).ravel(), minlength=devices**2)
    return found.astype(np.float64).reshape(devices, devices)
