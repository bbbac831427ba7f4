"""Searching with any other cost model, through few queries of whole plans."""

from __future__ import annotations

import numpy as np

from neuroshard.budget import Budget
from neuroshard.plus.additive_pricing import AdditivePricing
from neuroshard.plus.allocation import plan_of
from neuroshard.plus.best import Best
from neuroshard.plus.cutting import cut_greedily
from neuroshard.plus.placement import Placement
from neuroshard.plus.search import Search
from neuroshard.plus.settings import KICKS_PER_ROUND, PlusSettings
from neuroshard.plus.starts import starts_of
from shardgym.arrays import Ints
from shardgym.plan import ShardingPlan

#: Plans of one query: enough to make up for what the estimate gets wrong, few enough to learn in between.
_TOGETHER = 8


class EvaluatedSearch:
    """Searches with an additive estimate, has the most promising plans evaluated, learns, and searches again.

    Args:
        pricing: the estimate.
        settings: how thoroughly.
        budget: of time; may run out in the middle.
        rng: of the kicks.
        best: is offered every plan that is evaluated.
    """

    def __init__(
        self, pricing: AdditivePricing, settings: PlusSettings, budget: Budget, rng: np.random.Generator, best: Best
    ) -> None:
        self._pricing, self._budget, self._best = pricing, budget, best
        self._search_once = Search(pricing, settings, budget, rng, self._found)
        self._kicks = KICKS_PER_ROUND if settings.kicks is None else settings.kicks
        self._left = settings.queries_within(limited=budget.limited)
        self._waiting: dict[bytes, Placement] = {}
        self._evaluated: set[bytes] = set()
        self._best_units: Ints | None = None

    def run(self, initial: ShardingPlan | None) -> None:
        """Search until queries are used up or nothing new comes up.

        Raises:
            OutOfTime: the budget is spent.
            NoFeasiblePlanError: no packing was found.
        """
        pricing, objective = self._pricing, self._search_once.objective
        pricing.learn_slope()
        starts = starts_of(pricing, objective, self._budget, initial)
        self._evaluate(starts[: int(min(self._left, _TOGETHER))])
        cut = cut_greedily(pricing, objective, self._budget, self._search_once.offer)
        starts += [] if cut is None else [cut]
        while self._left:
            self._search_once.run([*starts, *([] if self._best_units is None else [self._best_units])], self._kicks)
            promising = sorted(self._waiting.values(), key=lambda placement: placement.total_ms)
            if not promising:
                return
            self._evaluate([placement.units for placement in promising[: int(min(self._left, _TOGETHER))]])

    def _found(self, placement: Placement) -> None:
        """Remember a placement that has not been evaluated."""
        key = placement.units.tobytes()
        if key not in self._evaluated:
            self._waiting[key] = placement

    def _evaluate(self, several: list[Ints]) -> None:
        self._budget.check()
        before = self._best.cost_ms
        costs = self._best.offer(*(plan_of(self._pricing.shelf, units) for units in several))
        cheapest = int(np.argmin([cost.total_ms for cost in costs]))
        if costs[cheapest].total_ms < before:
            self._best_units = several[cheapest]
        self._pricing.learn(several, costs)
        self._left -= len(several)
        self._evaluated |= {units.tobytes() for units in several}
        self._waiting.clear()
