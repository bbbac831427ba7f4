"""Drawing ids: one batch of one table, reproducible from a seed."""

from __future__ import annotations

import math
import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.ids.distribution import RecordedIds, UniformIds, ZipfIds
from shardgym.ids.recorded import recorded_bags
from shardgym.table import EmbeddingTable

Int64s = npt.NDArray[np.int64]


class Bags(NamedTuple):
    """The ids of one table for one batch.

    Attributes:
        indices: row ids, shape (number of ids,), in [0, num_embeddings).
        lengths: ids per sample, shape (batch_size,), summing to the number of ids.
    """

    indices: Int64s
    lengths: Int64s


def draw_bags(table: EmbeddingTable, batch_size: int, *, seed: int, batch: int = 0) -> Bags:
    """Draw the ids of `table` for batch number `batch`.

    The draw depends on the table's name, rows, pooling factor and distribution, on `seed` and on `batch`; it does not
    depend on the width, so column shards and every plan of a task see the same ids. Recorded ids ignore seed and
    batch.

    Raises:
        InputError: recorded ids cannot be found, differ from their checksum, or hold fewer samples.
    """
    if isinstance(table.ids, RecordedIds):
        return Bags(*recorded_bags(table.ids, batch_size))
    rng = np.random.default_rng([seed, batch, zlib.crc32(table.name.encode())])
    lengths = _lengths(table, batch_size, rng)
    return Bags(draw_rows(table.ids, table.num_embeddings, int(lengths.sum()), rng), lengths)


def draw_rows(ids: UniformIds | ZipfIds, rows: int, count: int, rng: np.random.Generator) -> Int64s:
    """Draw `count` row ids in [0, rows)."""
    if isinstance(ids, UniformIds):
        return rng.integers(0, rows, size=count, dtype=np.int64)
    return scatter_ranks(zipf_ranks(ids, rows, rng.random(count)), rows)


def zipf_ranks(ids: ZipfIds, rows: int, uniforms: npt.NDArray[np.float64]) -> Int64s:
    """Map uniforms in [0, 1) to popularity ranks by inverting the integral of (t + q) ** -s over [0.5, rows + 0.5]."""
    low, high = 0.5 + ids.q, rows + 0.5 + ids.q
    if abs(ids.s - 1) < 1e-9:
        t = low * np.exp(uniforms * math.log(high / low))
    else:
        power = 1 - ids.s
        t = (low**power + uniforms * (high**power - low**power)) ** (1 / power)
    ranks: Int64s = np.floor(t - low).astype(np.int64)
    return np.clip(ranks, 0, rows - 1, out=ranks)


def scatter_ranks(ranks: Int64s, rows: int) -> Int64s:
    """Place popularity ranks on rows by an affine bijection modulo `rows`."""
    if rows < 3:
        return ranks
    step = max(1, min(int(rows * 0.6180339887), 2**62 // rows))
    while math.gcd(step, rows) != 1:
        step -= 1
    scattered: Int64s = (ranks * step + rows // 3) % rows
    return scattered


def _lengths(table: EmbeddingTable, batch_size: int, rng: np.random.Generator) -> Int64s:
    assert not isinstance(table.ids, RecordedIds)
    if table.ids.lengths == "poisson":
        return rng.poisson(table.pooling_factor, size=batch_size).astype(np.int64)
    edges = np.floor(np.arange(batch_size + 1) * table.pooling_factor + 0.5).astype(np.int64)
    return np.diff(edges)
