"""Features of shards, of empty devices and of what is left to place: shares or logarithms in [0, 1]."""

import math

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats, Ints
from shardgym.tables.table import REUSE_BINS
from shardgym.tasks.task import ShardingTask

Float32s = npt.NDArray[np.float32]

#: Places of what is added up over shards, in arrays of `ShardCatalog` and `Placements`: bytes with optimiser state,
#: columns, columns times pooling factor, and shards. Of what is left to place, bytes that are free come behind these.
BYTES, COLUMNS, LOOKUPS, SHARDS, FREE_BYTES = range(5)

#: Entries of `obs["table"]`, and of every row of `obs["tables"]`; see `TableWiseEnv`.
TABLE_FEATURES = (
    "log_rows", "log_dim", "log_pooling", "share_of_largest_device", "bytes_share", "dim_share", "lookup_share",
    "histogram_known", *(f"reuse_bin_{i}" for i in range(REUSE_BINS)),
)  # fmt: skip
#: Entries of every row of `obs["devices"]`.
DEVICE_FEATURES = (
    "exists", "free_share", "capacity_share", "bytes_share", "dim_share", "lookup_share", "tables_share",
)  # fmt: skip
#: Entries of every row of `obs["times"]`.
TIME_FEATURES = ("compute_share", "compute_share_with_next")
#: Entries of `obs["remaining"]`.
REMAINING_FEATURES = ("tables_share", "bytes_share", "dim_share", "lookup_share", "bytes_per_free_byte")
#: Entries of `obs["splits"]`.
SPLIT_FEATURES = ("splits_left", "width_share")

#: Entries of `obs["kind"]`.
KIND_FEATURES = ("row_share", "holders_share")

#: Divisors of the logarithmic features: log2 of rows, log2 of columns, ln(1 + pooling factor).
LOG_ROWS = 40.0
LOG_DIM = 16.0
LOG_POOLING = math.log1p(1e6)


def shard_features(
    task: ShardingTask, positions: Ints, amounts: Floats, scale: list[float], largest_device: float
) -> Float32s:
    """Return the features of shards, see `TABLE_FEATURES`, shape (n, 25).

    `positions` are those of their tables, (n,). `amounts` are bytes, columns and columns times pooling factor, shape
    (n, 3 or more); `scale` has the denominators of their shares, `largest_device` the largest memory in bytes.
    """
    tables = task.tables
    histograms = [table.reuse_histogram for table in tables]
    features = np.empty((len(positions), len(TABLE_FEATURES)))
    features[:, 0] = (np.log2([table.num_embeddings for table in tables]) / LOG_ROWS)[positions]
    features[:, 1] = np.log2(amounts[:, COLUMNS]) / LOG_DIM
    features[:, 2] = (np.log1p([table.pooling_factor for table in tables]) / LOG_POOLING)[positions]
    features[:, 3] = amounts[:, BYTES] / largest_device
    features[:, 4:7] = amounts[:, :SHARDS] / scale[:SHARDS]
    features[:, 7] = np.array([histogram is not None for histogram in histograms])[positions]
    features[:, 8:] = np.array([histogram or (0.0,) * REUSE_BINS for histogram in histograms])[positions]
    return _unit(features)


def part_features(
    features: Float32s, rows: Ints, pooling: Floats, on_device: Floats, scale: list[float], largest_device: float
) -> Float32s:
    """Return the features of one holder's parts of shards with several holders, shape (n, 25).

    `features` are those of the shards, (n, 25). The parts have `rows`, `pooling`, ids per sample, (n,), and
    `on_device`, amounts as in `shard_features`.
    """
    found = features.astype(np.float64)
    found[:, 0] = np.log2(rows) / LOG_ROWS
    found[:, 2] = np.log1p(pooling) / LOG_POOLING
    found[:, 3] = on_device[:, BYTES] / largest_device
    found[:, 4:7] = on_device[:, :SHARDS] / scale[:SHARDS]
    return _unit(found)


def empty_devices(capacity: Floats) -> Float32s:
    """Return the features of empty devices, shape (D, 7).

    Args:
        capacity: bytes of memory, -1 beyond the last device, shape (D,).
    """
    exists = capacity >= 0
    features = np.zeros((len(capacity), len(DEVICE_FEATURES)), np.float32)
    features[exists, :2] = 1.0
    features[exists, 2] = capacity[exists] / max(capacity.max(), 1.0)
    return features


def remaining_features(left: Floats, scale: Floats) -> Float32s:
    """Return the features of shards left to place, see `REMAINING_FEATURES`, shape (n, 5).

    Args:
        left: see `Placements.left`, shape (n, 5).
        scale: see `Placements.scale`, shape (n, 4) or (4,).
    """
    shares = left[:, :FREE_BYTES] / scale
    features = np.zeros((len(left), len(REMAINING_FEATURES)))
    features[:, 0] = shares[:, SHARDS]
    features[:, 1:4] = shares[:, :SHARDS]
    free = left[:, FREE_BYTES]
    np.divide(left[:, BYTES], free, out=features[:, 4], where=free > 0)
    return _unit(features)


def _unit(values: Floats) -> Float32s:
    """Clip to [0, 1], faster than `np.clip` for small arrays."""
    unit = np.empty(values.shape, np.float32)
    return np.minimum(np.maximum(values, 0.0), 1.0, out=unit, casting="same_kind")
