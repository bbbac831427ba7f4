"""How many distinct rows of a table one batch is expected to touch."""

from __future__ import annotations

import functools
import math

import numpy as np

from shardgym.ids import ZipfLaw
from shardgym.table import REUSE_BINS, EmbeddingTable, ZipfIds

#: Ranks at which the Zipf law is cut into cells of near-equal mass per row.
_CELLS_PER_OCTAVE = 8

#: Mean accesses of a row per reuse bin: the middle of (2**(i-1), 2**i]; the open last bin as if it ended at 2**16.
BIN_ACCESSES: tuple[float, ...] = (1.0, 2.0, *((1.5 * 2**i + 1) / 2 for i in range(2, REUSE_BINS)))


def expected_distinct_rows(table: EmbeddingTable, batch_size: int) -> float:
    """Return the expected number of distinct rows among `batch_size * pooling_factor` ids.

    The reuse histogram decides where the table has one. Otherwise ids are taken as independent draws from the table's
    distribution; recorded ids without a histogram count as uniform.
    """
    ids = batch_size * table.pooling_factor
    most = min(ids, float(table.num_embeddings))
    if table.reuse_histogram is not None and any(table.reuse_histogram):
        mean = sum(share * n for share, n in zip(table.reuse_histogram, BIN_ACCESSES, strict=True))
        return min(ids / mean * math.fsum(table.reuse_histogram), most)
    if isinstance(table.ids, ZipfIds):
        return min(_zipf_distinct(table.ids.s, table.ids.q, table.num_embeddings, ids), most)
    return min(uniform_distinct(table.num_embeddings, ids), most)


def uniform_distinct(rows: float, ids: float) -> float:
    """Return the expected distinct rows of `ids` independent uniform draws from `rows` rows."""
    if rows <= 1:
        return min(rows, ids)
    return -rows * math.expm1(ids * math.log1p(-1 / rows))


@functools.lru_cache(maxsize=65536)
def _zipf_distinct(s: float, q: float, rows: int, ids: float) -> float:
    """Sum over cells of ranks, each taken as uniform inside."""
    octaves = math.log2(rows) if rows > 1 else 0.0
    edges = np.unique(np.floor(np.exp2(np.linspace(0, octaves, int(octaves * _CELLS_PER_OCTAVE) + 2))).astype(np.int64))
    edges = np.concatenate([[0], edges[edges < rows], [rows]])
    sizes, masses = np.diff(edges), np.diff(ZipfLaw(s, q, rows).cumulative(edges))
    per_row = np.clip(masses / sizes, 0.0, 1.0 - 1e-16)
    distinct: float = -(sizes * np.expm1(ids * np.log1p(-per_row))).sum()
    return float(distinct)
