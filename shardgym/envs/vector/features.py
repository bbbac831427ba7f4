"""The numbers in observations of devices, for many devices at once; see `ObservationBuilder` for single ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats, Ints
from shardgym.envs.observation_space import DEVICE_FEATURES

Float32s = npt.NDArray[np.float32]


def unit(values: Floats) -> Float32s:
    """Limit to [0, 1], in single precision."""
    return np.clip(values, 0.0, 1.0).astype(np.float32)


def empty_devices(capacity: Ints) -> Float32s:
    """Return the features of devices that hold nothing, shape (D, features).

    Args:
        capacity: bytes, -1 where there is no device, shape (D,).
    """
    exists = capacity >= 0
    features = np.zeros((len(capacity), len(DEVICE_FEATURES)))
    features[exists, :2] = 1.0
    features[exists, 2] = capacity[exists] / capacity.max()
    return unit(features)
