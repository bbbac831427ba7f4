"""The ids that a device looks up: drawn once per table and batch, kept on the device, merged there for the kernel."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

import torch

from shardgym.costs.fbgemm.content import Content, Piece
from shardgym.errors import InputError
from shardgym.ids import Bags, draw_bags
from shardgym.table import EmbeddingTable

V = TypeVar("V")


class TableIds(NamedTuple):
    """Ids of one table, or of a range of its rows, for one batch, on the device.

    Attributes:
        indices: row ids counted from the first row, sample by sample, int64, shape (number of ids,).
        lengths: ids per sample, int64, shape (batch_size,).
    """

    indices: torch.Tensor
    lengths: torch.Tensor


class Ids(NamedTuple):
    """Ids of all pieces for one batch in FBGEMM's layout, on the device.

    Attributes:
        indices: row ids inside each piece, piece by piece and sample by sample, int64, shape (number of ids,).
        offsets: where each bag starts, and the end, int64, shape (pieces * batch_size + 1,).
    """

    indices: torch.Tensor
    offsets: torch.Tensor


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
        device: where ids are kept and merged.
        limit_bytes: how much of the drawn ids is kept for the next request.
    """

    def __init__(self, seed: int, device: torch.device, limit_bytes: int) -> None:
        self._seed, self._device = seed, device
        self._drawn: ByteCache[TableIds] = ByteCache(limit_bytes, tensor_bytes)

    def request(self, content: Content, batch: int) -> Ids:
        """Return the ids of batch number `batch` for all pieces of `content`.

        Raises:
            InputError: recorded ids cannot be had, or ids lie outside their table.
        """
        parts = [cut_rows(self._of_table(p.table, content.batch_size, batch), p) for p in content.pieces]
        lengths = torch.cat([part.lengths for part in parts])
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=self._device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        return Ids(torch.cat([part.indices for part in parts]), offsets)

    def forget(self) -> None:
        """Give back the memory of ids that were kept."""
        self._drawn.clear()

    def _of_table(self, table: EmbeddingTable, batch_size: int, batch: int) -> TableIds:
        key = (table.name, table.num_embeddings, table.pooling_factor, table.ids, batch_size, batch)
        return self._drawn.get(key, lambda: self._draw(table, batch_size, batch))

    def _draw(self, table: EmbeddingTable, batch_size: int, batch: int) -> TableIds:
        bags = _checked(table, draw_bags(table, batch_size, seed=self._seed, batch=batch))
        return TableIds(*(torch.tensor(values, device=self._device) for values in bags))


def tensor_bytes(tensors: TableIds | Ids) -> int:
    """Return the bytes of both tensors."""
    return sum(int(tensor.nbytes) for tensor in tensors)


def cut_rows(ids: TableIds, piece: Piece) -> TableIds:
    """Return the ids that fall into the rows of `piece`, counted from its first row; bags may become empty."""
    if piece.is_whole:
        return ids
    (low, high), samples = piece.rows, len(ids.lengths)
    inside = (ids.indices >= low) & (ids.indices < high)
    numbers = torch.arange(samples, device=ids.lengths.device)
    sample_of = torch.repeat_interleave(numbers, ids.lengths, output_size=len(ids.indices))
    return TableIds(ids.indices[inside] - low, torch.bincount(sample_of[inside], minlength=samples))


def _checked(table: EmbeddingTable, bags: Bags) -> Bags:
    """Kernels run without bounds checks, so ids that lie outside the table are refused here."""
    if bags.indices.size and not 0 <= bags.indices.min() <= bags.indices.max() < table.num_embeddings:
        raise InputError(
            f"ids of table '{table.name}' reach {bags.indices.max()}, it has {table.num_embeddings} rows: "
            "expected ids below the number of rows"
        )
    return bags
