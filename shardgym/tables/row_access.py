"""Which share of a table's lookups a range of its rows gets, and how many distinct rows of it a batch touches.

Both follow from what `EmbeddingTable.ids` says of the order of rows. Where it says nothing, ids being uniform or nobody
knowing how popular rows lie, every range gets its fair share.
"""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.tables.bags import range_bounds
from shardgym.tables.ids import ZipfLaw, place_ranks, rows_of_block
from shardgym.tables.table import REUSE_BINS, EmbeddingTable, IdDistribution, RangeIds, RecordedIds, ZipfIds

#: Mean accesses of a row per reuse bin: the middle of (2**(i-1), 2**i]; the open last bin as if it ended at 2**16.
BIN_ACCESSES: tuple[float, ...] = (1.0, 2.0, *((1.5 * 2**i + 1) / 2 for i in range(2, REUSE_BINS)))

#: Ranks at which the Zipf law is cut into cells of near-equal mass per row.
_CELLS_PER_OCTAVE = 8
#: Blocks of popular rows whose places are looked up. Those behind them are many and alike: they are spread evenly.
_LEADING_BLOCKS = 1024
#: A row that is certain to be touched has no logarithm of the opposite.
_SURE = 1.0 - 1e-16


def position_matters(table: EmbeddingTable) -> bool:
    """Say whether ranges with as many rows may get different shares of a table's lookups."""
    ids = table.ids
    if isinstance(ids, ZipfIds):
        return ids.row_order is not None and ids.s > 0
    if isinstance(ids, RangeIds):
        return True
    return isinstance(ids, RecordedIds) and ids.range_shares is not None and any(ids.range_shares)


def access_share(table: EmbeddingTable, start: int, stop: int) -> float:
    """Return the share of a table's lookups that hit rows `start` to `stop`, the latter left out."""
    rows = table.num_embeddings
    if not position_matters(table) or stop - start == rows:
        return (stop - start) / rows
    return _share(table.ids, rows, start, stop)


def distinct_rows(
    table: EmbeddingTable, batch_size: int, start: int = 0, stop: int | None = None, served: float = 1.0
) -> float:
    """Return the expected number of distinct rows that the ids of a batch touch in a range of rows.

    It is computed from the reuse histogram if the table has one: of a row that the batch touches in n runs, a share s
    of the samples touches it with probability 1 - (1 - s) ** n. Otherwise runs of ids are independent draws from the
    table's distribution; recorded ids without a histogram count as uniform. A range has the part of these rows that
    follows from the table's ids; it ends with the table where `stop`, the row after its last, is None. `served` is the
    share of the samples whose ids count, as a device has them that looks up its own samples alone.
    """
    rows = table.num_embeddings
    stop = rows if stop is None else stop
    whole = _whole_distinct_rows(table, batch_size, served)
    if not position_matters(table) or stop - start == rows:
        return whole * ((stop - start) / rows)
    ids = batch_size * table.pooling_factor * served
    expected = whole * _distinct_share(table.ids, rows, start, stop, ids / table.run_length)
    return min(expected, ids * _share(table.ids, rows, start, stop), float(stop - start))


def access_by_range(table: EmbeddingTable, edges: Ints) -> Floats:
    """Return the shares of lookups of ranges that follow each other, see `access_share`, shape (S,).

    Edges are the first rows of the ranges, and the row after the last, ascending, shape (S + 1,).
    """
    found = _cells_between(table, edges)
    if found is None:
        return np.array([access_share(table, *of) for of in itertools.pairwise(edges.tolist())])
    cells, firsts = found
    return np.minimum(np.add.reduceat(cells.masses, firsts), 1.0)


def distinct_by_range(table: EmbeddingTable, batch_size: int, edges: Ints, served: float = 1.0) -> Floats:
    """Return the expected `distinct_rows` of ranges that follow each other, as in `access_by_range`, shape (S,)."""
    known = _cells_between(table, edges)
    if known is None:
        ranges = itertools.pairwise(edges.tolist())
        return np.array([distinct_rows(table, batch_size, *of, served) for of in ranges])
    cells, firsts = known
    assert isinstance(table.ids, ZipfIds), "in order of frequency"
    ids = batch_size * table.pooling_factor * served
    draws = ids / table.run_length
    whole = cells_of(table.ids, table.num_embeddings).expected_distinct(draws)
    touched = np.add.reduceat(cells.expected(draws), firsts)
    found = _whole_distinct_rows(table, batch_size, served) * (touched / whole if whole > 0 else touched)
    shares = np.add.reduceat(cells.masses, firsts)
    return np.minimum(np.minimum(found, ids * shares), np.diff(edges).astype(np.float64))


