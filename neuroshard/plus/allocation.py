"""Allocations: what devices hold, with exact prices, and what becomes of them by a move."""

from __future__ import annotations

import numpy as np

from neuroshard.plus.moves import NONE
from neuroshard.plus.pricing import Pricing
from shardgym.arrays import Floats, Ints


class Allocation:
    """What devices hold, and what that takes.

    Args:
        pricing: of the task.
        units: of each table on each device, shape (D, T).

    Attributes:
        units: as given; must not be changed.
        sums: added vectors of each device, shape (D, V).
        columns: of each device, shape (D,).
        compute: of each device in ms, shape (D,).
        total_ms: predicted cost of the plan.
        value: of the objective in ms.
    """

    def __init__(self, pricing: Pricing, units: Ints) -> None:
        self._pricing = pricing
        self.units = units
        self.sums: Floats = pricing.sums(units)
        self.columns: Ints = pricing.shards.columns[pricing.shards.first + units].sum(axis=1)
        self.compute: Floats = pricing.compute(self.sums)
        totals, values = pricing.objective(self.compute[None], self.columns[None])
        self.total_ms = float(totals[0])
        self.value = float(values[0])

    def after(self, moves: Ints) -> tuple[Floats, Ints]:
        """Return compute and columns of all devices after each move of a `Shortlist`, (M, 6) to (M, D) each."""
        givers, takers, tables, units, backs, back_units = moves.T
        shards = self._pricing.shards
        number = np.arange(len(moves))
        pairs = np.stack([givers, takers], axis=1)
        sums = self.sums[pairs]
        columns = np.tile(self.columns, (len(moves), 1))
        swapped = backs != NONE
        for moved, more, which in ((tables, units, number), (backs, -back_units, number[swapped])):
            for side, sign in ((0, -1), (1, 1)):
                before = shards.first[moved[which]] + self.units[pairs[which, side], moved[which]]
                after = before + sign * more[which]
                sums[which, side] += self._pricing.vectors[after] - self._pricing.vectors[before]
                columns[which, pairs[which, side]] += shards.columns[after] - shards.columns[before]
        compute = np.tile(self.compute, (len(moves), 1))
        # What is left of a device that gave everything away is rounding.
        compute[number[:, None], pairs] = self._pricing.compute(np.where(sums[..., -1:] > 0.5, sums, 0.0))
        return compute, columns

    def moved(self, move: Ints) -> Allocation:
        """Return the allocation after a move."""
        giver, taker, table, units, back, back_units = move.tolist()
        after = self.units.copy()
        after[[giver, taker], table] += [-units, units]
        if back != NONE:
            after[[giver, taker], back] += [back_units, -back_units]
        return Allocation(self._pricing, after)
