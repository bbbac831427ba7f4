"""What networks see of shards and of exchanges: amounts of work, and how often rows are used again."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.additive import ShardKey
from shardgym.costs.roofline import BIN_ACCESSES
from shardgym.ids import ReuseCounts, draw_bags
from shardgym.table import REUSE_BINS, EmbeddingTable
from shardgym.task import ELEMENT_BYTES, OPTIMIZER_STATE, ShardingTask

#: Amounts of work of one shard in one batch; a shard's time is roughly a weighted sum of them.
WORK_NAMES = (
    "shards", "ids", "sort steps", "gathered bytes", "distinct rows", "distinct bytes", "pooled bytes", "updated bytes",
)  # fmt: skip

#: What must lie in the range of the training data: of every shard, of every device, of every device of an exchange.
SHARD_RANGE_NAMES = (
    "num_embeddings", "embedding_dim", "pooling_factor", "batch_size", "ids per shard", "accesses per row",
)  # fmt: skip
DEVICE_RANGE_NAMES = ("shards per device", "ids per device", "columns per device")
COMM_RANGE_NAMES = ("devices", "batch_size", "bytes per device", "start offset")

#: How many features of a shard the compute networks of version 1 see, the oracle's as the judge's.
SHARD_FEATURES = 10 + REUSE_BINS

#: Version 2: the first features of a shard rise with batch, columns, pooling factor or rows, the others do not depend
#: on them.
RISING = 9
MONOTONE_FEATURES = RISING + 4 + REUSE_BINS

#: What a shard adds to its device in version 2: amounts that are added up, largest values, and what all shards share.
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
    """The shards of any number of devices, in one flat list of S shards.

    Attributes:
        rows: shape (S,).
        columns: shape (S,).
        pooling: mean ids per sample, shape (S,).
        reuse: reuse histograms, shape (S, 17).
        batch: samples of the batch, shape (S,).
        element_bytes: bytes of one weight, shape (S,).
        state_per_weight: FP32 elements of optimiser state per weight, shape (S,).
        state_per_row: likewise per row, shape (S,).
    """

    rows: Floats
    columns: Floats
    pooling: Floats
    reuse: Floats
    batch: Floats
    element_bytes: Floats
    state_per_weight: Floats
    state_per_row: Floats

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Ints | Bools) -> Shards:
        """Return the chosen shards."""
        return Shards(*(getattr(self, field.name)[index] for field in fields(self)))


def shards_of(task: ShardingTask, keys: Sequence[ShardKey]) -> Shards:
    """Describe shards of a task; a row shard gets the share of lookups that its rows are of the table's."""
    tables = [task.table(name) for name, _, _ in keys]
    rows = np.array([float(key[1]) for key in keys])
    share = rows / np.array([float(table.num_embeddings) for table in tables])
    state_per_weight, state_per_row = OPTIMIZER_STATE[task.optimizer]
    ones = np.ones(len(keys))
    return Shards(
        rows=rows,
        columns=np.array([float(key[2]) for key in keys]),
        pooling=share * np.array([table.pooling_factor for table in tables]),
        reuse=np.array([reuse_of(table, task.batch_size) for table in tables]),
        batch=ones * task.batch_size,
        element_bytes=ones * ELEMENT_BYTES[task.precision],
        state_per_weight=ones * state_per_weight,
        state_per_row=ones * state_per_row,
    )


def reuse_of(table: EmbeddingTable, batch_size: int) -> tuple[float, ...]:
    """Return the table's reuse histogram, or that of one batch drawn from its ids when it has none.

    Raises:
        InputError: it has none, and its recorded ids cannot be found.
    """
    known = table.reuse_histogram
    if known is not None and (any(known) or table.pooling_factor == 0):
        return known
    return _drawn_reuse(table, batch_size)


@functools.lru_cache(maxsize=4096)
def _drawn_reuse(table: EmbeddingTable, batch_size: int) -> tuple[float, ...]:
    return ReuseCounts.of(draw_bags(table, batch_size, seed=0).indices).row_shares()


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


def oracle_features(shards: Shards) -> Floats:
    """Return what the oracle's encoder sees: logarithms, and the share of accesses per reuse bin, shape (S, 27)."""
    distinct = distinct_rows(shards)
    amounts = np.column_stack([
        shards.rows, shards.columns, shards.pooling, shards.batch, shards.rows * shards.columns * shards.element_bytes,
        mean_accesses(shards), distinct, distinct * shards.columns * shards.element_bytes,
        shards.batch * shards.pooling, 1 + shards.state_per_weight + shards.state_per_row / shards.columns,
    ])  # fmt: skip
    return np.hstack([np.log(amounts + 1e-3), access_shares(shards)])


