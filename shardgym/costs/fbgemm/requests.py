"""The ids of a batch: drawn once per table, cached on the device, and merged there for the kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from cachetools import LRUCache, cachedmethod

from shardgym.arrays import Ints
from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
from shardgym.errors import InputError
from shardgym.ids import draw_bags
from shardgym.table import EmbeddingTable


class TableIds(NamedTuple):
    """Ids of one table, or of a range of its rows, for one batch, on the device.

    Attributes:
        indices: row ids counted from the first row, sample by sample, int64, shape (number of ids,).
        lengths: ids per sample, int64, shape (batch_size,).
    """

    indices: torch.Tensor
    lengths: torch.Tensor


class Ids(NamedTuple):
    """Ids of all shards for one batch in FBGEMM's layout, on the device.

    Attributes:
        indices: row ids inside each shard, shard by shard and sample by sample, int64, shape (number of ids,).
        offsets: where each bag starts, and the end, int64, shape (shards * batch_size + 1,).
    """

    indices: torch.Tensor
    offsets: torch.Tensor


class KeptBytes(NamedTuple):
    """Sizes of the caches of ids on the device, in bytes.

    Attributes:
        drawn: for ids of single tables.
        merged: for ids of whole shard sets.
    """

    drawn: int
    merged: int


class RequestMaker:
    """Draws and merges ids; every plan of a task gets the same ones.

    Args:
        seed: of the id draws.
        device: where ids are cached and merged.
        limit_bytes: size of the cache of drawn ids.

    Attributes:
        drawn: the cache of drawn ids, by table and batch.
    """

    def __init__(self, seed: int, device: torch.device, limit_bytes: int) -> None:
        self._seed = seed
        self._device = device
        self.drawn: LRUCache[Any, TableIds] = LRUCache(limit_bytes, tensor_bytes)

    def request(self, shard_set: ShardSet, batch: int) -> Ids:
        """Return the ids of batch number `batch` for all shards of `shard_set`.

        Raises:
            InputError: recorded ids are missing, or ids lie outside their table.
        """
        parts = [cut_rows(self._table_ids(s.table, shard_set.batch_size, batch), s) for s in shard_set.shards]
        lengths = torch.cat([part.lengths for part in parts])
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=self._device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        return Ids(torch.cat([part.indices for part in parts]), offsets)

    @cachedmethod(
        lambda self: self.drawn,
        key=lambda _, table, *rest: (table.name, table.num_embeddings, table.pooling_factor, table.ids, *rest),
    )
    def _table_ids(self, table: EmbeddingTable, batch_size: int, batch: int) -> TableIds:
        bags = draw_bags(table, batch_size, seed=self._seed, batch=batch)
        check_rows(table, bags.indices)
        return TableIds(*(torch.tensor(values, device=self._device) for values in bags))


def check_rows(table: EmbeddingTable, indices: Ints) -> None:
    """Raise `InputError` for ids that lie outside their table: kernels run without bounds checks."""
    if indices.size and not 0 <= indices.min() <= indices.max() < table.num_embeddings:
        raise InputError(
            f"ids of table '{table.name}' reach {indices.max()}, it has {table.num_embeddings} rows: "
            "expected ids below the number of rows"
        )


def tensor_bytes(tensors: TableIds | Ids) -> int:
    """Return the bytes of both tensors."""
    return sum(int(tensor.nbytes) for tensor in tensors)


def cut_rows(ids: TableIds, shard: ShardSpec) -> TableIds:
    """Return the ids that fall into the rows of `shard`, counted from its first row; bags may become empty."""
    if shard.is_whole:
        return ids
    low, high = shard.rows
    samples = len(ids.lengths)
    inside = (ids.indices >= low) & (ids.indices < high)
    numbers = torch.arange(samples, device=ids.lengths.device)
    sample_of = torch.repeat_interleave(numbers, ids.lengths, output_size=len(ids.indices))
    return TableIds(ids.indices[inside] - low, torch.bincount(sample_of[inside], minlength=samples))
