"""Descent: the best move of the most loaded devices, again and again, until none makes the plan better."""

from __future__ import annotations

import numpy as np

from neuroshard.budget import Budget
from neuroshard.plus.moves import Moves, moves_of
from neuroshard.plus.objective import Objective
from neuroshard.plus.placement import Placement
from neuroshard.plus.pricing import Pricing
from neuroshard.plus.settings import PlusSettings
from shardgym.arrays import Ints

#: A move has to bring more than this share of the objective.
_LEAST_GAIN = 1e-6


class Descent:
    """Improves placements by moves of single devices.

    All moves of a device are priced together: roughly first, then the most promising exactly with communication.

    Args:
        pricing: of the task.
        objective: what is minimised.
        settings: how thoroughly.
        budget: of time.
    """

    def __init__(self, pricing: Pricing, objective: Objective, settings: PlusSettings, budget: Budget) -> None:
        self._pricing, self._objective, self._settings, self._budget = pricing, objective, settings, budget
        self._memory: Ints = np.array(pricing.shelf.task.topology.memory_bytes, dtype=np.int64)

    def run(self, placement: Placement) -> Placement:
        """Return a placement that no move of its most loaded devices makes better.

        Raises:
            OutOfTime: the budget is spent.
        """
        better: Placement | None = placement
        while better is not None:
            placement, better = better, self._step(better)
        return placement

    def _step(self, placement: Placement) -> Placement | None:
        """Return the placement after the best move of the first device that has one; None when none has."""
        load = placement.compute + self._pricing.ms_per_column * placement.columns
        for device in (-load).argsort(kind="stable")[: self._settings.sources].tolist():
            self._budget.check()
            better = self._best_move(placement, device)
            if better is not None:
                return better
        return None

    def _best_move(self, placement: Placement, device: int) -> Placement | None:
        """Return the placement after the best move of one device; None when none brings anything."""
        number = self._settings.shortlist
        moves = self._shortlist(moves_of(placement, device, self._memory), placement, device, 2 * number)
        moves = self._shortlist(moves.priced(placement, device), placement, device, number)
        if not len(moves.targets):
            return None
        compute, columns = moves.outcome(placement, device)
        totals = self._objective.totals(compute, columns)
        values = totals + self._objective.excess(compute)
        best = int(values.argmin())
        if values[best] >= placement.value * (1 - _LEAST_GAIN):
            return None
        units = moves.applied(best, device, placement.units)
        return Placement(self._pricing, self._objective, units, float(totals[best]))

    def _shortlist(self, moves: Moves, placement: Placement, device: int, number: int) -> Moves:
        """Return the moves that look best, none that does not look better than no move."""
        values = self._objective.quick(*moves.outcome(placement, device))
        now = self._objective.quick(placement.compute[None], placement.columns[None])
        promising = np.flatnonzero(values < now)
        return moves.take(promising[values[promising].argsort(kind="stable")[:number]])
