"""How often rows are looked up in a stream: counted row by row, or sketched where a table has too many rows for that.

Up to 2**27 rows there is a counter of four bytes for each: 512 MiB at most, and exact. Larger tables are sketched by
Apache DataSketches (the extra `sketches`) in 50 MiB, whatever they hold: the rows that are looked up most by its
frequent items sketch (Misra-Gries), the number of distinct rows by HyperLogLog.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from shardgym.arrays import Ints
from shardgym.errors import InputError, import_extra

#: Rows that have a counter each.
MOST_COUNTED_ROWS = 2**27
#: Binary logarithms of the places of the frequent items sketch (a row with more than 3.5 / 2**20 of all lookups is in
#: it), and of the registers of the HyperLogLog sketch, whose standard error is 0.2 %.
_LOG_PLACES = 20
_LOG_REGISTERS = 18


class HotRows(NamedTuple):
    """Rows that are looked up most, in falling order; of equal ones, the first."""

    rows: Ints  #: shape (n,)
    counts: Ints  #: lookups of each, shape (n,)


class CountedRows:
    """A counter for each row.

    Args:
        rows: of the table.
    """

    def __init__(self, rows: int) -> None:
        self._counts = np.zeros(rows, dtype=np.uint32)
        self._total = 0

    def add(self, rows: Ints, counts: Ints) -> None:
        """Count distinct rows, shape (n,), that were looked up so often, shape (n,); see `InputError`.

        Raises:
            InputError: the lookups of all rows outgrow a counter.
        """
        self._total += int(counts.sum())
        if self._total > np.iinfo(np.uint32).max:
            raise InputError("frequencies: a stream has more than 4.29 billion ids: count less of it, by samples=")
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
        self._library: Any = import_extra("datasketches", "counting rows of a table with over 2**27", "sketches")
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
