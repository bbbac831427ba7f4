"""Contents priced by the learned simulator: one vector addition each, and one call of the head for all new ones."""

from __future__ import annotations

import numpy as np

from neuroshard.contents import Contents, grown
from neuroshard.kinds import Kinds
from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator import SimulatorCost


class SimulatorContents(Contents):
    """Keeps the added latents of every content.

    Args:
        kinds: the shards; all are encoded at once, here and never again.
        cost: an oracle.

    Raises:
        InputError: `cost` is a judge, or does not know tasks of this kind.
    """

    def __init__(self, kinds: Kinds, cost: SimulatorCost) -> None:
        self._predictor = cost.predictor()
        self._task = self._predictor.add_task(kinds.task)
        shards = self._predictor.encode(kinds.task, [kinds.shard(kind) for kind in range(len(kinds))])
        self._latents: Floats = np.ascontiguousarray(self._predictor.latents(shards))
        self._shard_widths = self._predictor.widths(shards)
        super().__init__(kinds)

    def clear(self) -> None:
        """See `Contents`."""
        super().clear()
        self._sums: Floats = np.zeros((len(self.ms), self._latents.shape[1]))
        self._widths: Floats = np.zeros(len(self.ms))

    def least(self, contents: Ints) -> Floats:
        """Return the compute of each plan's busiest device: communication takes no negative time."""
        return np.asarray(self.compared_ms[contents].max(axis=1), dtype=np.float64)

    def totals(self, contents: Ints) -> Floats:
        """See `Contents`."""
        return self._predictor.slowest_ms(self._task, self.ms[contents], self._widths[contents])

    def _price(self, numbers: Ints, contents: Ints, kinds: Ints) -> Floats:
        self._widths[numbers] = self._widths[contents] + self._shard_widths[kinds]
        sums = self._sums[contents] + self._latents[kinds]
        self._sums[numbers] = sums
        return np.asarray(self._predictor.compute_ms(sums).sum(axis=1), dtype=np.float64)

    def _reserve(self, capacity: int) -> None:
        super()._reserve(capacity)
        self._sums, self._widths = grown(self._sums, capacity), grown(self._widths, capacity)
