"""What is counted in the batches of one feature: all that a table says of its accesses, and shares of distinct rows."""

import hashlib

import numpy as np

from shardgym.arrays import Ints
from shardgym.errors import InputError
from shardgym.tables.bags import RANGES, Bags, RangeCounts, ReuseCounts, count_in_ranges, range_bounds
from shardgym.tables.table import Lengths

#: Batches, from the first one on, whose runs are looked at.
_RUN_BATCHES = 8
#: Parts of a batch, of neighbouring samples, whose distinct rows are counted.
_PARTS = 8
#: Runs that are shorter are those of samples in any order.
_SHORTEST = 1.05


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
    """Counts over the batches of one feature, and a checksum where asked for."""

    def __init__(self, rows: int, batch_size: int, *, checksum: bool = False) -> None:
        self.rows = rows
        self.batch_size = batch_size
        self.batches = 0  #: that were counted
        self.ids = 0  #: in all of them
        self.distinct = 0  #: rows that a batch touches, summed over batches
        self.reuse = ReuseCounts()  #: how often batches touch their rows, summed over batches
        self._bounds = range_bounds(min(RANGES, rows), rows)
        self._in_ranges: Ints = np.zeros((2, len(self._bounds) - 1), dtype=np.int64)
        self._run_lengths: list[float] = []
        self._shortest = 2**62
        self._longest = 0
        self._checksum = Checksum() if checksum else None

    def add(self, bags: Bags) -> None:
        """Count the next batch, whose ids are in [0, rows)."""
        indices, lengths = bags
        touched, counts = np.unique(indices, return_counts=True)
        self.batches += 1
        self.ids += len(indices)
        self.distinct += len(touched)
        self.reuse.add(ReuseCounts.of_counts(counts))
        self._in_ranges += count_in_ranges(touched, counts, self._bounds)
        if len(self._run_lengths) < _RUN_BATCHES:
            self._run_lengths.append(mean_run_length(indices, lengths))
        self._shortest = min(self._shortest, int(lengths.min()))
        self._longest = max(self._longest, int(lengths.max()))
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
    def lengths(self) -> Lengths:
        """Whether bags have one size, rounded up or down, or vary."""
        return "fixed" if self._longest - self._shortest <= 1 else "poisson"

    @property
    def run_length(self) -> float:
        """See `EmbeddingTable`: the mean over the first batches."""
        return round(sum(self._run_lengths) / max(len(self._run_lengths), 1), 2)

    @property
    def ranges(self) -> RangeCounts:
        """Shares of lookups, and of the distinct rows of batches, in equal ranges of rows."""
        return RangeCounts.of_totals(*self._in_ranges)

    def lookup_shares(self, most: int) -> tuple[float, ...]:
        """Return the shares of lookups in up to `most` equal ranges of rows; their number divides that counted."""
        base = self._in_ranges.shape[1]
        count = max(n for n in range(1, max(min(most, base), 1) + 1) if base % n == 0)
        lookups = self._in_ranges[0].reshape(count, -1).sum(axis=1)
        return RangeCounts.of_totals(lookups, lookups).lookups

    @property
    def sha256(self) -> str:
        """Checksum of lengths and ids of all batches; raises `InputError` where none was asked for."""
        if self._checksum is None:
            raise InputError("the ids were counted without a checksum: pass checksum=True")
        return self._checksum.hexdigest()


def mean_run_length(indices: Ints, lengths: Ints) -> float:
    """Return the run length with which parts of a batch are expected to touch as many rows as they do.

    See `EmbeddingTable.run_length`. It is 1 for samples in any order.

    Args:
        indices: ids of a batch, shape (N,).
        lengths: bag sizes, shape (samples,).
    """
    ends = np.concatenate([[0], np.cumsum(lengths)])
    cuts = ends[np.arange(_PARTS + 1) * len(lengths) // _PARTS]
    found = sum(len(np.unique(indices[cuts[n] : cuts[n + 1]])) for n in range(_PARTS)) / _PARTS
    accesses, rows = np.unique(np.unique(indices, return_counts=True)[1], return_counts=True)

    def touched(run_length: float) -> float:
        return float(rows @ (1 - (1 - 1 / _PARTS) ** np.maximum(accesses / run_length, 1.0)))

    low = 1.0
    high = float(accesses.max(initial=1))
    if touched(low) <= found:
        return 1.0
    while high - low > 1e-3 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if touched(middle) > found else (low, middle)
    return round(low, 2) if low >= _SHORTEST else 1.0
