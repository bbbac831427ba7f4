"""What models see of a shard: logarithms of amounts of work, and how often rows are used again."""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.roofline import BIN_ACCESSES
from shardgym.costs.simulator.samples import Shards

#: Amounts of work of one shard in one batch; a shard's time is roughly a weighted sum of them.
WORK_NAMES = (
    "shards", "ids", "sort steps", "gathered bytes", "distinct rows", "distinct bytes", "pooled bytes", "updated bytes",
)  # fmt: skip

#: What must lie in the range of the training data, for every shard and for every device.
SHARD_RANGE_NAMES = (
    "num_embeddings", "embedding_dim", "pooling_factor", "batch_size", "ids per shard",
    "accesses per row",
)  # fmt: skip
DEVICE_RANGE_NAMES = ("shards per device", "ids per device", "columns per device")


def mean_accesses(shards: Shards) -> Floats:
    """Return how often a batch touches a row that it touches, at least 1, shape (S,)."""
    mass = shards.reuse.sum(axis=1)
    mean = shards.reuse @ np.asarray(BIN_ACCESSES) / np.where(mass > 0, mass, 1.0)
    return np.asarray(np.maximum(mean, 1.0), dtype=np.float64)


def distinct_rows(shards: Shards) -> Floats:
    """Return the distinct rows that a batch touches, from the reuse histogram, shape (S,)."""
    ids = shards.batch * shards.pooling
    return np.minimum(ids / mean_accesses(shards), np.minimum(ids, shards.rows))


def work(shards: Shards) -> Floats:
    """Return the amounts of work named in `WORK_NAMES`, none negative, shape (S, 8)."""
    ids, distinct = shards.batch * shards.pooling, distinct_rows(shards)
    width = shards.columns * shards.element_bytes
    touched = width + 4 * (shards.state_per_weight * shards.columns + shards.state_per_row)
    return np.column_stack([
        np.ones_like(ids), ids, ids * np.log2(ids + 1), ids * width, distinct, distinct * width, shards.batch * width,
        distinct * touched,
    ])  # fmt: skip


def access_shares(shards: Shards) -> Floats:
    """Return the share of accesses (not of rows) in each reuse bin, shape (S, 17)."""
    accesses = shards.reuse * np.asarray(BIN_ACCESSES)
    total = accesses.sum(axis=1, keepdims=True)
    return np.asarray(accesses / np.where(total > 0, total, 1.0), dtype=np.float64)


def shard_features(shards: Shards) -> Floats:
    """Return what the oracle's encoder sees, shape (S, 27)."""
    amounts = np.column_stack([
        shards.rows, shards.columns, shards.pooling, shards.batch, shards.rows * shards.columns * shards.element_bytes,
        mean_accesses(shards), distinct_rows(shards), distinct_rows(shards) * shards.columns * shards.element_bytes,
        shards.batch * shards.pooling, 1 + shards.state_per_weight + shards.state_per_row / shards.columns,
    ])  # fmt: skip
    return np.hstack([np.log(amounts + 1e-3), access_shares(shards)])


def judge_features(shards: Shards) -> Floats:
    """Return what the judge's encoder sees: also square and cube roots, and cumulated row shares, shape (S, 27)."""
    ids = shards.batch * shards.pooling
    amounts = np.column_stack([
        np.log2(shards.rows), np.log2(shards.columns), np.log2(mean_accesses(shards)), np.log1p(ids),
        np.cbrt(ids), np.sqrt(shards.columns),
        np.log1p(ids * shards.columns * shards.element_bytes), np.log(shards.batch), shards.element_bytes,
        shards.state_per_weight, shards.state_per_row,
    ])  # fmt: skip
    return np.hstack([amounts, np.cumsum(shards.reuse, axis=1)[:, :-1]])


def shard_range_features(shards: Shards) -> Floats:
    """Return the features named in `SHARD_RANGE_NAMES`, shape (S, 6)."""
    ids = shards.batch * shards.pooling
    return np.column_stack([shards.rows, shards.columns, shards.pooling, shards.batch, ids, mean_accesses(shards)])


def device_range_parts(shards: Shards) -> Floats:
    """Return what each shard adds to the features named in `DEVICE_RANGE_NAMES`, shape (S, 3)."""
    return np.column_stack([np.ones(len(shards)), shards.batch * shards.pooling, shards.columns])
