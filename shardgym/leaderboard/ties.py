"""Ties of measured costs: which plan is best, and which cannot be told from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardgym.costs.plan_cost import PlanCost

#: Standard errors of a difference within which two costs tie; about its 95 % interval.
ERRORS = 2.0

BEST, TIED = "best", "tied"

#: The rule, to stand under a table that has ties.
RULE = (
    f"{TIED}: the difference from the lowest total is at most {ERRORS:g} standard errors of that difference, "
    "so no plan is best."
)


def is_tie(first: PlanCost, second: PlanCost) -> bool:
    """Say whether the difference of two feasible costs is within the noise of the two.

    Their errors are taken as independent. Equal costs tie, whatever their noise.
    """
    error = math.hypot(first.noise * first.total_ms, second.noise * second.total_ms)
    return abs(first.total_ms - second.total_ms) <= ERRORS * error


def marks(costs: Sequence[PlanCost]) -> list[str | None]:
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
