"""Observations of placements, their spaces, and their features: shares or logarithms in [0, 1], or relative times."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from shardgym.arrays import Bools, Floats, Ints
from shardgym.table import REUSE_BINS
from shardgym.task import ShardingTask

if TYPE_CHECKING:
    from shardgym.envs.placements import Placements

Float32s = npt.NDArray[np.float32]
Observation = dict[str, npt.NDArray[np.generic]]

OBSERVATIONS = ("compact", "full", "timed", "full_timed")

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

#: Divisors of the logarithmic features: log2 of rows, log2 of columns, ln(1 + pooling factor).
LOG_ROWS = 40.0
LOG_DIM = 16.0
LOG_POOLING = math.log1p(1e6)


def shard_features(
    task: ShardingTask, positions: Ints, amounts: Floats, scale: list[float], largest_device: float
) -> Float32s:
    """Return the features of shards, see `TABLE_FEATURES`, shape (n, 25).

    Args:
        task: the task.
        positions: of their tables, shape (n,).
        amounts: bytes, columns, columns times pooling factor of each, shape (n, 3 or more).
        scale: denominators of their shares.
        largest_device: bytes of memory.
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


def empty_devices(capacity: Floats) -> Float32s:
    """Return the features of empty devices, shape (D, 7).

    Args:
        capacity: bytes of memory, -1 beyond the last device, shape (D,).
    """
    exists = capacity >= 0
    features = np.zeros((len(capacity), len(DEVICE_FEATURES)), np.float32)
    features[exists, :2] = 1.0
    features[exists, 2] = capacity[exists] / capacity.max()
    return features


def remaining_features(left: Floats, scale: Floats) -> Float32s:
    """Return what is left to place, see `REMAINING_FEATURES`, shape (n, 5).

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
    """Limit to [0, 1]; `np.clip` takes longer for small arrays."""
    unit = np.empty(values.shape, np.float32)
    return np.minimum(np.maximum(values, 0.0), 1.0, out=unit, casting="same_kind")


@dataclass(frozen=True)
class Layout:
    """The limits that set the shapes of observations.

    Attributes:
        max_devices: devices of a task at most, D.
        max_splits: halvings of an episode at most; None where tables are placed whole.
        max_tables: tables of a task at most; None where observations do not list all tables.
        timed: whether observations have predicted times.
    """

    max_devices: int
    max_splits: int | None = None
    max_tables: int | None = None
    timed: bool = False

    @property
    def actions(self) -> int:
        """One per device, and one for halving where that is an action."""
        return self.max_devices + (self.max_splits is not None)

    @property
    def max_shards(self) -> int:
        """Rows of full observations, S."""
        return (self.max_tables or 0) + (self.max_splits or 0)

    @property
    def most_even_shares(self) -> float:
        """Limit of predicted times. All tables on one of D devices take D even shares; halves take somewhat longer."""
        return 2.0 * self.max_devices

    @functools.cached_property
    def splits_left(self) -> Float32s:
        """Share of halvings left after 0, 1, 2, ... of them, shape (max_splits + 1,); 0 if `max_splits` is 0."""
        most = self.max_splits or 0
        return (1 - np.arange(most + 1) / most).astype(np.float32) if most else np.zeros(1, np.float32)


def observation_space(layout: Layout) -> spaces.Dict:
    """Return the space of observations: boxes of one dimension with finite bounds."""
    shares = {
        "table": len(TABLE_FEATURES), "devices": layout.max_devices * len(DEVICE_FEATURES), "progress": 1,
        "remaining": len(REMAINING_FEATURES),
    }  # fmt: skip
    flags = {"action_mask": layout.actions}
    entries: dict[str, spaces.Space[Any]] = {}
    if layout.max_splits is not None:
        shares["splits"] = len(SPLIT_FEATURES)
    if layout.max_tables is not None:
        rows = layout.max_shards
        shares |= {"tables": rows * len(TABLE_FEATURES), "width_shares": rows}
        flags |= {"waiting": rows, "membership": rows * layout.max_devices}
        entries["positions"] = spaces.Box(0, layout.max_tables, (rows,), np.int32)
    if layout.timed:
        times = layout.max_devices * len(TIME_FEATURES)
        entries["times"] = spaces.Box(0.0, layout.most_even_shares, (times,), np.float32)
    entries |= {name: spaces.Box(0.0, 1.0, (size,), np.float32) for name, size in shares.items()}
    entries |= {name: spaces.Box(0, 1, (size,), np.int8) for name, size in flags.items()}
    return spaces.Dict(entries)


def observe(placements: Placements, layout: Layout, masks: Bools, time_shares: Floats | None = None) -> Observation:
    """Return the observations of N placements, as arrays that later steps do not change.

    Args:
        placements: what is observed.
        layout: of the observation space.
        masks: valid actions, shape (N, actions); not copied.
        time_shares: see `PlanScorer.time_shares`, for timed observations.
    """
    catalog = placements.catalog
    next_shard = placements.next
    observation: Observation = {
        "table": catalog.shard["features"][next_shard],
        "devices": _devices(placements),
        "progress": (placements.placed / placements.scale[:, SHARDS]).astype(np.float32)[:, None],
        "remaining": remaining_features(placements.left, placements.scale),
        "action_mask": masks.view(np.int8),
    }
    if layout.max_splits is not None:
        splits = np.empty((len(next_shard), len(SPLIT_FEATURES)), np.float32)
        splits[:, 0] = layout.splits_left[placements.splits]
        splits[:, 1] = catalog.shard["width_share"][next_shard]
        observation["splits"] = splits
    if time_shares is not None:
        times = np.minimum(time_shares, layout.most_even_shares)
        observation["times"] = times.astype(np.float32).reshape(len(next_shard), -1)
    if layout.max_tables is not None:
        observation |= _every_shard(placements, layout)
    return observation


def _devices(placements: Placements) -> Float32s:
    features = placements.catalog.task["devices"][placements.task]
    exists = features[:, :, 0]
    # Devices that do not exist use 0 of -1 bytes, so no division by zero occurs.
    used = placements.loads[:, :, BYTES] / placements.capacity
    np.subtract(exists, used, out=features[:, :, 1], casting="same_kind")
    # Halves duplicate optimiser state per row, so loads may add up to more than the bytes of the task.
    shares = placements.loads / placements.scale[:, None, :]
    np.minimum(shares, 1.0, out=features[:, :, 3:], casting="same_kind")
    return features.reshape(len(features), -1)


def _every_shard(placements: Placements, layout: Layout) -> Observation:
    """Return the entries of full observations: placed shards in the order of placing, waiting ones, then zeros."""
    shard = placements.catalog.shard
    shards = placements.shards[:, : layout.max_shards]
    devices = placements.devices[:, : layout.max_shards]
    membership = devices[:, :, None] == np.arange(layout.max_devices)
    return {
        "tables": shard["features"][shards].reshape(len(shards), -1),
        "positions": (shard["position"][shards] + 1).astype(np.int32),
        "width_shares": shard["width_share"][shards].astype(np.float32),
        "waiting": ((devices < 0) & (shards > 0)).astype(np.int8),
        "membership": membership.reshape(len(shards), -1).astype(np.int8),
    }