def distinct_ids(table: EmbeddingTable, batch_size: int, rows: tuple[int, int], num_devices: int) -> float:
    """Return how many ids of a range of rows all devices send, each of them every distinct id of its samples once.

    The batch is that of all devices, which have as many samples each.
    """
    return num_devices * distinct_rows(table, batch_size, *rows, 1 / num_devices)


def _whole_distinct_rows(table: EmbeddingTable, batch_size: int, served: float) -> float:
    """Return the expected distinct rows of all of a table."""
    if served == 0:  # of a device without samples
        return 0.0
    rows = table.num_embeddings
    ids = batch_size * table.pooling_factor * served
    draws = ids / table.run_length
    if table.reuse_histogram is not None and any(table.reuse_histogram):
        mean = sum(of_bin * n for of_bin, n in zip(table.reuse_histogram, BIN_ACCESSES, strict=True))
        if served == 1.0:
            touched = math.fsum(table.reuse_histogram)
        else:
            pairs = zip(table.reuse_histogram, BIN_ACCESSES, strict=True)
            # A row that the batch touches in n runs is touched by a share of the samples with some probability.
            runs = ((of_bin, max(n / table.run_length, 1.0)) for of_bin, n in pairs)
            touched = math.fsum(of_bin * (1 - (1 - served) ** n) for of_bin, n in runs) / served
        expected = ids / mean * touched
    elif isinstance(table.ids, ZipfIds):
        expected = _zipf_distinct(table.ids.s, table.ids.q, rows, draws)
    elif isinstance(table.ids, RangeIds):
        expected = cells_of(table.ids, rows).expected_distinct(draws)
    elif rows > 1:
        expected = -rows * math.expm1(draws * math.log1p(-1 / rows))
    else:
        expected = draws
    return min(expected, ids, float(rows))


@functools.lru_cache(maxsize=65536)
def _zipf_distinct(s: float, q: float, rows: int, ids: float) -> float:
    """Return the expected distinct rows of a Zipf law, summed over cells of ranks with a uniform law inside each."""
    edges = _cell_edges(rows)
    return Cells(np.diff(edges), np.diff(ZipfLaw(s, q, rows).cumulative(edges))).expected_distinct(ids)


def _cell_edges(rows: int) -> Ints:
    octaves = math.log2(rows) if rows > 1 else 0.0
    edges = np.unique(np.floor(np.exp2(np.linspace(0, octaves, int(octaves * _CELLS_PER_OCTAVE) + 2))).astype(np.int64))
    return np.concatenate([[0], edges[edges < rows], [rows]])


class Cells(NamedTuple):
    """Rows as cells of equally popular ones."""

    sizes: Floats  #: rows of each cell, need not be whole numbers, shape (cells,)
    masses: Floats  #: probability of all rows of each cell, shape (cells,)

    @property
    def rates(self) -> Floats:
        """Probability of each row of a cell, shape (cells,)."""
        return np.divide(self.masses, self.sizes, out=np.zeros(len(self.sizes)), where=self.sizes > 0)

    def expected(self, ids: float) -> Floats:
        """Return how many rows of each cell a number of draws from the whole table touch, shape (cells,)."""
        return np.asarray(-self.sizes * np.expm1(ids * np.log1p(-np.clip(self.rates, 0.0, _SURE))))

    def expected_distinct(self, ids: float) -> float:
        """Return how many of these rows a number of draws from the whole table touch."""
        return float(self.expected(ids).sum())


def _cells_between(table: EmbeddingTable, edges: Ints) -> tuple[Cells, Ints] | None:
    """Return the cells of ranges that follow each other, and the first of each; None if rows are not by frequency."""
    ids = table.ids
    if not isinstance(ids, ZipfIds) or ids.row_order != "by_frequency" or ids.s == 0:
        return None
    law, inside, _ = _layout(ids, table.num_embeddings)
    both = np.unique(np.concatenate([edges, inside[(inside > edges[0]) & (inside < edges[-1])]]))
    masses = np.diff(law.cumulative(both))
    return Cells(np.diff(both).astype(np.float64), masses), np.searchsorted(both, edges[:-1])


def cells_of(ids: ZipfIds | RangeIds, rows: int, start: int = 0, stop: int | None = None) -> Cells:
    """Return the rows of a table of this size, or of a range of them."""
    stop = rows if stop is None else stop
    if isinstance(ids, ZipfIds):
        return _zipf_cells(ids, rows, start, stop)
    return _range_cells(ids, rows, start, stop)


