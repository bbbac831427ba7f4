"""The analytic sums under networks and trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardgym.arrays import Floats
from shardgym.errors import import_extra


def fit_prior(amounts: Floats, ms: Floats) -> Floats:
    """Fit an analytic sum: ms = amounts @ weights, relative errors, no negative weight.

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
