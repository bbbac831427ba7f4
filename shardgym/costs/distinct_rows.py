"""How many distinct rows of a table a batch touches, from its reuse histogram or its law of ids."""

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


def expected_distinct_rows(table: EmbeddingTable, batch_size: int, share: float = 1.0) -> float:
    """Return the expected number of distinct rows among the ids of a batch, or of a share of its samples.

    It is computed from the reuse histogram if the table has one: of a row that the batch touches n times, a share s of
    the samples touches it with probability 1 - (1 - s) ** n. Otherwise ids are independent draws from the table's
    distribution; recorded ids without a histogram count as uniform.
    """
    rows = table.num_embeddings
    ids = batch_size * table.pooling_factor * share
    if table.reuse_histogram is not None and any(table.reuse_histogram):
        mean = sum(of_bin * n for of_bin, n in zip(table.reuse_histogram, BIN_ACCESSES, strict=True))
        if share == 1.0:
            touched = math.fsum(table.reuse_histogram)
        else:
            pairs = zip(table.reuse_histogram, BIN_ACCESSES, strict=True)
            touched = math.fsum(of_bin * (1 - (1 - share) ** n) for of_bin, n in pairs) / share
        expected = ids / mean * touched
    elif isinstance(table.ids, ZipfIds):
        expected = _zipf_distinct(table.ids.s, table.ids.q, rows, ids)
    elif rows > 1:
        expected = -rows * math.expm1(ids * math.log1p(-1 / rows))
    else:
        expected = ids
    return min(expected, ids, float(rows))


@functools.lru_cache(maxsize=65536)
def _zipf_distinct(s: float, q: float, rows: int, ids: float) -> float:
    """Return the expected distinct rows of a Zipf law, summed over cells of ranks with a uniform law inside each."""
    octaves = math.log2(rows) if rows > 1 else 0.0
    edges = np.unique(np.floor(np.exp2(np.linspace(0, octaves, int(octaves * _CELLS_PER_OCTAVE) + 2))).astype(np.int64))
    edges = np.concatenate([[0], edges[edges < rows], [rows]])
    sizes = np.diff(edges)
    masses = np.diff(ZipfLaw(s, q, rows).cumulative(edges))
    per_row = np.clip(masses / sizes, 0.0, 1.0 - 1e-16)
    return float(-(sizes * np.expm1(ids * np.log1p(-per_row))).sum())
