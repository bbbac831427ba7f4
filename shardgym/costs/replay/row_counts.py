"""How many ids of every device's samples fall into ranges of a table's rows: counted in a stream, or as expected."""

from typing import NamedTuple, Protocol

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.links import samples_per_device
from shardgym.tables.ids import draw_bags
from shardgym.tables.row_access import access_by_range, distinct_by_range
from shardgym.tables.table import EmbeddingTable


class Counts(NamedTuple):
    """Ids in S ranges of rows that follow each other, by the device whose samples they are of."""

    lookups: Floats  #: ids, shape (S, D)
    distinct: Floats  #: different rows among those of a device, shape (S, D)


class RowCounts(Protocol):
    """Ids of one table in one batch."""

    def counts(self, edges: Ints) -> Counts:
        """Return what falls between rows `edges[i]` and `edges[i + 1]`; shape of edges (S + 1,), ascending."""
        ...

    def touched(self, edges: Ints, blocks: int) -> Floats:
        """Return the different rows that samples of equal blocks of consecutive devices touch, shape (S, blocks)."""
        ...


class StreamCounts:
    """Counts of a batch of a table that is drawn, or recorded, id by id; its first samples are those of device 0.

    The different rows of every device are sorted, so that ranges of rows are ranges of them, found by bisection.
    """

    def __init__(self, table: EmbeddingTable, batch_size: int, num_devices: int, seed: int, batch: int) -> None:
        bags = draw_bags(table, batch_size, seed=seed, batch=batch)
        samples = samples_per_device(batch_size, num_devices)
        ends = np.concatenate([[0], np.cumsum(bags.lengths)])[np.cumsum(samples)]
        #: Different rows of each device, and where they begin among its sorted ids, and how many these are.
        self._rows: list[Ints] = []
        self._first: list[Ints] = []
        for ids in np.split(bags.indices, ends[:-1]):
            ids = np.sort(ids)
            first = _first_of_runs(ids)
            self._rows.append(ids[first])
            self._first.append(np.append(first, len(ids)))
        #: Distinct rows of each block of devices, by number of blocks.
        self._of_blocks: dict[int, list[Ints]] = {num_devices: self._rows}

    def counts(self, edges: Ints) -> Counts:
        """See `RowCounts`."""
        places = [np.searchsorted(rows, edges) for rows in self._rows]
        lookups = [np.diff(first[place]) for first, place in zip(self._first, places, strict=True)]
        distinct = [np.diff(place) for place in places]
        return Counts(np.stack(lookups, axis=1).astype(np.float64), np.stack(distinct, axis=1).astype(np.float64))

    def touched(self, edges: Ints, blocks: int) -> Floats:
        """See `RowCounts`."""
        if blocks not in self._of_blocks:
            size = len(self._rows) // blocks
            merged = [np.sort(np.concatenate(self._rows[n : n + size])) for n in range(0, len(self._rows), size)]
            self._of_blocks[blocks] = [rows[_first_of_runs(rows)] for rows in merged]
        found = [np.diff(np.searchsorted(rows, edges)) for rows in self._of_blocks[blocks]]
        return np.stack(found, axis=1).astype(np.float64)


def _first_of_runs(ids: Ints) -> Ints:
    """Return where runs of equal numbers begin in sorted ids."""
    begins = np.ones(len(ids), dtype=np.bool_)
    np.not_equal(ids[1:], ids[:-1], out=begins[1:])
    return np.flatnonzero(begins)


class ExpectedCounts:
    """The same as expected from the law of a table's ids, of an average batch; arguments as `StreamCounts`."""

    def __init__(self, table: EmbeddingTable, batch_size: int, num_devices: int) -> None:
        self._table = table
        self._batch_size = batch_size
        self._samples = samples_per_device(batch_size, num_devices)

    def counts(self, edges: Ints) -> Counts:
        """See `RowCounts`."""
        table = self._table
        shares = access_by_range(table, edges)
        few, many = int(self._samples[-1]), int(self._samples[0])
        by_samples = {
            samples: distinct_by_range(table, self._batch_size, edges, samples / self._batch_size)
            for samples in {few, many}
        }
        distinct = np.where(self._samples == many, by_samples[many][:, None], by_samples[few][:, None])
        return Counts(shares[:, None] * (self._samples * table.pooling_factor), distinct)

    def touched(self, edges: Ints, blocks: int) -> Floats:
        """See `RowCounts`."""
        found = distinct_by_range(self._table, self._batch_size, edges, 1 / blocks)
        return np.repeat(found[:, None], blocks, axis=1)
