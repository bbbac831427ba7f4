"""The spaces of observations: fixed shapes, finite bounds, one dimension per box."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from shardgym.table import REUSE_BINS

Observation = dict[str, npt.NDArray[np.generic]]

#: Entries of `obs["table"]`, and of every row of `obs["tables"]`; see `TableWiseEnv`.
TABLE_FEATURES = (
    "log_rows", "log_dim", "log_pooling", "share_of_largest_device", "bytes_share", "dim_share", "lookup_share",
    "histogram_known", *(f"reuse_bin_{i}" for i in range(REUSE_BINS)),
)  # fmt: skip
#: What `obs["devices"]` says of every device.
DEVICE_FEATURES = (
    "exists", "free_share", "capacity_share", "bytes_share", "dim_share", "lookup_share", "tables_share",
)  # fmt: skip
#: Entries of `obs["remaining"]`.
REMAINING_FEATURES = ("tables_share", "bytes_share", "dim_share", "lookup_share", "bytes_per_free_byte")
#: Entries of `obs["splits"]`.
SPLIT_FEATURES = ("splits_left", "width_share")

#: What the logarithmic features are divided by: log2 of rows, log2 of columns, ln(1 + pooling factor).
LOG_ROWS, LOG_DIM, LOG_POOLING = 40.0, 16.0, math.log1p(1e6)


@dataclass(frozen=True)
class Layout:
    """What the shapes of observations depend on.

    Attributes:
        max_devices: devices of a task at most, D.
        max_splits: halvings of an episode at most; None where tables are placed whole.
        max_tables: tables of a task at most; None for compact observations.
    """

    max_devices: int
    max_splits: int | None = None
    max_tables: int | None = None

    @property
    def actions(self) -> int:
        """A device each, and one for halving where that can be done."""
        return self.max_devices + (self.max_splits is not None)

    @property
    def max_shards(self) -> int:
        """Rows of full observations, N."""
        return (self.max_tables or 0) + (self.max_splits or 0)


def observation_space(layout: Layout) -> spaces.Dict:
    """Return the space of observations."""
    devices = layout.max_devices
    entries: dict[str, spaces.Space[npt.NDArray[np.generic]]] = {
        "table": _unit(len(TABLE_FEATURES)),
        "devices": _unit(devices * len(DEVICE_FEATURES)),
        "progress": _unit(1),
        "remaining": _unit(len(REMAINING_FEATURES)),
        "action_mask": _flags(layout.actions),
    }
    if layout.max_splits is not None:
        entries["splits"] = _unit(len(SPLIT_FEATURES))
    if layout.max_tables is not None:
        shards = layout.max_shards
        entries |= {
            "tables": _unit(shards * len(TABLE_FEATURES)),
            "positions": spaces.Box(0, layout.max_tables, (shards,), np.int32),
            "width_shares": _unit(shards),
            "waiting": _flags(shards),
            "membership": _flags(shards * devices),
        }
    return spaces.Dict(entries)


def _unit(size: int) -> spaces.Box:
    return spaces.Box(0.0, 1.0, (size,), np.float32)


def _flags(size: int) -> spaces.Box:
    return spaces.Box(0, 1, (size,), np.int8)
