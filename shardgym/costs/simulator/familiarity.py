"""Whether a plan is near enough to the training data for its prediction to be trusted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardgym.arrays import Bools, Floats
from shardgym.costs.plan_cost import UNFAMILIAR
from shardgym.costs.simulator.weights import Weights

#: How far beyond the range of the training data a feature may lie.
MARGIN = 1.1


class Familiarity(NamedTuple):
    """How far a plan is from the training data.

    Attributes:
        outside: names of features that leave the range of the training data, sorted.
        spread: largest relative disagreement of the ensemble on the compute time of any of its devices.
        spread_limit: largest disagreement on contents that were held out of training.
    """

    outside: tuple[str, ...]
    spread: float
    spread_limit: float

    @property
    def is_familiar(self) -> bool:
        """Whether all features are in range and the ensemble agrees."""
        return not self.outside and self.spread <= self.spread_limit

    def notes(self) -> tuple[str, ...]:
        """Return notes for `PlanCost`; without numbers, so that equal reasons are equal notes."""
        notes = [f"{UNFAMILIAR}: {name}" for name in self.outside]
        if self.spread > self.spread_limit:
            notes.append(f"{UNFAMILIAR}: the ensemble disagrees on compute")
        return tuple(notes)


def outside(weights: Weights, group: str, values: Floats) -> Bools:
    """Say which features are out of range.

    Args:
        weights: hold the ranges.
        group: key of `RANGES`.
        values: shape (n, features of the group).

    Returns:
        Shape (n, features of the group).
    """
    low, high = weights.ranges[group]
    return np.asarray((values < low / MARGIN) | (values > high * MARGIN), dtype=np.bool_)
