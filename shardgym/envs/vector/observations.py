"""Observations: what `ObservationBuilder` says of one placement, for N of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats, Ints
from shardgym.envs.observation_space import DEVICE_FEATURES, Layout, Observation
from shardgym.envs.vector.features import Float32s, unit
from shardgym.envs.vector.full_observations import full_observations
from shardgym.envs.vector.placements import Placements

_TABLES_SHARE = DEVICE_FEATURES.index("tables_share")


class Observations:
    """Features of devices are kept, as a step changes one device of each environment.

    Args:
        placements: what is observed.
        layout: of the observation space.
    """

    def __init__(self, placements: Placements, layout: Layout) -> None:
        self._placements, self._layout = placements, layout
        self._devices = np.zeros((len(placements.slot), layout.max_devices, len(DEVICE_FEATURES)), np.float32)

    def begin(self, rows: Ints) -> None:
        """See that placements were begun."""
        p = self._placements
        self._devices[rows] = p.shards.tasks["empty"][p.slot[rows]]

    def put(self, rows: Ints, devices: Ints) -> None:
        """See that shards were put on devices."""
        p = self._placements
        tasks, slot = p.shards.tasks, p.slot[rows]
        scale, used, capacity = tasks["scale"][slot], p.used[rows, devices], p.capacity[rows, devices]
        seen = np.empty((len(rows), len(DEVICE_FEATURES)))
        seen[:, 0] = 1.0
        seen[:, 1] = 1 - used / capacity
        seen[:, 2] = capacity / tasks["largest"][slot]
        seen[:, 3] = used / scale[:, 0]
        seen[:, 4] = p.dims[rows, devices] / scale[:, 1]
        seen[:, 5] = p.lookups[rows, devices] / scale[:, 2]
        seen[:, 6] = p.tables[rows, devices] / p.count[rows]
        self._devices[rows, devices] = unit(seen)

    def halve(self, rows: Ints) -> None:
        """See that shards were halved: there are more of them now."""
        p = self._placements
        self._devices[rows, :, _TABLES_SHARE] = unit(p.tables[rows] / p.count[rows][:, None])

    def observe(self, masks: npt.NDArray[np.bool_]) -> Observation:
        """Return observations of all environments; nothing in them changes later.

        Args:
            masks: actions that may be chosen, shape (N, actions).
        """
        p = self._placements
        shards = p.count
        observation: Observation = {
            "table": p.shards.kinds["features"][p.queue.next],
            "devices": self._devices.reshape(len(shards), -1).copy(),
            "progress": (p.placed / shards).astype(np.float32)[:, None],
            "remaining": self._remaining(shards),
            "action_mask": masks.astype(np.int8),
        }
        if self._layout.max_splits is not None:
            observation["splits"] = self._splits(self._layout.max_splits)
        if self._layout.max_tables is not None:
            observation |= full_observations(self._layout, p)
        return observation

    def _remaining(self, shards: Ints) -> Float32s:
        p = self._placements
        scale = p.shards.tasks["scale"][p.slot]
        shares: Floats = np.zeros((len(shards), 5))
        shares[:, 0] = p.queue.waiting / shards
        shares[:, 1] = p.bytes_left / scale[:, 0]
        shares[:, 2] = p.dims_left / scale[:, 1]
        shares[:, 3] = p.lookups_left / scale[:, 2]
        np.divide(p.bytes_left, p.free, out=shares[:, 4], where=p.free > 0)
        return unit(shares)

    def _splits(self, max_splits: int) -> Float32s:
        p = self._placements
        left = 1 - p.splits / max_splits if max_splits else np.zeros(len(p.slot))
        return unit(np.column_stack([left, p.shards.kinds["width_share"][p.queue.next]]))
