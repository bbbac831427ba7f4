"""Observations of a placement: compact ones here, what full ones add in `full_observation`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shardgym.envs.figures import Figures
from shardgym.envs.full_observation import full_entries
from shardgym.envs.observation_space import (
    DEVICE_FEATURES,
    LOG_DIM,
    LOG_POOLING,
    LOG_ROWS,
    TABLE_FEATURES,
    Layout,
    Observation,
)
from shardgym.envs.placement import Placement
from shardgym.envs.shards import WaitingShard
from shardgym.table import REUSE_BINS

Float32s = npt.NDArray[np.float32]


class ObservationBuilder:
    """Makes observations of the placements of one task.

    Args:
        figures: of the task.
        layout: of the observation space.
    """

    def __init__(self, figures: Figures, layout: Layout) -> None:
        self._figures, self._layout = figures, layout
        self._bytes = float(figures.sizes.sum())
        self._dims = float(figures.dims.sum())
        self._lookups = float(figures.lookups.sum()) or 1.0
        self._whole = self._features(figures.shards)
        self._parts: dict[tuple[int, int], Float32s] = {}

    def observe(self, placement: Placement, mask: npt.NDArray[np.bool_]) -> Observation:
        """Return the observation of a placement.

        Args:
            placement: of this task.
            mask: actions that may be chosen, shape (actions,).
        """
        now = placement.next
        observation: Observation = {
            "table": np.zeros(len(TABLE_FEATURES), np.float32) if now is None else self.features_of(now).copy(),
            "devices": self._devices(placement),
            "progress": np.array([placement.placed / placement.shards], np.float32),
            "remaining": self._remaining(placement),
            "action_mask": mask.astype(np.int8),
        }
        if self._layout.max_splits is not None:
            observation["splits"] = self._splits(placement, self._layout.max_splits)
        if self._layout.max_tables is not None:
            observation |= full_entries(self._layout, placement, self.features_of)
        return observation

    def features_of(self, shard: WaitingShard) -> Float32s:
        """Return the features of a shard, shape (features,), not to be written to."""
        if shard.width == self._figures.dims[shard.table]:
            row: Float32s = self._whole[shard.table]
            return row
        key = shard.table, shard.width
        if key not in self._parts:
            self._parts[key] = self._features([shard])[0]
        return self._parts[key]

    def _features(self, shards: Sequence[WaitingShard]) -> Float32s:
        """Return the features of shards, shape (S, features)."""
        tables = [self._figures.task.tables[shard.position] for shard in shards]
        sizes, dims, lookups = np.array([(s.size, s.width, s.lookups) for s in shards], dtype=np.float64).T
        histograms = [table.reuse_histogram for table in tables]
        columns = [
            np.log2([table.num_embeddings for table in tables]) / LOG_ROWS,
            np.log2(dims) / LOG_DIM,
            np.log1p([table.pooling_factor for table in tables]) / LOG_POOLING,
            sizes / self._figures.capacity.max(),
            sizes / self._bytes,
            dims / self._dims,
            lookups / self._lookups,
            np.array([histogram is not None for histogram in histograms], dtype=np.float64),
        ]
        reuse = np.array([histogram or (0.0,) * REUSE_BINS for histogram in histograms])
        return _unit(np.concatenate([np.stack(columns, axis=1), reuse], axis=1))

    def _devices(self, placement: Placement) -> Float32s:
        capacity = self._figures.capacity
        features = np.zeros((self._layout.max_devices, len(DEVICE_FEATURES)), np.float32)
        features[: len(capacity)] = _unit(np.stack([
            np.ones(len(capacity)),
            1 - placement.used / capacity,
            capacity / capacity.max(),
            placement.used / self._bytes,
            placement.dims / self._dims,
            placement.lookups / self._lookups,
            placement.tables / placement.shards,
        ], axis=1))  # fmt: skip
        return features.ravel()

    def _remaining(self, placement: Placement) -> Float32s:
        size, free = placement.bytes_left, float((self._figures.capacity - placement.used).sum())
        return _unit(np.array([
            len(placement.waiting) / placement.shards,
            size / self._bytes,
            placement.dims_left / self._dims,
            placement.lookups_left / self._lookups,
            size / free if free else 0.0,
        ]))  # fmt: skip

    def _splits(self, placement: Placement, max_splits: int) -> Float32s:
        now = placement.next
        return _unit(np.array([
            1 - placement.splits / max_splits if max_splits else 0.0,
            now.width / self._figures.dims[now.table] if now else 0.0,
        ]))  # fmt: skip


def _unit(values: npt.NDArray[np.float64]) -> Float32s:
    return np.clip(values, 0.0, 1.0).astype(np.float32)
