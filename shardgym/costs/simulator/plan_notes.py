"""PlanNotes: notes on many plans; most have the same ones, or none."""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.simulator.familiarity import Familiarity
from shardgym.costs.simulator.weights import RANGES, Weights

#: Number of the first feature of each group, and the names of all.
_FIRST = {group: sum(len(RANGES[g]) for g in list(RANGES)[:n]) for n, group in enumerate(RANGES)}
_NAMES = [name for names in RANGES.values() for name in names]


def bits(outside: Bools, group: str) -> Ints:
    """Pack which features of a group are out of range into a whole number per row.

    Args:
        outside: shape (n, features of the group).
        group: key of `RANGES`.
    """
    return np.asarray(outside @ (1 << (_FIRST[group] + np.arange(outside.shape[1]))), dtype=np.int64)


class PlanNotes:
    """Notes of `PlanCost` that say how far plans are from the training data.

    Args:
        weights: know how far the ensemble may disagree.
    """

    def __init__(self, weights: Weights) -> None:
        self._limit = weights.spread_limit
        self._known: dict[tuple[int, bool], tuple[str, ...]] = {}

    def of(self, outside: Ints, spread: Floats) -> list[tuple[str, ...]]:
        """Return the notes of each plan.

        Args:
            outside: `bits` of all groups, shape (P,).
            spread: largest disagreement on any device, shape (P,).
        """
        wide = (spread > self._limit).tolist()
        return [self._notes(*key) for key in zip(outside.tolist(), wide, strict=True)]

    def _notes(self, outside: int, wide: bool) -> tuple[str, ...]:
        key = outside, wide
        if key not in self._known:
            names = {name for number, name in enumerate(_NAMES) if outside >> number & 1}
            spread = np.inf if wide else 0.0
            self._known[key] = Familiarity(tuple(sorted(names)), spread, self._limit).notes()
        return self._known[key]
