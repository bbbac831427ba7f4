"""What is counted in the batches of one feature: all that a table says of its accesses, and shares of distinct rows."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np

from shardgym.arrays import Ints
from shardgym.errors import InputError
from shardgym.tables.bags import Bags, ReuseCounts
from shardgym.tables.repeats import mean_run_length
from shardgym.tables.row_ranges import RANGES, RangeCounts, count_in_ranges, range_bounds
from shardgym.tables.streams.frequencies import RowFrequencies, row_frequencies
from shardgym.tables.table import Lengths

#: Batches, from the first one on, whose runs are looked at.
_RUN_BATCHES = 8


class Checksum:
    """SHA-256 over lengths and over ids, each as little-endian 64-bit integers, in parts of any size."""

    def __init__(self) -> None:
        self._of_lengths = hashlib.sha256()
        self._of_ids = hashlib.sha256()

    def add(self, bags: Bags) -> None:
        """Add the samples that follow."""
        self._of_lengths.update(np.ascontiguousarray(bags.lengths, dtype="<i8").data)
        self._of_ids.update(np.ascontiguousarray(bags.indices, dtype="<i8").data)

    def hexdigest(self) -> str:
        """Return the SHA-256 over both checksums, as hexadecimal digits."""
        return hashlib.sha256(self._of_lengths.digest() + self._of_ids.digest()).hexdigest()


class FeatureStatistics:
    """Counts over the batches of one feature.

    Args:
        rows: that its ids are of.
        batch_size: samples per batch.
        ranks: parts of a batch whose distinct rows are counted, too.
        frequencies: whether to count how often each row is looked up.
        checksum: whether to compute the checksum of a recording.

    Attributes:
        rows: see above.
        batch_size: see above.
        ranks: see above.
        batches: that were counted.
        ids: in all of them.
        distinct: rows that a batch touches, summed over batches.
        rank_distinct: rows that the samples of a rank touch, summed over ranks and batches.
        reuse: how often batches touch their rows, summed over batches.
        frequencies: of rows; None unless they were asked for.
    """

    def __init__(
        self, rows: int, batch_size: int, ranks: int = 1, *, frequencies: bool = False, checksum: bool = False
    ) -> None:
        self.rows = rows
        self.batch_size = batch_size
        self.ranks = ranks
        self.batches = 0
        self.ids = 0
        self.distinct = 0
        self.rank_distinct = 0
        self.reuse = ReuseCounts()
        self.frequencies: RowFrequencies | None = row_frequencies(rows) if frequencies else None
        self._bounds = range_bounds(min(RANGES, rows), rows)
        self._in_ranges: Ints = np.zeros((2, len(self._bounds) - 1), dtype=np.int64)
        #: Lookups of the row of each range that a batch looks up most, summed over batches.
        self._hottest: Ints = np.zeros(len(self._bounds) - 1, dtype=np.int64)
        self._run_lengths: list[float] = []
        self._shortest: int | None = None
        self._longest = 0
        self._checksum = Checksum() if checksum else None

    def add(self, bags: Bags) -> None:
        """Count the next batch, whose ids are in [0, rows)."""
        indices, lengths = bags
        touched, counts = np.unique(indices, return_counts=True)
        self.batches += 1
        self.ids += len(indices)
        self.distinct += len(touched)
        if self.ranks > 1:
            ends = np.concatenate([[0], np.cumsum(lengths)])
            cuts = ends[np.arange(self.ranks + 1) * len(lengths) // self.ranks]
            parts = [np.unique(indices[first:stop]) for first, stop in itertools.pairwise(cuts)]
            self.rank_distinct += sum(map(len, parts))
        else:
            self.rank_distinct += len(touched)
        self.reuse.add(ReuseCounts.of_counts(counts))
        in_ranges = count_in_ranges(touched, counts, self._bounds)
        self._in_ranges += in_ranges
        filled = in_ranges[1] > 0
        self._hottest[filled] += np.maximum.reduceat(counts, np.searchsorted(touched, self._bounds[:-1])[filled])
        if len(self._run_lengths) < _RUN_BATCHES:
            self._run_lengths.append(mean_run_length(indices, lengths))
        shortest = int(lengths.min())
        self._shortest = shortest if self._shortest is None else min(shortest, self._shortest)
        self._longest = max(self._longest, int(lengths.max()))
        if self.frequencies is not None:
            self.frequencies.add(touched, counts)
        if self._checksum is not None:
            self._checksum.add(bags)

    @property
    def samples(self) -> int:
        """Samples that were counted."""
        return self.batches * self.batch_size

    @property
    def pooling_factor(self) -> float:
        """Ids per sample."""
        return self.ids / self.samples

    @property
    def distinct_share(self) -> float:
        """Distinct rows of a batch as a share of its ids, on average; 0 without ids."""
        return self.distinct / max(self.ids, 1)

    @property
    def rank_distinct_share(self) -> float:
        """Distinct rows of a rank's part of a batch as a share of its ids, on average; 0 without ids."""
        return self.rank_distinct / max(self.ids, 1)

    @property
    def lengths(self) -> Lengths:
        """Whether bags have one size, rounded up or down, or vary."""
        return "fixed" if self._longest - (self._shortest or 0) <= 1 else "poisson"

    @property
    def run_length(self) -> float:
        """See `EmbeddingTable`: the mean over the first batches."""
        return round(sum(self._run_lengths) / max(len(self._run_lengths), 1), 2)

    @property
    def ranges(self) -> RangeCounts:
        """Shares of lookups, and of the distinct rows of batches, in equal ranges of rows."""
        return RangeCounts.of_totals(*self._in_ranges)

    def lookup_shares(self, most: int, *, without_hottest: bool = False) -> tuple[float, ...]:
        """Return the shares of lookups in equal ranges of rows, at most so many; none where `most` is below 2.

        Args:
            most: ranges; there are as many as divide those that were counted.
            without_hottest: whether each range is counted without the row of it that is looked up most.
        """
        base = len(self._hottest)
        count = max((n for n in range(2, min(most, base) + 1) if base % n == 0), default=0)
        if count == 0:
            return ()
        lookups = self._in_ranges[0].reshape(count, -1).sum(axis=1)
        if without_hottest:
            lookups -= self._hottest.reshape(count, -1).max(axis=1)
        return RangeCounts.of_totals(lookups, lookups).lookups

    @property
    def sha256(self) -> str:
        """Checksum of lengths and ids of all batches; raises `InputError` where none was asked for."""
        if self._checksum is None:
            raise InputError("the ids were counted without a checksum: give checksum=True")
        return self._checksum.hexdigest()
