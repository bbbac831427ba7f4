"""Which of a table's lookups find their row in a cache: Che's approximation of a cache that drops the oldest row.

Rows are kept in classes: so many rows that one batch accesses so often each. A row with a accesses per batch is still
in the cache at its next access if that comes within the time t after which a row is dropped; with independent
accesses that has the probability 1 - exp(-a t). The cache is full when the expected number of rows within t is its
capacity, from which t follows (Che, Tung and Wang, "Hierarchical Web caching systems", IEEE JSAC 2002). For uniform
ids this is the share of the table that fits.
"""

from __future__ import annotations

import functools

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.roofline import BIN_ACCESSES, expected_distinct_rows
from shardgym.table import REUSE_BINS, EmbeddingTable, ZipfIds

#: Halvings of the interval of t; the last one is a millionth of the first.
_STEPS = 40
_OCTAVES = 64


@functools.lru_cache(maxsize=65536)  # tasks are drawn from the same few tables again and again
def row_classes(table: EmbeddingTable, batch_size: int) -> tuple[Floats, Floats]:
    """Return the distinct rows that one batch touches, by how often it touches them.

    A reuse histogram is taken as it is, scaled to the ids of the batch. Otherwise rows are those of the table's
    distribution; recorded ids without a histogram count as uniform.

    Returns:
        Rows and accesses per row, both of shape (17,); rows x accesses add up to the ids of the batch.
    """
    rows: Floats = np.zeros(REUSE_BINS)
    accesses: Floats = np.ones(REUSE_BINS)
    ids = batch_size * table.pooling_factor
    if ids <= 0:
        return rows, accesses
    distinct = expected_distinct_rows(table, batch_size)
    if table.reuse_histogram is not None and any(table.reuse_histogram):
        shares = np.array(table.reuse_histogram)
        rows = distinct * shares / shares.sum()
        accesses = np.array(BIN_ACCESSES)
    elif isinstance(table.ids, ZipfIds):
        rows, accesses = _zipf_classes(table.ids, table.num_embeddings, ids)
    else:
        rows[0] = distinct
    # Bins know accesses to a factor of 2: the ids of the batch are known better.
    repeats = float(rows @ (accesses - 1))
    wanted = max(ids - float(rows.sum()), 0.0)
    accesses = 1 + (accesses - 1) * wanted / repeats if repeats > 0 else accesses + wanted / float(rows.sum())
    return rows, accesses


def _zipf_classes(law: ZipfIds, rows: int, ids: float) -> tuple[Floats, Floats]:
    """Cut popularity ranks into 17 classes of similar popularity; return touched rows and accesses of each."""
    edges = np.unique(np.floor(np.geomspace(1, rows + 1, REUSE_BINS + 1)).astype(np.int64)) - 1
    sizes = np.diff(edges).astype(np.float64)
    finer = np.geomspace(edges[:-1] + 1, edges[1:] + 1, _OCTAVES + 1) - 1
    middles = (finer[1:] + finer[:-1]) / 2
    masses = (np.diff(finer, axis=0) * (middles + 0.5 + law.q) ** -law.s).sum(axis=0)
    expected = ids * masses / masses.sum() / sizes
    touched = sizes * -np.expm1(-expected)
    found = np.zeros((2, REUSE_BINS))
    found[0, : len(sizes)] = touched
    found[1, : len(sizes)] = np.divide(expected * sizes, touched, out=np.ones(len(sizes)), where=touched > 0)
    return found[0], np.maximum(found[1], 1.0)


def missed_accesses(rows: Floats, accesses: Floats, capacity: Floats) -> Floats:
    """Return how many accesses do not find their row in the cache; the first access to a row never does.

    Args:
        rows: distinct rows of each class, shape (n, classes).
        accesses: to each of these rows, at least 1, shape (n, classes).
        capacity: rows that the cache holds, shape (n,).

    Returns:
        Shape (n,): at least the distinct rows, at most all accesses.
    """
    low = np.zeros(len(rows))
    high = np.full(len(rows), 50.0)  # exp(-50) is nothing: by then every row that is touched was in the cache
    for _ in range(_STEPS):
        middle = (low + high) / 2
        held = (rows * -np.expm1(-accesses * middle[:, None])).sum(axis=1)
        fits = held <= capacity
        low = np.where(fits, middle, low)
        high = np.where(fits, high, middle)
    repeats = rows * (accesses - 1) * np.exp(-accesses * low[:, None])
    return np.asarray(rows.sum(axis=1) + repeats.sum(axis=1), dtype=np.float64)
