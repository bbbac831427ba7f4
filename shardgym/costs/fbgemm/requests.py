"""The ids that a device looks up: drawn once per table and batch, cut to row ranges, merged for the kernel."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from shardgym.costs.fbgemm.content import Content, Piece
from shardgym.errors import InputError
from shardgym.ids.sampling import Bags, draw_bags
from shardgym.table import EmbeddingTable

Int64s = npt.NDArray[np.int64]
V = TypeVar("V")


class Request(NamedTuple):
    """Ids in FBGEMM's layout.

    Attributes:
        indices: row ids inside each piece, table by table and sample by sample, shape (number of ids,).
        offsets: where each bag starts, and the end, shape (pieces * batch_size + 1,).
    """

    indices: Int64s
    offsets: Int64s


class ByteCache(Generic[V]):
    """A cache that forgets what was used longest ago once it holds too many bytes.

    Args:
        limit_bytes: what it may hold; the newest entry is kept even when it is larger.
        size_of: bytes of a value.
    """

    def __init__(self, limit_bytes: int, size_of: Callable[[V], int]) -> None:
        self._limit, self._size_of = limit_bytes, size_of
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self.held_bytes = 0

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return what is held under `key`, made first when it is not."""
        if key in self._entries:
            self._entries.move_to_end(key)
            return self._entries[key][0]
        value = make()
        self._entries[key] = (value, self._size_of(value))
        self.held_bytes += self._entries[key][1]
        while self.held_bytes > self._limit and len(self._entries) > 1:
            self.held_bytes -= self._entries.popitem(last=False)[1][1]
        return value

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.held_bytes = 0


class RequestMaker:
    """Makes requests; every plan of a task sees the same ids.

    Args:
        seed: of the id draws.
        limit_bytes: how much of the drawn ids is kept for the next plan.
    """

    def __init__(self, seed: int, limit_bytes: int) -> None:
        self._seed = seed
        self._bags: ByteCache[Bags] = ByteCache(limit_bytes, lambda b: b.indices.nbytes + b.lengths.nbytes)

    def request(self, content: Content, batch: int) -> Request:
        """Return the ids of batch number `batch` for all pieces of `content`."""
        bags = [cut_rows(self._draw(p.table, content.batch_size, batch), p) for p in content.pieces]
        offsets = np.zeros(len(bags) * content.batch_size + 1, dtype=np.int64)
        np.cumsum(np.concatenate([b.lengths for b in bags]), out=offsets[1:])
        return Request(np.concatenate([b.indices for b in bags]), offsets)

    def _draw(self, table: EmbeddingTable, batch_size: int, batch: int) -> Bags:
        key = (table.name, table.num_embeddings, table.pooling_factor, table.ids, batch_size, batch)
        return self._bags.get(
            key, lambda: _checked(table, draw_bags(table, batch_size, seed=self._seed, batch=batch))
        )


def cut_rows(bags: Bags, piece: Piece) -> Bags:
    """Return the ids that fall into the rows of `piece`, counted from its first row; bags may become empty."""
    if piece.is_whole:
        return bags
    low, high = piece.rows
    inside = (bags.indices >= low) & (bags.indices < high)
    samples = np.repeat(np.arange(len(bags.lengths)), bags.lengths)[inside]
    return Bags(bags.indices[inside] - low, np.bincount(samples, minlength=len(bags.lengths)).astype(np.int64))


def _checked(table: EmbeddingTable, bags: Bags) -> Bags:
    """Kernels run without bounds checks, so ids that lie outside the table are refused here."""
    if bags.indices.size and not 0 <= bags.indices.min() <= bags.indices.max() < table.num_embeddings:
        raise InputError(
            f"ids of table '{table.name}' reach {bags.indices.max()}, it has {table.num_embeddings} rows: "
            "expected ids below the number of rows"
        )
    return bags
