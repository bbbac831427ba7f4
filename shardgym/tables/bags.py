"""The ids of one table for one batch, how often they touch a row, and how many fall into equal ranges of rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardgym.arrays import Ints
from shardgym.errors import InputError
from shardgym.tables.table import REUSE_BINS

#: Ranges in which ids are counted: cuts into 2, 3, 4, 6, 8, ..., 64 equal parts fall between them.
RANGES = 192


class Bags(NamedTuple):
    """The ids of one table for one batch."""

    indices: Ints  #: row ids, shape (number of ids,), in [0, num_embeddings)
    lengths: Ints  #: ids per sample, shape (batch_size,), summing to the number of ids

    def samples(self, first: int, count: int) -> Bags:
        """Return the bags of `count` samples from number `first` on."""
        start = int(self.lengths[:first].sum())
        lengths = self.lengths[first : first + count]
        return Bags(self.indices[start : start + int(lengths.sum())], lengths)


def check_bags(name: str, rows: int, bags: Bags, batch_size: int) -> None:
    """Raise `InputError` for ids that are not a batch of a table with this name and number of rows.

    Kernels run without bounds checks.
    """
    indices, lengths = bags
    where = f"ids of table '{name}'"
    if len(lengths) != batch_size:
        raise InputError(f"{where}: got {len(lengths)} samples, expected a batch of {batch_size}")
    if len(lengths) and int(lengths.min()) < 0:
        raise InputError(f"{where}: a bag has {lengths.min()} ids, expected 0 or more")
    if int(lengths.sum()) != len(indices):
        raise InputError(f"{where}: lengths sum to {lengths.sum()}, but there are {len(indices)} ids")
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < rows:
        wrong = indices.min() if indices.min() < 0 else indices.max()
        raise InputError(f"{where}: id {wrong} is out of range, expected 0 to {rows - 1}")


class ReuseCounts:
    """How often the rows that a batch touches are touched, in bins, summed over any number of tables."""

    def __init__(self) -> None:
        #: Distinct rows per bin of `EmbeddingTable.reuse_histogram`, shape (17,); ids per bin, likewise.
        self.rows, self.accesses = np.zeros((2, REUSE_BINS), dtype=np.int64)

    @classmethod
    def of(cls, indices: Ints) -> ReuseCounts:
        """Count one table's ids of one batch."""
        if indices.size and int(indices.max()) < 8 * indices.size + 2**20:
            return cls.of_counts(np.bincount(indices))  # ids are dense: faster than sorting them
        return cls.of_counts(np.unique(indices, return_counts=True)[1])

    @classmethod
    def of_counts(cls, per_row: Ints) -> ReuseCounts:
        """Count rows that a batch touches so often, shape (rows,); those that it does not touch do not count."""
        # Few numbers are different.
        rows = np.bincount(per_row) if len(per_row) else np.zeros(0, dtype=np.int64)
        times = np.flatnonzero(rows[1:]) + 1
        bins = np.minimum(np.ceil(np.log2(times)).astype(np.int64), REUSE_BINS - 1)
        result = cls()
        result.rows += np.bincount(bins, weights=rows[times], minlength=REUSE_BINS).astype(np.int64)
        result.accesses += np.bincount(bins, weights=rows[times] * times, minlength=REUSE_BINS).astype(np.int64)
        return result

    def add(self, other: ReuseCounts) -> None:
        """Add another table's counts to these."""
        self.rows += other.rows
        self.accesses += other.accesses

    def row_shares(self) -> tuple[float, ...]:
        """Share of distinct rows per bin: the `reuse_histogram` of a table; zeros when nothing was accessed."""
        return _shares(self.rows)

    def access_shares(self) -> tuple[float, ...]:
        """Share of accesses per bin; zeros when nothing was accessed."""
        return _shares(self.accesses)


def _shares(counts: Ints) -> tuple[float, ...]:
    total = max(int(counts.sum()), 1)
    return tuple(count / total for count in counts.tolist())


def range_bounds(count: int, rows: int) -> Ints:
    """Return the first rows of `count` equal ranges of rows, and the end, shape (count + 1,)."""
    return np.arange(count + 1) * rows // count


class RangeCounts(NamedTuple):
    """Shares of ids in equal ranges of a table's rows; all 0 when there are no ids."""

    lookups: tuple[float, ...]  #: in each range, length n; see `range_bounds`
    distinct: tuple[float, ...]  #: of the distinct rows, likewise

    @classmethod
    def of_totals(cls, lookups: Ints, distinct: Ints) -> RangeCounts:
        """Return the shares of counts of equal ranges, both shape (n,), rounded as tables keep them."""
        return cls(*(tuple(round(share, 6) for share in _shares(counts)) for counts in (lookups, distinct)))


def count_in_ranges(touched: Ints, counts: Ints, bounds: Ints) -> Ints:
    """Return lookups and distinct rows of each range, shape (2, n).

    Args:
        touched: distinct rows in ascending order, shape (m,).
        counts: lookups of each, shape (m,).
        bounds: first rows of the ranges, and the end, shape (n + 1,).
    """
    edges = np.searchsorted(touched, bounds)
    lookups = np.concatenate([[0], np.cumsum(counts)])[edges]
    return np.diff(np.stack([lookups, edges]))
