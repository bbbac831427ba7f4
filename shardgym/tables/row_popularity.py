"""How popular rows are, whatever their order: which lookups the most popular ones get, and what a cache of rows misses.

Both follow from the law of a table's ids. Where ids are recorded and nobody knows their law, rows are as popular as a
reuse histogram says, and otherwise all alike.
"""

from __future__ import annotations

import math

import numpy as np

from shardgym.tables.row_access import BIN_ACCESSES, Cells, access_share, cells_of, distinct_rows, position_matters
from shardgym.tables.table import EmbeddingTable, RangeIds, ZipfIds

#: Halvings of the interval of times after which a cache drops a row; an interval of that width is nothing.
_STEPS = 60


def popularity(table: EmbeddingTable, batch_size: int, start: int = 0, stop: int | None = None) -> Cells:
    """Return the rows of a range of a table as cells of equally popular ones, most popular first.

    Masses are shares of the lookups of the whole table. Where the position of rows says nothing, a range has the
    table's mix of rows.

    Args:
        table: which one.
        batch_size: samples of the batch that a reuse histogram is of.
        start: first row of the range.
        stop: row after its last; the end of the table when None.
    """
    rows = table.num_embeddings
    stop = rows if stop is None else stop
    ids = table.ids
    if isinstance(ids, ZipfIds | RangeIds):
        if position_matters(table):
            cells = cells_of(ids, rows, start, stop)
        else:
            cells = _part(cells_of(ids, rows), (stop - start) / rows, (stop - start) / rows)
    else:
        whole = Cells(np.array([float(rows)]), np.ones(1))
        if table.reuse_histogram is not None and any(table.reuse_histogram):
            whole = _of_histogram(table, table.reuse_histogram, batch_size)
        cells = _part(whole, (stop - start) / rows, access_share(table, start, stop))
    order = np.argsort(-cells.rates, kind="stable")
    return Cells(cells.sizes[order], cells.masses[order])


def _part(cells: Cells, rows: float, lookups: float) -> Cells:
    """Return such a share of the rows of every cell, with such a share of its lookups."""
    return Cells(cells.sizes * rows, cells.masses * lookups)


def _of_histogram(table: EmbeddingTable, histogram: tuple[float, ...], batch_size: int) -> Cells:
    """Return the cells that a reuse histogram says.

    Rows that a batch does not touch have, with those that it touches once, the lookups of the latter: the probability
    of what was not seen is about the share of what was seen once (Good, "The population frequencies of species", 1953).
    """
    touched = distinct_rows(table, batch_size)
    shares = np.array(histogram) / math.fsum(histogram)
    masses = shares * np.array(BIN_ACCESSES)
    sizes = shares * touched
    sizes[0] += max(table.num_embeddings - touched, 0.0)
    return Cells(sizes, masses / masses.sum())


def missed_share(cells: Cells, draws: float, capacity: float) -> float:
    """Return which part of the distinct rows that a batch touches is not in a cache that earlier batches have filled.

    The cache drops the row that was touched longest ago. By Che's approximation that is a fixed time after it was
    touched, here in batches, within which as many rows are touched as the cache holds; independent draws touch a row of
    rate r in t batches of n draws with probability 1 - exp(-n r t) (Che, Tung and Wang, "Hierarchical Web caching
    systems", IEEE JSAC 2002).

    Args:
        cells: of the rows that share the cache.
        draws: from the whole table in a batch.
        capacity: rows that the cache holds.
    """
    expected = draws * cells.rates
    touched = cells.sizes * -np.expm1(-expected)
    total = float(touched.sum())
    if capacity >= float(cells.sizes.sum()) or total <= 0:
        return 0.0
    return float((touched * np.exp(-expected * batches_kept(cells, draws, capacity))).sum()) / total


def batches_kept(cells: Cells, draws: float, capacity: float) -> float:
    """Return after how many batches a full cache drops a row that is not touched again; arguments as `missed_share`."""
    expected = draws * cells.rates
    # In logarithms: from a ten-thousandth of a batch to so many that the rarest rows are touched.
    low, high = -10.0, 60.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        held = float((cells.sizes * -np.expm1(-expected * math.exp(middle))).sum())
        low, high = (middle, high) if held <= capacity else (low, middle)
    return math.exp(low)