def access_shares(shards: Shards) -> Floats:
    """Return the share of accesses per reuse bin, shape (S, 17)."""
    accesses = shards.reuse * np.asarray(BIN_ACCESSES)
    total = accesses.sum(axis=1, keepdims=True)
    return np.asarray(accesses / np.where(total > 0, total, 1.0), dtype=np.float64)


def monotone_features(shards: Shards) -> Floats:
    """Return what the encoder of version 2 sees: first what rises, see `RISING`, shape (S, 30)."""
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


def judge_features(shards: Shards) -> Floats:
    """Return what the judge's encoder sees: also square and cube roots, and cumulated row shares, shape (S, 27)."""
    ids = shards.batch * shards.pooling
    # Other scales than the oracle's on purpose, so that the two err in different places.
    amounts = np.column_stack([
        np.log2(shards.rows), np.log2(shards.columns), np.log2(mean_accesses(shards)), np.log1p(ids),
        np.cbrt(ids), np.sqrt(shards.columns),
        np.log1p(ids * shards.columns * shards.element_bytes), np.log(shards.batch), shards.element_bytes,
        shards.state_per_weight, shards.state_per_row,
    ])  # fmt: skip
    # The last of the cumulated shares is always 1.
    return np.hstack([amounts, np.cumsum(shards.reuse, axis=1)[:, :-1]])


def shard_range_features(shards: Shards) -> Floats:
    """Return the features named in `SHARD_RANGE_NAMES`, shape (S, 6)."""
    ids = shards.batch * shards.pooling
    return np.column_stack([shards.rows, shards.columns, shards.pooling, shards.batch, ids, mean_accesses(shards)])


def device_range_parts(shards: Shards) -> Floats:
    """Return what each shard adds to the features named in `DEVICE_RANGE_NAMES`, shape (S, 3)."""
    return np.column_stack([np.ones(len(shards)), shards.batch * shards.pooling, shards.columns])


class Exchanges(NamedTuple):
    """Any number of exchanges; devices in one flat list of S.

    Attributes:
        groups: devices of each exchange.
        widths: columns of each device's pooled output, shape (S,).
        offsets_ms: how much later than the first each device starts, shape (S,); zeros for an aligned start.
        batch: samples over all devices of the device's exchange, shape (S,).
        element_bytes: of one value, shape (S,).
    """

    groups: Groups
    widths: Floats
    offsets_ms: Floats
    batch: Floats
    element_bytes: Floats


def exchanges_of(
    widths: npt.ArrayLike, offsets_ms: npt.ArrayLike, batch: npt.ArrayLike, element_bytes: npt.ArrayLike
) -> Exchanges:
    """Return the exchanges of P plans on D devices: two arrays of shape (P, D), and two of shape (P,) or numbers."""
    grid = np.asarray(widths, dtype=np.float64)
    plans, devices = grid.shape
    return Exchanges(
        groups=Groups(np.full(plans, devices)),
        widths=grid.ravel(),
        offsets_ms=np.asarray(offsets_ms, dtype=np.float64).ravel(),
        batch=np.full(grid.shape, np.asarray(batch)[..., None], dtype=np.float64).ravel(),
        element_bytes=np.full(grid.shape, np.asarray(element_bytes)[..., None], dtype=np.float64).ravel(),
    )


def exchange_vectors(exchanges: Exchanges) -> Floats:
    """Return what exchanges look like as a whole: logarithms of devices, batch, bytes, latest start, (G, 6)."""
    groups = exchanges.groups
    row_bytes = exchanges.widths * exchanges.element_bytes
    batch = exchanges.batch[groups.starts]
    return np.column_stack([
        np.log(groups.counts), np.log(batch), np.log1p(np.add.reduceat(row_bytes, groups.starts) * batch),
        np.log1p(np.maximum.reduceat(row_bytes, groups.starts) * batch),
        np.log(exchanges.element_bytes[groups.starts]),
        np.log1p(np.maximum.reduceat(exchanges.offsets_ms, groups.starts)),
    ])  # fmt: skip


def comm_range_features(exchanges: Exchanges) -> Floats:
    """Return the features named in `COMM_RANGE_NAMES`, shape (S, 4)."""
    devices = exchanges.groups.counts.astype(np.float64)[exchanges.groups.ids]
    sent_bytes = exchanges.widths * exchanges.element_bytes * exchanges.batch
    return np.column_stack([devices, exchanges.batch, sent_bytes, exchanges.offsets_ms])
