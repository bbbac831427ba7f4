"""Drawing ids: one batch of one table, reproducible from a seed."""

from __future__ import annotations

import math
import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Ints
from shardgym.ids.distribution import RecordedIds, UniformIds, ZipfIds
from shardgym.ids.recorded import recorded_bags
from shardgym.ids.zipf import ZipfLaw
from shardgym.table import EmbeddingTable

#: Ids drawn at once: small enough to stay in a core's cache.
_CHUNK = 2**16


class Bags(NamedTuple):
    """The ids of one table for one batch.

    Attributes:
        indices: row ids, shape (number of ids,), in [0, num_embeddings).
        lengths: ids per sample, shape (batch_size,), summing to the number of ids.
    """

    indices: Ints
    lengths: Ints


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


def draw_rows(ids: UniformIds | ZipfIds, rows: int, count: int, rng: np.random.Generator) -> Ints:
    """Draw `count` row ids in [0, rows)."""
    if isinstance(ids, UniformIds):
        return rng.integers(0, rows, size=count, dtype=np.int64)
    law = ZipfLaw(ids.s, ids.q, rows)
    drawn = np.empty(count, dtype=np.int64)
    for start in range(0, count, _CHUNK):
        part = drawn[start : start + _CHUNK]
        part[:] = scatter_ranks(law.ranks(rng.random(part.size)), rows)
    return drawn


def zipf_ranks(ids: ZipfIds, rows: int, uniforms: npt.NDArray[np.float64]) -> Ints:
    """Map uniforms in [0, 1) to popularity ranks by inverting the cumulative law of `ids`."""
    return ZipfLaw(ids.s, ids.q, rows).ranks(uniforms)


def scatter_ranks(ranks: Ints, rows: int) -> Ints:
    """Place popularity ranks on rows by an affine bijection modulo `rows`.

    The step is near the golden section of `rows`: any number of leading ranks spreads evenly over the rows, so every
    range of rows gets its fair share of popular ones.
    """
    if rows < 3:
        return ranks
    step = int(rows * 0.6180339887)
    while math.gcd(step, rows) != 1:
        step -= 1
    scattered: Ints
    if rows < 2**31:
        scattered = (ranks * step + rows // 3) % rows
    else:  # ranks * step does not fit into 64 bits: multiply the upper and the lower bits of the ranks apart
        high, low = ranks >> 20, ranks & (2**20 - 1)
        scattered = (high * ((step << 20) % rows) + low * step + rows // 3) % rows
    return scattered


def _lengths(table: EmbeddingTable, batch_size: int, rng: np.random.Generator) -> Ints:
    assert not isinstance(table.ids, RecordedIds)
    if table.ids.lengths == "poisson":
        return rng.poisson(table.pooling_factor, size=batch_size).astype(np.int64)
    edges = np.floor(np.arange(batch_size + 1) * table.pooling_factor + 0.5).astype(np.int64)
    lengths: Ints = np.diff(edges)
    return lengths
