"""From repeated measurements to one number and its uncertainty."""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Floats

_RESAMPLES = 200


def centre(samples: Floats) -> Floats:
    """Return the mean over different work of the median over repeats of the same work.

    Args:
        samples: shape (rounds, steps, ...): step i of every round did exactly the same work, other steps did not.

    Returns:
        Shape (...).
    """
    return np.asarray(np.median(samples, axis=0).mean(axis=0), dtype=np.float64)


def resampled_centres(samples: Floats, seed: int = 0) -> Floats:
    """Return `centre` of bootstrap resamples of the rounds, shape (resamples, ...)."""
    rounds = len(samples)
    chosen = np.random.default_rng(seed).integers(0, rounds, size=(_RESAMPLES, rounds))
    return np.stack([centre(samples[rows]) for rows in chosen])


def relative_error_of_total(compute: Floats, forward: Floats, backward: Floats) -> float:
    """Return the relative standard error of a plan's total.

    The forward exchange makes everybody wait for the device that comes last, so the total is that device's compute and
    backward communication plus its forward communication, which contains no wait.

    Args:
        compute: rounds of forward and backward compute, shape (rounds, steps, D, 2).
        forward: rounds of forward communication, shape (rounds, steps, D).
        backward: rounds of backward communication, shape (rounds, steps, D).
    """
    busy = centre(compute).sum(axis=-1) + centre(backward)
    last = int(busy.argmax())
    resampled = resampled_centres(compute).sum(axis=-1) + resampled_centres(backward, seed=1)
    totals = resampled.max(axis=-1) + resampled_centres(forward, seed=2)[:, last]
    return float(totals.std() / totals.mean()) if totals.mean() > 0 else 0.0