@functools.lru_cache(maxsize=65536)
def _share(ids: IdDistribution, rows: int, start: int, stop: int) -> float:
    """Return the share of lookups of a range, of ids whose position matters."""
    if isinstance(ids, ZipfIds | RangeIds):
        return min(1.0, float(cells_of(ids, rows, start, stop).masses.sum()))
    assert isinstance(ids, RecordedIds), "position matters"
    return _of_ranges(ids.range_shares or (), rows, start, stop)


@functools.lru_cache(maxsize=65536)
def _distinct_share(ids: IdDistribution, rows: int, start: int, stop: int, count: float) -> float:
    """Return the share of a range in all distinct rows among a number of ids."""
    if isinstance(ids, ZipfIds | RangeIds):
        whole = cells_of(ids, rows).expected_distinct(count)
        return cells_of(ids, rows, start, stop).expected_distinct(count) / whole if whole > 0 else 0.0
    assert isinstance(ids, RecordedIds), "position matters"
    return _of_ranges(ids.range_distinct or (), rows, start, stop)


def _of_ranges(shares: tuple[float, ...], rows: int, start: int, stop: int) -> float:
    """Return the share between two rows; rows of a range are all alike."""
    return min(1.0, float(_overlaps(len(shares), rows, start, stop) @ shares) / math.fsum(shares))


def _overlaps(count: int, rows: int, start: int, stop: int) -> Floats:
    """Return which part of each of `count` equal ranges lies between two rows, shape (count,)."""
    bounds = range_bounds(count, rows)
    inside: Floats = np.diff(np.clip(bounds, start, stop)) / np.diff(bounds)
    return inside


class _Layout(NamedTuple):
    """Ranks of a Zipf law in cells, each inside of one block, and where these lie."""

    law: ZipfLaw  #: of the ranks
    edges: Ints  #: of the cells, shape (cells + 1,)
    firsts: Ints  #: row of the first rank of each cell whose place is looked up; -1 of others, shape (cells,)


@functools.lru_cache(maxsize=1024)
def _layout(ids: ZipfIds, rows: int) -> _Layout:
    block = rows_of_block(ids, rows)
    blocks = rows // block
    leading = min(blocks, _LEADING_BLOCKS)
    starts = np.arange(leading + 1) * block
    edges = np.unique(np.concatenate([_cell_edges(rows), starts, [blocks * block]]))
    firsts = place_ranks(edges[:-1], rows, block)
    spread = (edges[:-1] >= starts[-1]) & (edges[:-1] < blocks * block)
    return _Layout(ZipfLaw(ids.s, ids.q, rows), edges, np.where(spread, -1, firsts))


def _zipf_cells(ids: ZipfIds, rows: int, start: int, stop: int) -> Cells:
    """Return the cells of ranks that lie between two rows."""
    law, edges, firsts = _layout(ids, rows)
    widths = np.diff(edges)
    spread = firsts < 0
    first = edges[:-1] + np.clip(start - firsts, 0, widths)
    last = edges[:-1] + np.clip(stop - firsts, 0, widths)
    sizes = np.where(spread, 0, last - first).astype(np.float64)
    masses = np.where(spread, 0.0, law.cumulative(last) - law.cumulative(first))
    if spread.any():
        # The rows between that are left are those of the other blocks.
        part = max(0.0, stop - start - float(sizes.sum())) / float(widths[spread].sum())
        sizes[spread] = part * widths[spread]
        masses[spread] = part * np.diff(law.cumulative(edges))[spread]
    return Cells(sizes, masses)


def _range_cells(ids: RangeIds, rows: int, start: int, stop: int) -> Cells:
    """Return the same of ids by ranges."""
    shares = np.array(ids.shares) / math.fsum(ids.shares)
    bounds = range_bounds(len(shares), rows)
    range_rows = np.diff(bounds)
    parts = _overlaps(len(shares), rows, start, stop)
    inside = ZipfIds(ids.s, ids.q, row_order="scattered")
    found = []
    for size in np.unique(range_rows).tolist():  # equal ranges differ by one row at most
        whole = (range_rows == size) & (parts == 1)
        edges = np.array([0, size]) if ids.s == 0 else _cell_edges(size)
        masses = np.diff(ZipfLaw(ids.s, ids.q, size).cumulative(edges))
        found.append((np.tile(np.diff(edges).astype(np.float64), whole.sum()), np.outer(shares[whole], masses).ravel()))
    for cut in np.flatnonzero((parts > 0) & (parts < 1)).tolist():
        size, first = int(range_rows[cut]), int(bounds[cut])
        sizes, masses = _zipf_cells(inside, size, max(start - first, 0), min(stop - first, size))
        found.append((sizes, shares[cut] * masses))
    return Cells(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
