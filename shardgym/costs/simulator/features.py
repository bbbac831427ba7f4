"""What predictions depend on: features and work of shards, and amounts that other parts of a step are lines in."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.link_model import StepWork
from shardgym.costs.links import COLUMNS, DOMAIN_ROW_COLUMNS, IDS, REPLICAS, ROW_COLUMNS, SHARDS, samples_per_device
from shardgym.costs.shard_keys import ShardKey
from shardgym.tables.bags import ReuseCounts
from shardgym.tables.ids import draw_bags
from shardgym.tables.row_access import BIN_ACCESSES, access_share
from shardgym.tables.table import REUSE_BINS, EmbeddingTable
from shardgym.tasks.task import ELEMENT_BYTES, OPTIMIZER_STATE, ShardingTask

#: Amounts of work of one shard in one batch; a shard's time is roughly a weighted sum of them.
WORK_NAMES = (
    "shards", "ids", "sort steps", "gathered bytes", "distinct rows", "distinct bytes", "pooled bytes", "updated bytes",
)  # fmt: skip

#: The first features of a shard rise with batch, columns, pooling factor or rows, the others do not depend on them.
RISING = 9
SHARD_FEATURES = RISING + 4 + REUSE_BINS

#: What a shard adds to its device as a whole: amounts that are added up, largest values, and what all shards share.
DEVICE_SUMS = len(WORK_NAMES) + 4
DEVICE_MAXIMA = 4
DEVICE_CONTEXT = 3
DEVICE_PARTS = DEVICE_SUMS + DEVICE_MAXIMA + DEVICE_CONTEXT
#: Reuse bins whose accesses are counted apart: rows that are hardly read again, that are, and that stay in caches.
_COARSE_BINS = (0, 2, 6)


class Groups:
    """Which elements of a flat list belong together: the shards of a device, the devices of an exchange.

    Args:
        counts: elements of each group, all at least 1, shape (G,).
    """

    def __init__(self, counts: Ints) -> None:
        self.counts = counts
        self.starts = np.cumsum(counts) - counts
        self.ids = np.repeat(np.arange(len(counts)), counts)

    def __len__(self) -> int:
        return len(self.counts)


@dataclass(frozen=True)
class Shards:
    """The shards of any number of devices, in one flat list of S shards; arrays of shape (S,) unless it is said."""

    rows: Floats
    columns: Floats
    pooling: Floats  #: mean ids per sample
    reuse: Floats  #: reuse histograms, shape (S, 17)
    batch: Floats  #: samples of the batch
    element_bytes: Floats  #: of one weight
    state_per_weight: Floats  #: FP32 elements of optimiser state
    state_per_row: Floats

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Ints | Bools) -> Shards:
        """Return the chosen shards."""
        return Shards(*(getattr(self, field.name)[index] for field in fields(self)))


def shards_of(task: ShardingTask, keys: Sequence[ShardKey]) -> Shards:
    """Describe shards of a task. Rows of a shard are used again as often as those of the whole table."""
    tables = [task.table(key.table) for key in keys]
    rows = np.array([float(key.rows) for key in keys])
    share = np.array([access_share(table, *key.row_range) for table, key in zip(tables, keys, strict=True)])
    state_per_weight, state_per_row = OPTIMIZER_STATE[task.optimizer]
    ones = np.ones(len(keys))
    return Shards(
        rows=rows,
        columns=np.array([float(key.columns) for key in keys]),
        pooling=share * np.array([table.pooling_factor for table in tables]),
        reuse=np.array([reuse_of(table, task.batch_size) for table in tables]),
        batch=ones * task.batch_size,
        element_bytes=ones * ELEMENT_BYTES[task.precision],
        state_per_weight=ones * state_per_weight,
        state_per_row=ones * state_per_row,
    )


def reuse_of(table: EmbeddingTable, batch_size: int) -> tuple[float, ...]:
    """Return the table's reuse histogram, or that of one batch drawn from its ids when it has none."""
    known = table.reuse_histogram
    if known is not None and (any(known) or table.pooling_factor == 0):
        return known
    return _drawn_reuse(table, batch_size)


