"""Shards of one task, each encoded once however many plans hold it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import device_range_parts, shard_range_features
from shardgym.costs.simulator.ops import Array
from shardgym.costs.simulator.samples import Shards
from shardgym.ids import ReuseCounts, draw_bags
from shardgym.plan import Shard
from shardgym.table import EmbeddingTable
from shardgym.task import ELEMENT_BYTES, OPTIMIZER_STATE, ShardingTask

#: Table, rows, columns: where rows and columns begin does not matter.
Key = tuple[str, int, int]


def shard_key(shard: Shard) -> Key:
    """Return what a shard's time depends on."""
    return shard.table, shard.rows[1] - shard.rows[0], shard.columns[1] - shard.columns[0]


def shards_of(task: ShardingTask, keys: Sequence[Key]) -> Shards:
    """Describe shards of a task; a row shard gets the share of lookups that its rows are of the table's."""
    tables = [task.table(name) for name, _, _ in keys]
    rows = np.array([float(key[1]) for key in keys])
    share = rows / np.array([float(table.num_embeddings) for table in tables])
    per_weight, per_row = OPTIMIZER_STATE[task.optimizer]
    same = np.ones(len(keys))
    return Shards(
        rows=rows,
        columns=np.array([float(key[2]) for key in keys]),
        pooling=share * np.array([table.pooling_factor for table in tables]),
        reuse=np.array([reuse_of(table, task.batch_size) for table in tables]),
        batch=same * task.batch_size,
        element_bytes=same * ELEMENT_BYTES[task.precision],
        state_per_weight=same * per_weight,
        state_per_row=same * per_row,
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


class EncodedShards:
    """Encoded shards of one task by position; grows as new ones are asked for.

    Args:
        task: the task.
        encode: from shards to arrays with one row per shard.

    Attributes:
        encoded: one row per shard.
        shard_ranges: shape (S, 6), see `SHARD_RANGE_NAMES`.
        device_parts: shape (S, 3), see `DEVICE_RANGE_NAMES`.
    """

    def __init__(self, task: ShardingTask, encode: Callable[[Shards], Array]) -> None:
        self._task, self._encode = task, encode
        self._known: dict[Key, int] = {}
        self.encoded: Array = None
        self.shard_ranges: Floats = np.zeros((0, 0))
        self.device_parts: Floats = np.zeros((0, 0))

    def positions(self, shards: Iterable[Shard]) -> Ints:
        """Return where shards are in the arrays; those not seen before are encoded together."""
        keys = [shard_key(shard) for shard in shards]
        new = [key for key in dict.fromkeys(keys) if key not in self._known]
        if new:
            self._append(shards_of(self._task, new))
            self._known.update(zip(new, range(len(self._known), len(self._known) + len(new)), strict=True))
        return np.array([self._known[key] for key in keys], dtype=np.int64)

    def _append(self, shards: Shards) -> None:
        parts = self._encode(shards), shard_range_features(shards), device_range_parts(shards)
        if self.encoded is None:
            self.encoded, self.shard_ranges, self.device_parts = parts
        else:
            held = self.encoded, self.shard_ranges, self.device_parts
            joined = [np.concatenate(pair) for pair in zip(held, parts, strict=True)]
            self.encoded, self.shard_ranges, self.device_parts = joined
