"""Observations: fixed shapes, every number in [0, 1], the same meaning for every task."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from shardgym.envs.placement import Figures, Placement
from shardgym.table import REUSE_BINS

Observation = dict[str, npt.NDArray[np.generic]]
Float32s = npt.NDArray[np.float32]

#: Entries of `obs["table"]`; see `TableWiseEnv`.
TABLE_FEATURES = (
    "log_rows", "log_dim", "log_pooling", "share_of_largest_device", "bytes_share", "dim_share", "lookup_share",
    "histogram_known", *(f"reuse_bin_{i}" for i in range(REUSE_BINS)),
)  # fmt: skip
#: Columns of `obs["devices"]`.
DEVICE_FEATURES = (
    "exists", "free_share", "capacity_share", "bytes_share", "dim_share", "lookup_share", "tables_share",
)  # fmt: skip
#: Entries of `obs["remaining"]`.
REMAINING_FEATURES = ("tables_share", "bytes_share", "dim_share", "lookup_share", "bytes_per_free_byte")

_LOG_ROWS, _LOG_DIM, _LOG_POOLING = 40.0, 16.0, math.log1p(1e6)


def observation_space(max_devices: int) -> spaces.Dict:
    """Return the space of observations for tasks of up to `max_devices` devices."""
    def unit(*shape: int) -> spaces.Box:
        return spaces.Box(0.0, 1.0, shape, np.float32)

    return spaces.Dict({
        "table": unit(len(TABLE_FEATURES)),
        "devices": unit(max_devices, len(DEVICE_FEATURES)),
        "progress": unit(1),
        "remaining": unit(len(REMAINING_FEATURES)),
        "action_mask": spaces.Box(0, 1, (max_devices,), np.int8),
    })


class ObservationBuilder:
    """Makes observations of the placements of one task.

    Args:
        figures: of the task.
        max_devices: devices of the observation space.
    """

    def __init__(self, figures: Figures, max_devices: int) -> None:
        self._figures = figures
        self._max_devices = max_devices
        self._bytes = float(figures.sizes.sum())
        self._dims = float(figures.dims.sum())
        self._lookups = float(figures.lookups.sum()) or 1.0
        self._tables = self._table_features()
        self._left = np.stack([
            _after(np.ones(len(figures.sizes))), _after(figures.sizes), _after(figures.dims), _after(figures.lookups)
        ], axis=1)  # fmt: skip

    def observe(self, placement: Placement, mask: npt.NDArray[np.bool_]) -> Observation:
        """Return the observation of a placement.

        Args:
            placement: of this task.
            mask: devices that may be chosen, shape (max_devices,).
        """
        table = np.zeros(len(TABLE_FEATURES), np.float32) if placement.complete else self._tables[placement.placed]
        return {
            "table": table.copy(),
            "devices": self._devices(placement),
            "progress": np.array([placement.placed / len(self._figures.sizes)], np.float32),
            "remaining": self._remaining(placement),
            "action_mask": mask.astype(np.int8),
        }

    def _table_features(self) -> Float32s:
        """Return the features of all tables in placing order, shape (T, features)."""
        figures = self._figures
        tables = [figures.task.tables[position] for position in figures.positions]
        histograms = [table.reuse_histogram for table in tables]
        columns = [
            np.log2([table.num_embeddings for table in tables]) / _LOG_ROWS,
            np.log2(figures.dims) / _LOG_DIM,
            np.log1p([table.pooling_factor for table in tables]) / _LOG_POOLING,
            figures.sizes / figures.capacity.max(),
            figures.sizes / self._bytes,
            figures.dims / self._dims,
            figures.lookups / self._lookups,
            np.array([histogram is not None for histogram in histograms], dtype=np.float64),
        ]
        reuse = np.array([histogram or (0.0,) * REUSE_BINS for histogram in histograms])
        return _unit(np.concatenate([np.stack(columns, axis=1), reuse], axis=1))

    def _devices(self, placement: Placement) -> Float32s:
        capacity = self._figures.capacity
        features = np.zeros((self._max_devices, len(DEVICE_FEATURES)), np.float32)
        features[: len(capacity)] = _unit(np.stack([
            np.ones(len(capacity)),
            1 - placement.used / capacity,
            capacity / capacity.max(),
            placement.used / self._bytes,
            placement.dims / self._dims,
            placement.lookups / self._lookups,
            placement.tables / len(self._figures.sizes),
        ], axis=1))  # fmt: skip
        return features

    def _remaining(self, placement: Placement) -> Float32s:
        tables, size, dims, lookups = self._left[placement.placed]
        free = float((self._figures.capacity - placement.used).sum())
        shares = [tables / len(self._figures.sizes), size / self._bytes, dims / self._dims, lookups / self._lookups]
        return _unit(np.array([*shares, size / free if free else 0.0]))


def _after(values: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """Return the sum of `values[i:]` for i = 0 ... T, shape (T + 1,)."""
    return np.concatenate([np.cumsum(values[::-1].astype(np.float64))[::-1], [0.0]])


def _unit(values: npt.NDArray[np.float64]) -> Float32s:
    return np.clip(values, 0.0, 1.0).astype(np.float32)
