"""The analytic sum under the oracle's networks: non-negative weights of amounts of work, by least squares."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats
from shardgym.errors import import_extra


def fit_prior(amounts: npt.NDArray[np.float64], ms: npt.NDArray[np.float64]) -> Floats:
    """Fit ms = amounts @ weights with relative errors and no negative weight.

    Args:
        amounts: work of each sample, shape (N, W).
        ms: what it took, shape (N,).

    Returns:
        Weights, shape (W,).
    """
    optimize: Any = import_extra("scipy.optimize", "training the simulator")
    weights, _ = optimize.nnls(amounts / ms[:, None], np.ones(len(ms)))
    if not weights.any():
        weights[0] = float(np.median(ms / np.maximum(amounts[:, 0], 1e-9)))
    return np.asarray(weights, dtype=np.float64)
