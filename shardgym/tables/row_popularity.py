"""How popular rows are, whatever their order: which lookups the most popular ones get, and what a cache of rows misses.

Both follow from the law of a table's ids. Where ids are recorded and nobody knows their law, rows are as popular as a
reuse histogram says, and otherwise all alike.
"""

import math
from typing import NamedTuple

import numpy as np

from shardgym.tables.row_access import BIN_ACCESSES, Cells, access_share, cells_of, distinct_rows, position_matters
from shardgym.tables.table import EmbeddingTable, RangeIds, ZipfIds

#: Halvings of the interval of times after which a cache drops a row, or of shares; that width is nothing.
_STEPS = 60
#: Logarithm of the least share of rows that a full cache takes; and the least probability that a row is not touched.
_LEAST_SHARE = -60.0
_NEVER = 1e-12


def popularity(table: EmbeddingTable, batch_size: int, start: int = 0, stop: int | None = None) -> Cells:
    """Return the rows of a range of a table as cells of equally popular ones, most popular first.

    Masses are shares of the lookups of the whole table. Where the position of rows says nothing, a range has the
    table's mix of rows. It ends with the table where `stop` is None. A reuse histogram is that of so many samples.
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


class CacheMisses(NamedTuple):
    """What a cache of rows has not got in a batch."""

    fetched: float = 0.0  #: of the distinct rows of the batch, those that come into the cache first
    bypassed: float = 0.0  #: of these rows, those that it has no room for, which are read and updated where they are
    bypassed_lookups: float = 0.0  #: of the lookups, those of the latter


def cache_misses(cells: Cells, draws: float, capacity: float) -> CacheMisses:
    """Return what is not in a cache that earlier batches have filled.

    The cache drops the row that was touched longest ago. By Che's approximation that is a fixed time after it was
    touched, here in batches, within which as many rows are touched as the cache holds; independent draws touch a row of
    rate r in t batches of n draws with probability 1 - exp(-n r t) (Che, Tung and Wang, "Hierarchical Web caching
    systems", IEEE JSAC 2002).

    A cache with less room than a batch touches rows drops all others, keeps those of its rows that the batch touches,
    and takes a share of the others; rows that it does not take stay where they are, as FBGEMM's `lru_cache_populate`
    leaves them. A row that is touched with probability p is then in the cache after a batch with the probability
    x = p (x + (1 - x) share), and the share follows, as the x add up to the capacity.

    Args:
        cells: cells of all rows that share the cache.
        draws: ids drawn from the whole table in a batch.
        capacity: rows that the cache holds.
    """
    expected = draws * cells.rates
    touch = -np.expm1(-expected)
    touched = cells.sizes * touch
    total = float(touched.sum())
    if capacity >= float(cells.sizes.sum()) or total <= 0:
        return CacheMisses()
    if capacity >= total:
        kept = batches_kept(cells, draws, capacity)
        return CacheMisses(float((touched * np.exp(-expected * kept)).sum()) / total)
    stays_away = np.maximum(np.exp(-expected), _NEVER)
    low, high = _LEAST_SHARE, 0.0  # logarithms
    for _ in range(_STEPS):
        middle = (low + high) / 2
        taken = touch * math.exp(middle)
        held = float((cells.sizes * taken / (stays_away + taken)).sum())
        low, high = (middle, high) if held <= capacity else (low, middle)
    share = math.exp(low)
    before = touch * share / (stays_away + touch * share)
    out = (1 - before) * (1 - share)
    return CacheMisses(
        float((touched * (1 - before)).sum()) * share / total,
        float((touched * out).sum()) / total,
        float(cells.masses @ out) / float(cells.masses.sum()),
    )


def batches_kept(cells: Cells, draws: float, capacity: float) -> float:
    """Return after how many batches a full cache drops a row that is not touched again; arguments as `cache_misses`."""
    expected = draws * cells.rates
    # In logarithms: from a ten-thousandth of a batch to so many that the rarest rows are touched.
    low, high = -10.0, 60.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        held = float((cells.sizes * -np.expm1(-expected * math.exp(middle))).sum())
        low, high = (middle, high) if held <= capacity else (low, middle)
    return math.exp(low)
