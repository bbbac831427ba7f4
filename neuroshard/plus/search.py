"""Search: descents from several starts, then from disturbed copies of the best placement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from neuroshard.budget import Budget
from neuroshard.plus.descent import Descent
from neuroshard.plus.kicks import kicked
from neuroshard.plus.objective import Objective
from neuroshard.plus.placement import Placement
from neuroshard.plus.pricing import Pricing
from neuroshard.plus.settings import PATIENCE, PlusSettings
from shardgym.arrays import Ints


class Search:
    """Iterated local search over what devices hold.

    Args:
        pricing: of the task.
        settings: how thoroughly.
        budget: of time; may run out in the middle.
        rng: of the kicks.
        found: told of every start and of every placement that a descent ends in.

    Attributes:
        objective: what is minimised.
    """

    def __init__(
        self, pricing: Pricing, settings: PlusSettings, budget: Budget, rng: np.random.Generator,
        found: Callable[[Placement], None],
    ) -> None:  # fmt: skip
        self._pricing, self._settings, self._rng, self._found = pricing, settings, rng, found
        self.objective = Objective(pricing, settings.softness)
        self._descent = Descent(pricing, self.objective, settings, budget)

    def run(self, starts: Sequence[Ints], kicks: int | None) -> Placement:
        """Return the best placement found.

        Args:
            starts: units of each table on each device, each of shape (D, T); at least one.
            kicks: how many; None for as many as bring anything.

        Raises:
            OutOfTime: the budget is spent.
        """
        placements = [self._placed(units) for units in starts]
        for placement in placements:
            self._found(placement)
        best = self._descended(min(placements, key=lambda placement: placement.value))
        number, in_vain = 0, 0
        while number != kicks and in_vain != PATIENCE:
            units = kicked(self._pricing.shelf, best.units, self._settings.kick_moves, self._rng)
            other = self._descended(self._placed(units))
            number, in_vain = number + 1, 0 if other.value < best.value else in_vain + 1
            best = min(best, other, key=lambda placement: placement.value)
        return best

    def offer(self, units: Ints) -> None:
        """Report a placement that was found elsewhere."""
        self._found(self._placed(units))

    def _placed(self, units: Ints) -> Placement:
        return Placement(self._pricing, self.objective, units)

    def _descended(self, placement: Placement) -> Placement:
        end = self._descent.run(placement)
        self._found(end)
        return end