@functools.lru_cache(maxsize=4096)
def _drawn_reuse(table: EmbeddingTable, batch_size: int) -> tuple[float, ...]:
    return ReuseCounts.of(draw_bags(table, batch_size, seed=0, placed=False).indices).row_shares()


def mean_accesses(shards: Shards) -> Floats:
    """Return how often a batch touches a row that it touches, at least 1, shape (S,)."""
    mass = shards.reuse.sum(axis=1)
    mean = shards.reuse @ np.asarray(BIN_ACCESSES) / np.where(mass > 0, mass, 1.0)
    return np.asarray(np.maximum(mean, 1.0), dtype=np.float64)


def distinct_rows(shards: Shards) -> Floats:
    """Return the distinct rows that a batch touches, from the reuse histogram, shape (S,)."""
    ids = shards.batch * shards.pooling
    # No more rows than there are ids, or in the table: histograms are of whole tables, shards may have fewer rows.
    return np.minimum(ids / mean_accesses(shards), np.minimum(ids, shards.rows))


def work(shards: Shards) -> Floats:
    """Return the amounts of work named in `WORK_NAMES`, none negative, shape (S, 8)."""
    ids = shards.batch * shards.pooling
    distinct = distinct_rows(shards)
    row_bytes = shards.columns * shards.element_bytes
    # The optimiser updates weights and its own FP32 state.
    touched_bytes = row_bytes + 4 * (shards.state_per_weight * shards.columns + shards.state_per_row)
    return np.column_stack([
        np.ones_like(ids), ids, ids * np.log2(ids + 1), ids * row_bytes, distinct, distinct * row_bytes,
        shards.batch * row_bytes, distinct * touched_bytes,
    ])  # fmt: skip


def access_shares(shards: Shards) -> Floats:
    """Return the share of accesses per reuse bin, shape (S, 17)."""
    accesses = shards.reuse * np.asarray(BIN_ACCESSES)
    total = accesses.sum(axis=1, keepdims=True)
    return np.asarray(accesses / np.where(total > 0, total, 1.0), dtype=np.float64)


def shard_features(shards: Shards) -> Floats:
    """Return what the encoder sees: first what rises, see `RISING`, shape (S, 30)."""
    ids = shards.batch * shards.pooling
    row_bytes = shards.columns * shards.element_bytes
    distinct = distinct_rows(shards)
    rising = np.column_stack([
        shards.rows, shards.columns, shards.pooling, shards.batch, shards.rows * row_bytes, distinct,
        distinct * row_bytes, ids, ids * row_bytes,
    ])  # fmt: skip
    context = np.column_stack([
        np.log(mean_accesses(shards)), np.log(shards.element_bytes), shards.state_per_weight, shards.state_per_row,
    ])  # fmt: skip
    return np.hstack([np.log(rising + 1e-3), context, access_shares(shards)])


def device_parts(shards: Shards) -> Floats:
    """Return what each shard adds to its device: sums, largest values, data type and optimiser, shape (S, 19)."""
    accesses = np.add.reduceat(access_shares(shards), _COARSE_BINS, axis=1) * (shards.batch * shards.pooling)[:, None]
    table_bytes = shards.rows * shards.columns * shards.element_bytes
    distinct_bytes = distinct_rows(shards) * shards.columns * shards.element_bytes
    return np.column_stack([
        work(shards), table_bytes, accesses,
        shards.rows, shards.columns, shards.pooling, distinct_bytes,
        shards.element_bytes, shards.state_per_weight, shards.state_per_row,
    ])  # fmt: skip


def device_vectors(parts: Floats, groups: Groups) -> Floats:
    """Return what devices look like as a whole: logarithms, then data type and optimiser, (S, 19) to (G, 19)."""
    sums = np.add.reduceat(parts[:, :DEVICE_SUMS], groups.starts, axis=0)
    largest = np.maximum.reduceat(parts[:, DEVICE_SUMS:], groups.starts, axis=0)
    return np.hstack([np.log1p(sums), np.log1p(largest[:, :DEVICE_MAXIMA]), largest[:, DEVICE_MAXIMA:]])


