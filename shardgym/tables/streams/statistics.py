"""What is counted in the batches of one feature: all that a table says of its accesses, and shares of distinct rows.

How often rows are looked up is counted row by row, or sketched where a table has too many rows for that. Up to 2**27
rows there is a counter of four bytes for each: 512 MiB at most, and exact. Larger tables are sketched by Apache
DataSketches (the extra `sketches`) in 50 MiB, whatever they hold: the rows that are looked up most by its frequent
items sketch (Misra-Gries), the number of distinct rows by HyperLogLog.
"""

import hashlib
from typing import Any, NamedTuple

import numpy as np

from shardgym.arrays import Ints
from shardgym.errors import InputError, import_extra
from shardgym.tables.bags import RANGES, Bags, RangeCounts, ReuseCounts, count_in_ranges, range_bounds
from shardgym.tables.table import Lengths

#: Batches, from the first one on, whose runs are looked at.
_RUN_BATCHES = 8
#: Parts of a batch, of neighbouring samples, whose distinct rows are counted.
_PARTS = 8
#: Runs that are shorter are those of samples in any order.
_SHORTEST = 1.05
#: Rows that have a counter each.
MOST_COUNTED_ROWS = 2**27
#: Binary logarithms of the places of the frequent items sketch (a row with more than 3.5 / 2**20 of all lookups is in
#: it), and of the registers of the HyperLogLog sketch, whose standard error is 0.2 %.
_LOG_PLACES = 20
_LOG_REGISTERS = 18


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
    """Counts over the batches of one feature: of how often each row is looked up, and a checksum, where asked for."""

    def __init__(self, rows: int, batch_size: int, *, frequencies: bool = False, checksum: bool = False) -> None:
        self.rows = rows
        self.batch_size = batch_size
        self.batches = 0  #: that were counted
        self.ids = 0  #: in all of them
        self.distinct = 0  #: rows that a batch touches, summed over batches
        self.reuse = ReuseCounts()  #: how often batches touch their rows, summed over batches
        self.frequencies: CountedRows | SketchedRows | None = None  #: of rows; None unless they were asked for
        if frequencies:
            self.frequencies = CountedRows(rows) if rows <= MOST_COUNTED_ROWS else SketchedRows()
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


class HotRows(NamedTuple):
    """Rows that are looked up most, in falling order; of equal ones, the first."""

    rows: Ints  #: shape (n,)
    counts: Ints  #: lookups of each, shape (n,)


class CountedRows:
    """A counter for each row.

    Args:
        rows: rows of the table.
    """

    def __init__(self, rows: int) -> None:
        self._counts = np.zeros(rows, dtype=np.uint32)
        self._total = 0

    def add(self, rows: Ints, counts: Ints) -> None:
        """Count distinct rows, shape (n,), that were looked up so often, shape (n,); see `InputError`."""
        self._total += int(counts.sum())
        if self._total > np.iinfo(np.uint32).max:
            raise InputError("frequencies: a stream has more than 4.29 billion ids; pass samples= to count fewer")
        self._counts[rows] += counts.astype(np.uint32)

    @property
    def distinct(self) -> float:
        """Rows that were looked up at all."""
        return float(np.count_nonzero(self._counts))

    def hottest(self, most: int) -> HotRows:
        """Return the rows that were looked up most."""
        seen = np.flatnonzero(self._counts)
        counts = self._counts[seen].astype(np.int64)
        order = np.argsort(-counts, kind="stable")[:most]
        return HotRows(seen[order], counts[order])


class SketchedRows:
    """Sketches of the hottest rows and of the number of rows."""

    def __init__(self) -> None:
        self._library: Any = import_extra("datasketches", "counting a table of more than 2**27 rows", "sketches")
        self._frequent = self._library.frequent_items_sketch(_LOG_PLACES)
        self._registers = self._library.hll_sketch(_LOG_REGISTERS, self._library.tgt_hll_type.HLL_8)

    def add(self, rows: Ints, counts: Ints) -> None:
        """Count distinct rows, shape (n,), that were looked up so often, shape (n,)."""
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            self._frequent.update(row, count)
            self._registers.update(row)

    @property
    def distinct(self) -> float:
        """Rows that were looked up at all, with a standard error of 0.2 %."""
        return float(self._registers.get_estimate())

    def hottest(self, most: int) -> HotRows:
        """Return the rows that were certainly looked up most, with counts of at most 3.5 / 2**20 of all too many."""
        sure = self._library.frequent_items_error_type.NO_FALSE_POSITIVES
        items = sorted(self._frequent.get_frequent_items(sure), key=lambda item: (-item[1], item[0]))[:most]
        found = np.array([(row, estimate) for row, estimate, *_ in items], dtype=np.int64).reshape(-1, 2)
        return HotRows(found[:, 0], found[:, 1])
