"""What a difference between costs is worth: bootstrap intervals over tasks, and ties of measured costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.plan_cost import PlanCost

RESAMPLES = 10_000
FEWEST = 6
SEED = 0
_CHUNK = 1000

#: Standard errors of a difference within which two costs tie; about its 95 % interval.
TIE_ERRORS = 2.0

BEST = "best"
TIED = "tied"

#: The rule of ties, to stand under a table that has some.
TIE_RULE = (
    f"{TIED}: the difference from the lowest total is at most {TIE_ERRORS:g} standard errors of that difference, "
    "so no plan is best."
)


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


def is_tie(first: PlanCost, second: PlanCost) -> bool:
    """Say whether the difference of two feasible costs is within the noise of the two.

    Their errors are taken as independent. Equal costs tie, whatever their noise.
    """
    error = math.hypot(first.noise * first.total_ms, second.noise * second.total_ms)
    return abs(first.total_ms - second.total_ms) <= TIE_ERRORS * error


def tie_marks(costs: Sequence[PlanCost]) -> list[str | None]:
    """Return a mark per cost.

    Returns:
        "best" for the lowest if no other ties with it; else "tied" for the lowest and for all that tie with it; None
        for the rest, for plans without a cost, and for a plan that is compared with none.
    """
    feasible = [cost for cost in costs if cost.feasible]
    if not feasible or len(costs) == 1:
        return [None] * len(costs)
    lowest = min(feasible, key=lambda cost: cost.total_ms)
    close = [cost.feasible and is_tie(cost, lowest) for cost in costs]
    mark = TIED if sum(close) > 1 else BEST
    return [mark if is_close else None for is_close in close]
