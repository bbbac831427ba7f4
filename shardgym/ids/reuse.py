"""Reuse histograms: how often the rows that a batch touches are touched."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardgym.table import REUSE_BINS


class ReuseCounts:
    """Distinct rows and accesses per reuse bin, summed over any number of tables.

    Attributes:
        rows: distinct rows per bin, shape (17,).
        accesses: ids per bin, shape (17,).
    """

    def __init__(self) -> None:
        self.rows = np.zeros(REUSE_BINS, dtype=np.int64)
        self.accesses = np.zeros(REUSE_BINS, dtype=np.int64)

    @classmethod
    def of(cls, indices: npt.NDArray[np.int64]) -> ReuseCounts:
        """Count one table's ids of one batch."""
        counts = _accesses_per_row(indices)
        bins = np.minimum(np.ceil(np.log2(counts)).astype(np.int64), REUSE_BINS - 1)
        result = cls()
        result.rows += np.bincount(bins, minlength=REUSE_BINS)
        result.accesses += np.bincount(bins, weights=counts, minlength=REUSE_BINS).astype(np.int64)
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


def _accesses_per_row(indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how often each distinct id occurs, by counting where ids are dense and by sorting where they are not."""
    if indices.size == 0:
        return np.zeros(0, dtype=np.int64)
    if int(indices.max()) < 8 * indices.size + 2**20:
        counts = np.bincount(indices)
        return counts[counts > 0]
    return np.unique(indices, return_counts=True)[1]


def _shares(counts: npt.NDArray[np.int64]) -> tuple[float, ...]:
    total = int(counts.sum())
    return tuple(float(c) / total if total else 0.0 for c in counts)