#: What the other parts of a step are lines in: 1, ids that a device handles, values of pooled rows in bytes, and bags.
AMOUNTS = ("constant", "ids", "bytes", "bags")
#: Which of them each part depends on, see `shardgym.costs.fbgemm.step.PARTS`; the constant always.
LINES = {
    "pack_ids": ("ids", "bags"),
    "count_ids": ("bags",),
    "group_ids": ("ids", "bags"),
    "join_outputs": ("bytes",),
    "pack_gradients": ("bytes",),
}
#: Parts in which a device handles its own samples, of the shards of all devices; in the others it handles all samples,
#: of its own shards.
OF_OWN_SAMPLES = (0, 3, 4)
OF_OWN_SHARDS = (1, 2)


class _Lines(NamedTuple):
    """Lines of one kind of task, of D devices; see `LINES`."""

    sent_ms: Floats  #: of parts of a device's own samples, per load of all devices, shape (3, 3 D)
    sent_constant_ms: Floats  #: shape (3, 1)
    received_ms: Floats  #: of parts of a device's own shards, per load of it, shape (3, 2)
    received_constant_ms: Floats  #: shape (2,)
    added_ms: Floats  #: of joining outputs, per column of partial sums, of all devices and of one domain, shape (2, D)


@functools.lru_cache(maxsize=256)  # environments and searches ask about few placements at a time
def _lines_of(lines: bytes, batch_size: int, element_bytes: int, num_devices: int, domain: int) -> _Lines:
    of_parts = np.frombuffer(lines).reshape(len(LINES), len(AMOUNTS))
    per_load = of_parts[:, 1:] * (batch_size * np.array([1, element_bytes, 1]))
    share = samples_per_device(batch_size, num_devices) / batch_size
    own_samples, own_shards = list(OF_OWN_SAMPLES), list(OF_OWN_SHARDS)
    sent_ms = per_load[own_samples].T[:, :, None] * share
    # Partial sums of all devices are added up; or of a domain's, in which a device then has those of its columns.
    added_ms = np.array([[num_devices - 1.0], [domain]]) * sent_ms[COLUMNS - IDS, 1]
    return _Lines(
        sent_ms.reshape(len(sent_ms), -1), of_parts[own_samples, :1], per_load[own_shards].T, of_parts[own_shards, 0],
        added_ms,
    )  # fmt: skip


def step_work(lines: Floats, task: ShardingTask, compute_ms: Floats, loads: Floats) -> StepWork:
    """Return what devices work in a step.

    Args:
        lines: ms per amount, by `LINES` and `AMOUNTS`, shape (5, 4).
        task: batch and precision.
        compute_ms: forward and backward of every device of placements, shape (..., D, 2).
        loads: loads of every device, by the columns of `shardgym.costs.links`, shape (..., D, LOADS).
    """
    domain = task.topology.fast_domain_size
    prices = _lines_of(lines.tobytes(), task.batch_size, ELEMENT_BYTES[task.precision], task.num_devices, domain)
    handled = loads[..., IDS:]
    sums = loads[..., [ROW_COLUMNS, DOMAIN_ROW_COLUMNS]] if loads[..., :IDS].any() else None
    if sums is not None:
        handled = handled.copy()
        handled[..., COLUMNS - IDS] += sums.sum(axis=-1)
        handled[..., SHARDS - IDS] -= loads[..., REPLICAS]  # no bags of theirs are exchanged
    everything = np.add.reduce(handled, axis=-2)
    sent = (everything @ prices.sent_ms).reshape(*everything.shape[:-1], len(OF_OWN_SAMPLES), -1)
    sent += prices.sent_constant_ms
    if sums is not None:
        sent[..., 1, :] += sums.sum(axis=-2) @ prices.added_ms
    # One product for all placements: one for each takes several times as long.
    received = handled.reshape(-1, handled.shape[-1]) @ prices.received_ms
    received += prices.received_constant_ms
    received = received.reshape(*handled.shape[:-1], -1)
    return StepWork(
        pack_ids=sent[..., 0, :],
        count_ids=received[..., 0],
        group_ids=received[..., 1],
        forward=compute_ms[..., 0],
        join_outputs=sent[..., 1, :],
        pack_gradients=sent[..., 2, :],
        backward=compute_ms[..., 1],
    )
