"""Means of ratios and bootstrap intervals."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats

RESAMPLES = 10_000
FEWEST = 6
SEED = 0
_CHUNK = 1000


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Say whether a value lies in the interval, ends included."""
        return self.low <= value <= self.high


def mean_ratio(costs: Floats, reference: Floats) -> float:
    """Return the geometric mean of costs / reference over tasks, both of shape (n,); NaN when n is 0."""
    return math.exp(float(np.log(costs / reference).mean())) if costs.size else math.nan


def bootstrap_mean(values: Floats, resamples: int = RESAMPLES, seed: int = SEED) -> Interval | None:
    """Return the percentile interval of the mean of `values` when tasks are drawn anew with replacement.

    Efron & Tibshirani, An Introduction to the Bootstrap, chapter 13.

    Args:
        values: one per task, shape (n,).
        resamples: how often tasks are drawn.
        seed: of the draws.

    Returns:
        None for fewer than `FEWEST` tasks: so few say next to nothing about their spread.
    """
    if values.size < FEWEST:
        return None
    rng = np.random.default_rng(seed)
    means = np.concatenate([
        values[rng.integers(values.size, size=(min(_CHUNK, resamples - start), values.size))].mean(axis=1)
        for start in range(0, resamples, _CHUNK)
    ])  # fmt: skip
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(low), float(high))
