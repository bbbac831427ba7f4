"""Equal ranges of a table's rows, and how many ids fall into each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardgym.arrays import Ints

#: Ranges in which ids are counted: cuts into 2, 3, 4, 6, 8, ..., 64 equal parts fall between them.
RANGES = 192


def range_bounds(count: int, rows: int) -> Ints:
    """Return the first rows of `count` equal ranges of rows, and the end, shape (count + 1,)."""
    return np.arange(count + 1) * rows // count


class RangeCounts(NamedTuple):
    """Shares of ids in equal ranges of a table's rows; all 0 when there are no ids."""

    lookups: tuple[float, ...]  #: in each range, length n; see `range_bounds`
    distinct: tuple[float, ...]  #: of the distinct rows, likewise

    @classmethod
    def of(cls, indices: Ints, rows: int, count: int = RANGES) -> RangeCounts:
        """Count ids, which lie in [0, rows), in `count` ranges, or in as many as there are rows if these are fewer."""
        touched, counts = np.unique(indices, return_counts=True)
        return cls.of_totals(*count_in_ranges(touched, counts, range_bounds(min(count, rows), rows)))

    @classmethod
    def of_totals(cls, lookups: Ints, distinct: Ints) -> RangeCounts:
        """Return the shares of counts of equal ranges, both shape (n,)."""
        return cls(_shares(lookups), _shares(distinct))


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


def _shares(counts: Ints) -> tuple[float, ...]:
    """Return rounded shares, as tables keep them."""
    total = max(int(counts.sum()), 1)
    return tuple(round(count / total, 6) for count in counts.tolist())
