"""What is known of times before anything is trained: analytic sums under networks and trees, and transfers."""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Floats


def fit_prior(amounts: Floats, ms: Floats) -> Floats:
    """Fit an analytic sum: ms = amounts @ weights, relative errors, no negative weight.

    Args:
        amounts: work of each sample, shape (N, W).
        ms: what it took, shape (N,).

    Returns:
        Weights, shape (W,).
    """
    from scipy import optimize

    weights, _ = optimize.nnls(amounts / ms[:, None], np.ones(len(ms)))
    if not weights.any():
        weights[0] = float(np.median(ms / np.maximum(amounts[:, 0], 1e-9)))
    return np.asarray(weights, dtype=np.float64)


def fit_priors_with_constant(amounts: Floats, ms: Floats) -> Floats:
    """Fit an analytic sum to each column of times; the weight of the last amount, a constant, is never quite 0.

    Args:
        amounts: work of each sample, the last one 1 for all, shape (N, W).
        ms: what it took, shape (N, C).

    Returns:
        Weights, shape (W, C).
    """
    weights = np.column_stack([fit_prior(amounts, ms[:, column]) for column in range(ms.shape[1])])
    # A device whose tables are not looked up needs a logarithm, too.
    weights[-1] = np.maximum(weights[-1], 0.05 * np.quantile(ms, 0.01, axis=0))
    return weights


def without_wait_ms(ms: Floats, wait_ms: Floats) -> Floats:
    """Return how long devices transferred in an exchange: all but their wait, and a twentieth of the time at least.

    Args:
        ms: what the exchange took on each device, shape (S,).
        wait_ms: how long each waited for the last one to enter, shape (S,).
    """
    return np.maximum(ms - wait_ms, 0.05 * ms)
