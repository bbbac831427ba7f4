"""Objective: what the search minimises."""

from __future__ import annotations

import numpy as np

from neuroshard.plus.pricing import Pricing
from shardgym.arrays import Floats, Ints

#: Plans x devices whose communication is predicted together; larger batches leave the processor's cache.
_BATCH = 256


class Objective:
    """The predicted cost of a step, plus by how much a soft maximum over devices' compute is above the hard one.

    With the hard maximum alone, nothing that happens on other devices than the slowest would count.

    Args:
        pricing: of the task.
        softness: width of the soft maximum, as a share of mean compute; 0 for the hard one.
    """

    def __init__(self, pricing: Pricing, softness: float) -> None:
        self._pricing, self._softness = pricing, softness

    def quick(self, compute: Floats, columns: Ints) -> Floats:
        """Return about what is minimised, up to a constant: communication is not predicted; (P, D) to (P,)."""
        communication = self._pricing.ms_per_column * columns.max(axis=1)
        return np.asarray(compute.max(axis=1) + self.excess(compute) + communication, dtype=np.float64)

    def totals(self, compute: Floats, columns: Ints) -> Floats:
        """Return what whole plans take in ms; (P, D) to (P,), P at least 1."""
        step = max(_BATCH // compute.shape[1], 1)
        parts = range(0, len(compute), step)
        return np.concatenate([self._pricing.totals(compute[n : n + step], columns[n : n + step]) for n in parts])

    def excess(self, compute: Floats) -> Floats:
        """Return by how much the soft maximum of compute is above the hard one; (P, D) to (P,)."""
        if not self._softness:
            return np.zeros(len(compute))
        width = self._softness * compute.mean(axis=1, keepdims=True)
        above = (compute - compute.max(axis=1, keepdims=True)) / np.maximum(width, 1e-12)
        excess: Floats = width[:, 0] * np.log(np.exp(above).sum(axis=1))
        return excess
