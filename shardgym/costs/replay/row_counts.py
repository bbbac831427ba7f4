"""How many ids of every device's samples fall into ranges of a table's rows: counted in a stream, or as expected."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.links import samples_per_device
from shardgym.ids import draw_bags
from shardgym.row_access import access_by_range, distinct_by_range
from shardgym.table import EmbeddingTable


class Counts(NamedTuple):
    """Ids in S ranges of rows that follow each other, by the device whose samples they are of.

    Attributes:
        lookups: ids, shape (S, D).
        distinct: different rows among those of a device, shape (S, D).
    """

    lookups: Floats
    distinct: Floats


class RowCounts(Protocol):
    """Ids of one table in one batch."""

    def counts(self, edges: Ints) -> Counts:
        """Return what falls between rows `edges[i]` and `edges[i + 1]`; shape of edges (S + 1,), ascending."""
        ...

    def touched(self, edges: Ints, blocks: int) -> Floats:
        """Return the different rows that the samples of blocks of consecutive devices touch, shape (S, blocks).

        Args:
            edges: as in `counts`.
            blocks: equal parts of the devices.
        """
        ...


class StreamCounts:
    """Counts of a batch that is drawn, or recorded, id by id.

    Different pairs of a row and a device are sorted by row, so that ranges of rows are ranges of pairs.

    Args:
        table: whose ids.
        batch_size: samples over all devices; the first ones are those of device 0.
        num_devices: D.
        seed: of the draw.
        batch: number of the batch.

    Raises:
        InputError: recorded ids cannot be read, see `draw_bags`.
    """

    def __init__(self, table: EmbeddingTable, batch_size: int, num_devices: int, seed: int, batch: int) -> None:
        bags = draw_bags(table, batch_size, seed=seed, batch=batch)
        samples = samples_per_device(batch_size, num_devices)
        ends = np.concatenate([[0], np.cumsum(bags.lengths)])[np.cumsum(samples)]
        ids_of_device = np.diff(ends, prepend=0)
        pairs = bags.indices * num_devices + np.repeat(np.arange(num_devices), ids_of_device)
        pairs.sort()
        first = np.flatnonzero(np.diff(pairs, prepend=-1))
        self._times = np.diff(first, append=len(pairs)).astype(np.int32)
        self._rows = pairs[first] // num_devices
        self._devices = (pairs[first] % num_devices).astype(np.int32)
        self._num_devices = num_devices

    def counts(self, edges: Ints) -> Counts:
        """See `RowCounts`."""
        where = self._ranges(edges) * self._num_devices + self._devices
        size = (len(edges) - 1) * self._num_devices
        shape = -1, self._num_devices
        lookups: Floats = np.bincount(where, weights=self._times, minlength=size).astype(np.float64)
        distinct = np.bincount(where, minlength=size).astype(np.float64)
        return Counts(lookups.reshape(shape), distinct.reshape(shape))

    def touched(self, edges: Ints, blocks: int) -> Floats:
        """See `RowCounts`."""
        block = self._devices // (self._num_devices // blocks)
        new = np.ones(len(self._rows), dtype=np.bool_)
        new[1:] = (np.diff(self._rows) > 0) | (np.diff(block) > 0)
        where = self._ranges(edges)[new] * blocks + block[new]
        found = np.bincount(where, minlength=(len(edges) - 1) * blocks)
        return found.astype(np.float64).reshape(-1, blocks)

    def _ranges(self, edges: Ints) -> Ints:
        """Return which range each pair lies in, shape (number of pairs,)."""
        return np.repeat(np.arange(len(edges) - 1), np.diff(np.searchsorted(self._rows, edges)))


class ExpectedCounts:
    """The same as expected from the law of a table's ids, of an average batch.

    Args:
        table: whose ids.
        batch_size: samples over all devices.
        num_devices: D.
    """

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
