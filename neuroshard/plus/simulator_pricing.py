"""Pricing by the learned simulator: added latents, and one call of the head for all of a batch."""

from __future__ import annotations

import numpy as np

from neuroshard.plus.pricing import Pricing
from neuroshard.plus.shelf import Shelf
from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator import SimulatorCost


class SimulatorPricing(Pricing):
    """Exact up to rounding; all shards are encoded at once, here and never again.

    Args:
        shelf: the shards.
        cost: an oracle.

    Raises:
        InputError: `cost` is a judge, or does not know tasks of this kind.
    """

    def __init__(self, shelf: Shelf, cost: SimulatorCost) -> None:
        rows = np.flatnonzero(shelf.columns)
        self._predictor = cost.predictor()
        self._task = self._predictor.add_task(shelf.task)
        latents = self._predictor.latents(
            self._predictor.encode(shelf.task, [shelf.shard(row) for row in rows.tolist()])
        )
        vectors = np.zeros((len(shelf), latents.shape[1]))
        vectors[rows] = latents
        super().__init__(shelf, vectors)

    def compute(self, sums: Floats) -> Floats:
        """See `Pricing`."""
        return np.asarray(self._predictor.compute_ms(sums).sum(axis=1), dtype=np.float64)

    def totals(self, compute: Floats, columns: Ints) -> Floats:
        """See `Pricing`."""
        return self._predictor.slowest_ms(self._task, compute, columns.astype(np.float64))
