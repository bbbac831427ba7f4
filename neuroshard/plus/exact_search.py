"""Searching with the learned simulator, whose predictions can be added up."""

from __future__ import annotations

import numpy as np

from neuroshard.budget import Budget
from neuroshard.plus.allocation import plan_of
from neuroshard.plus.best import Best
from neuroshard.plus.cutting import cut_greedily
from neuroshard.plus.placement import Placement
from neuroshard.plus.search import Search
from neuroshard.plus.settings import PlusSettings
from neuroshard.plus.shelf import Shelf
from neuroshard.plus.simulator_pricing import SimulatorPricing
from neuroshard.plus.starts import starts_of
from neuroshard.settings import SearchSettings
from neuroshard.solver import NeuroShard
from shardgym.costs.simulator import SimulatorCost
from shardgym.errors import NoFeasiblePlanError
from shardgym.plan import ShardingPlan

#: A published search in a third of the time of the full one, for a start.
_NARROW = SearchSettings(beam_width=1, candidates=4, levels=4, grid=4)
#: Where tables take more than this share of the memory, a narrow search finds poor plans at best, and descents from
#: them get stuck; the full one makes sure that the result is not worse than its own.
_TIGHT = 0.8


class ExactSearch:
    """Starts from a published search, a narrow one unless memory is tight; before kicks, from greedy cutting too.

    Args:
        shelf: of the task.
        cost: an oracle.
        settings: how thoroughly.
        budget: of time; may run out in the middle.
        rng: of the kicks.
        best: is offered every start and what every descent ends in.
    """

    def __init__(
        self, shelf: Shelf, cost: SimulatorCost, settings: PlusSettings, budget: Budget, rng: np.random.Generator,
        best: Best,
    ) -> None:  # fmt: skip
        self._shelf, self._cost, self._settings, self._budget = shelf, cost, settings, budget
        self._rng, self._best = rng, best

    def run(self, initial: ShardingPlan | None, left_s: float | None) -> None:
        """Search.

        Args:
            initial: another plan to start from.
            left_s: seconds until time is up.

        Raises:
            OutOfTime: the budget is spent.
            NoFeasiblePlanError: no packing was found.
            InputError: the cost model does not know tasks of this kind.
        """
        start = self._published_search(initial, left_s)
        self._budget.check()
        pricing = SimulatorPricing(self._shelf, self._cost)
        pricing.learn_slope()
        search = Search(pricing, self._settings, self._budget, self._rng, self._found)
        best = search.run(starts_of(pricing, search.objective, self._budget, start), 0)
        kicks = self._settings.kicks_within(self._shelf.task.num_tables, limited=self._budget.limited)
        if kicks != 0:
            cut = cut_greedily(pricing, search.objective, self._budget, search.offer)
            if cut is not None:
                best = min(best, search.run([cut], 0), key=lambda placement: placement.value)
            search.run([best.units], kicks)

    def _published_search(self, initial: ShardingPlan | None, left_s: float | None) -> ShardingPlan | None:
        """Return what the narrow published search finds, if anything."""
        task = self._shelf.task
        tight = task.total_bytes > _TIGHT * task.topology.total_memory_bytes
        chosen = SearchSettings() if tight else _NARROW
        search = NeuroShard(chosen.beam_width, chosen.candidates, chosen.levels, chosen.grid)
        try:
            return search.solve(task, self._cost, time_limit_s=left_s, initial_plan=initial, observer=self._published)
        except NoFeasiblePlanError:
            return None  # cuts at other places than the middle may still lead to one

    def _published(self, plan: ShardingPlan, cost_ms: float) -> None:
        self._best.take(lambda: plan, cost_ms)

    def _found(self, placement: Placement) -> None:
        self._best.take(lambda: plan_of(self._shelf, placement.units), placement.total_ms)
