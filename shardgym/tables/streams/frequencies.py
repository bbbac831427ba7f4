"""How often rows are looked up in a stream: counted row by row, or sketched where a table has too many rows for that.

Up to 2**27 rows there is a counter of four bytes for each: 512 MiB at most, and exact. Larger tables are sketched by
Apache DataSketches (the extra `sketches`) in 50 MiB, whatever they hold: the rows that are looked up most by its
frequent items sketch (Misra-Gries), the number of distinct rows by HyperLogLog.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.errors import InputError, import_extra

#: Rows that have a counter each.
MOST_COUNTED_ROWS = 2**27

#: Counters that are looked at together.
_CHUNK = 2**22

#: Binary logarithm of the places of the frequent items sketch, three quarters of which it fills. A row with more than
#: 3.5 / 2**20 of all lookups is in it.
_LOG_PLACES = 20
#: Bytes of a place: a pointer, a count, and a mark; and of the number that it points to.
_PLACE_BYTES = 8 + 8 + 2
_NUMBER_BYTES = 32
#: Binary logarithm of the registers, a byte each, of the HyperLogLog sketch: its standard error is 0.2 %.
_LOG_REGISTERS = 18


class HotRows(NamedTuple):
    """Rows that are looked up most, in falling order.

    Attributes:
        rows: shape (n,).
        counts: lookups of each, shape (n,).
    """

    rows: Ints
    counts: Ints


class RowFrequencies(ABC):
    """Lookups of the rows of a table.

    Attributes:
        exact: whether all counts are.
        total: lookups of all rows.
    """

    exact: bool

    def __init__(self) -> None:
        self.total = 0

    @abstractmethod
    def add(self, rows: Ints, counts: Ints) -> None:
        """Count distinct rows, shape (n,), that were looked up so often, shape (n,)."""

    @property
    @abstractmethod
    def distinct(self) -> float:
        """Rows that were looked up at all."""

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """Most bytes that counters ever take."""

    @abstractmethod
    def hottest(self, most: int) -> HotRows:
        """Return the rows that were looked up most; a sketch returns those alone that it is sure of."""

    @abstractmethod
    def hottest_share(self, rows: Ints | int) -> Floats:
        """Return the share of all lookups that so many of the hottest rows have, of the shape of `rows`."""


def row_frequencies(rows: int) -> RowFrequencies:
    """Return counters for a table with so many rows; raises `MissingDependencyError` where sketches are needed."""
    return CountedRows(rows) if rows <= MOST_COUNTED_ROWS else SketchedRows()


class CountedRows(RowFrequencies):
    """A counter for each row.

    Args:
        rows: of the table.
    """

    exact = True

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._counts = np.zeros(rows, dtype=np.uint32)

    def add(self, rows: Ints, counts: Ints) -> None:
        """Count distinct rows; raises `InputError` where the lookups of all rows outgrow a counter."""
        self.total += int(counts.sum())
        if self.total > np.iinfo(np.uint32).max:
            raise InputError("frequencies: a stream has more than 4.29 billion ids: count less of it, by samples=")
        self._counts[rows] += counts.astype(np.uint32)

    @property
    def distinct(self) -> float:
        """Rows that were looked up at all."""
        return float(np.count_nonzero(self._counts))

    @property
    def memory_bytes(self) -> int:
        """Most bytes that counters ever take."""
        return self._counts.nbytes

    def hottest(self, most: int) -> HotRows:
        """Return the rows that were looked up most; of equal ones, the first."""
        found = HotRows(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        for start in range(0, len(self._counts), _CHUNK):
            part = self._counts[start : start + _CHUNK]
            seen = np.flatnonzero(part)
            rows = np.concatenate([found.rows, seen + start])
            counts = np.concatenate([found.counts, part[seen].astype(np.int64)])
            order = np.argsort(-counts, kind="stable")[:most]
            found = HotRows(rows[order], counts[order])
        return found

    def hottest_share(self, rows: Ints | int) -> Floats:
        """Return the share of all lookups that so many of the hottest rows have."""
        parts = [
            np.unique(self._counts[n : n + _CHUNK], return_counts=True) for n in range(0, len(self._counts), _CHUNK)
        ]
        values, where = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
        numbers = np.bincount(where, weights=np.concatenate([part[1] for part in parts]))[::-1]
        lookups = numbers * values[::-1]
        return _interpolated(rows, np.cumsum(numbers), np.cumsum(lookups), self.total)


class SketchedRows(RowFrequencies):
    """Sketches of the hottest rows and of the number of rows."""

    exact = False

    def __init__(self) -> None:
        super().__init__()
        self._library: Any = import_extra("datasketches", "counting rows of a table with over 2**27", "sketches")
        self._frequent = self._library.frequent_items_sketch(_LOG_PLACES)
        self._registers = self._library.hll_sketch(_LOG_REGISTERS, self._library.tgt_hll_type.HLL_8)

    def add(self, rows: Ints, counts: Ints) -> None:
        """Count distinct rows."""
        self.total += int(counts.sum())
        count_row = self._frequent.update
        see_row = self._registers.update
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            count_row(row, count)
            see_row(row)

    @property
    def distinct(self) -> float:
        """Rows that were looked up at all, with a standard error of 0.2 %."""
        return float(self._registers.get_estimate())

    @property
    def memory_bytes(self) -> int:
        """Most bytes that sketches ever take."""
        return (_PLACE_BYTES + _NUMBER_BYTES) * (1 << _LOG_PLACES) + (1 << _LOG_REGISTERS)

    def hottest(self, most: int) -> HotRows:
        """Return the rows that were certainly looked up most, with counts of at most 3.5 / 2**20 of all too many."""
        sure = self._library.frequent_items_error_type.NO_FALSE_POSITIVES
        items = sorted(self._frequent.get_frequent_items(sure), key=lambda item: (-item[1], item[0]))[:most]
        found = np.array([(row, estimate) for row, estimate, *_ in items], dtype=np.int64).reshape(-1, 2)
        return HotRows(found[:, 0], found[:, 1])

    def hottest_share(self, rows: Ints | int) -> Floats:
        """Return the share of all lookups that so many of the hottest rows have.

        Behind the rows that the sketch is sure of, the others are taken to follow a power law that begins with the last
        of these and has as many rows and lookups as are left.
        """
        counts = self.hottest(2**_LOG_PLACES).counts
        known = len(counts)
        head = np.cumsum(counts)
        left = max(0.0, self.total - float(head[-1] if known else 0))
        distinct = max(self.distinct, known + 1.0)
        edges = np.geomspace(max(known, 1), distinct, 513)
        first = float(counts[-1]) if known else left
        low = 0.0
        high = 50.0
        for _ in range(60):  # halvings: the lookups behind the head fall with the exponent
            middle = (low + high) / 2
            low, high = (middle, high) if _power_law(edges, first, middle)[-1] > left else (low, middle)
        tail = _power_law(edges, first, (low + high) / 2)
        tail *= left / tail[-1] if tail[-1] > 0 else 0.0
        numbers = np.concatenate([np.arange(1, known + 1), edges[1:]])
        lookups = np.concatenate([head, self.total - left + tail[1:]])
        return _interpolated(rows, numbers, lookups, self.total)


def _power_law(edges: Floats, first: float, exponent: float) -> Floats:
    """Integrate first * (x / edges[0]) ** -exponent from the first edge to each, shape of `edges`."""
    scaled = edges / edges[0]
    if abs(exponent - 1) < 1e-9:
        integral = np.log(scaled)
    else:
        integral = np.expm1((1 - exponent) * np.log(scaled)) / (1 - exponent)
    return np.asarray(first * edges[0] * integral)


def _interpolated(rows: Ints | int, numbers: Floats | Ints, lookups: Floats | Ints, total: int) -> Floats:
    """Return shares of lookups between (numbers of rows, their lookups), which both rise."""
    shares = np.interp(rows, np.concatenate([[0], numbers]), np.concatenate([[0], lookups]) / max(total, 1))
    return np.asarray(shares, dtype=np.float64)
