"""NeuroShardPlus as a solver: a NeuroShard search, and local search from the plan that it finds."""

from __future__ import annotations

import contextlib
import math

import numpy as np

from neuroshard.packing import pack_units
from neuroshard.plus.construction import cut_greedily, starts_of
from neuroshard.plus.local_search import LocalSearch, PlusSettings
from neuroshard.plus.moves import Allocation
from neuroshard.plus.pricing import EstimatedPricing, ExactPricing
from neuroshard.shard_table import ShardTable, plan_of_units
from neuroshard.solver import ColumnSolver, NeuroShard
from shardgym.arguments import check_instance
from shardgym.arrays import Ints
from shardgym.costs.base import CostModel
from shardgym.errors import NoFeasiblePlanError
from shardgym.incumbent import Budget, Incumbent, OutOfTime
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask

#: Where tables take more than this share of the memory, a narrow search finds poor plans at best, and descents from
#: them get stuck; the full one makes sure that the result is not worse than its own.
_TIGHT = 0.8
#: Plans of one query: enough to make up for what the estimate gets wrong, few enough to learn in between.
_PLANS_PER_QUERY = 8
#: Kicks between queries.
_KICKS_PER_ROUND = 3


class NeuroShardPlus(ColumnSolver):
    """Local search over the columns of each table on each device, from greedy placements and a NeuroShard search.

    Example:
        >>> plan = NeuroShardPlus().solve(task, cost, time_limit_s=1.0)    # doctest: +SKIP

    Args:
        kicks: how often the best plan is disturbed and improved again. When None: with the learned simulator until
            the time limit where there is one, else only on tasks of fewer than 10 tables; with other cost models 3
            times between queries.
        kick_moves: random moves of one kick.
        shortlist: moves of a device whose communication is predicted.
        sources: most loaded devices that are tried before a plan counts as done.
        softness: width of the soft maximum, as a share of mean compute.
        queries: plans that cost models other than the learned simulator evaluate at most. When None: 32 without a time
            limit, any number with one.
        keep_on_interrupt: return the best plan so far on Ctrl-C, instead of passing the interrupt on.

    Raises:
        InputError: a setting is out of range or of another type.
    """

    def __init__(
        self, kicks: int | None = None, kick_moves: int = 2, shortlist: int = 4, sources: int = 2,
        softness: float = 0.01, queries: int | None = None, keep_on_interrupt: bool = False,
    ) -> None:  # fmt: skip
        self.settings = PlusSettings(kicks, kick_moves, shortlist, sources, softness, queries)
        check_instance("keep_on_interrupt", keep_on_interrupt, bool)
        if keep_on_interrupt:
            self._ends = (OutOfTime, KeyboardInterrupt)

    def warm_up(self, task: ShardingTask, cost: CostModel) -> None:
        """Compile NeuroShard's search, which gives the plans to start from."""
        NeuroShard().warm_up(task, cost)

    def search(self, shards: ShardTable, cost: CostModel, seed: int, budget: Budget, incumbent: Incumbent) -> None:
        """Search with exact prices where the cost model is a learned oracle, else with estimates that are corrected."""
        rng = np.random.default_rng(seed)
        # On roofline, which is additive too, exact prices are no better on every task, and take as long.
        costs = cost.additive() if cost.learned else None
        if costs is None:
            estimate = EstimatedPricing(shards, cost, self.settings.softness, budget)
            _EstimateSearch(estimate, self.settings, budget, rng, incumbent).run()
            return
        tight = shards.task.total_bytes > _TIGHT * shards.task.topology.total_memory_bytes
        # The narrow one takes a third of the time of the full one.
        published = NeuroShard() if tight else NeuroShard(beam_width=1, candidates=4, levels=4, grid=4)
        # Where it finds no plan, cuts at other places than the middle may still lead to one.
        with contextlib.suppress(NoFeasiblePlanError):
            published.search(shards, cost, seed, budget, incumbent)
        pricing = ExactPricing(shards, costs, self.settings.softness)
        self._descend(pricing, budget, rng, incumbent)

    def pack(self, shards: ShardTable) -> ShardingPlan:
        """Halve tables, or cut them anywhere."""
        return plan_of_units(shards, pack_units(shards))

    def _descend(self, pricing: ExactPricing, budget: Budget, rng: np.random.Generator, incumbent: Incumbent) -> None:
        """Descend from the incumbent, and where there are kicks, from greedy cutting, before the kicks."""
        shards = pricing.shards

        def found(allocation: Allocation) -> None:
            incumbent.update(lambda: plan_of_units(shards, allocation.units), allocation.total_ms)

        pricing.fit_column_price()
        search = LocalSearch(pricing, self.settings, budget, rng, found)
        best = search.run(starts_of(pricing, budget, _plan_or_none(incumbent)), 0)
        kicks = self.settings.kicks_within(shards.task.num_tables, limited=budget.limited)
        if kicks != 0:
            cut = cut_greedily(pricing, budget, search.offer)
            if cut is not None:
                best = min(best, search.run([cut], 0), key=lambda allocation: allocation.value)
            search.run([best.units], kicks)


def _plan_or_none(incumbent: Incumbent) -> ShardingPlan | None:
    return incumbent.plan() if incumbent.cost_ms < math.inf else None


class _EstimateSearch:
    """Searches with an additive estimate, has the most promising plans evaluated, learns, and searches again."""

    def __init__(
        self, pricing: EstimatedPricing, settings: PlusSettings, budget: Budget, rng: np.random.Generator,
        incumbent: Incumbent,
    ) -> None:  # fmt: skip
        self._pricing = pricing
        self._budget = budget
        self._incumbent = incumbent
        self._search = LocalSearch(pricing, settings, budget, rng, self._found)
        self._kicks = _KICKS_PER_ROUND if settings.kicks is None else settings.kicks
        self._queries_left = settings.queries_within(limited=budget.limited)
        # Allocations by what they hold: found and not evaluated yet, and evaluated.
        self._candidates: dict[bytes, Allocation] = {}
        self._evaluated: set[bytes] = set()
        self._best_units: Ints | None = None

    def run(self) -> None:
        """Search until queries are used up or nothing new comes up.

        Raises:
            OutOfTime: the budget is spent.
            NoFeasiblePlanError: no packing was found.
        """
        self._pricing.fit_column_price()
        starts = starts_of(self._pricing, self._budget, _plan_or_none(self._incumbent))
        self._evaluate(starts)
        cut = cut_greedily(self._pricing, self._budget, self._search.offer)
        starts += [] if cut is None else [cut]
        while self._queries_left:
            self._search.run([*starts, *([] if self._best_units is None else [self._best_units])], self._kicks)
            if not self._candidates:
                return
            promising = sorted(self._candidates.values(), key=lambda allocation: allocation.total_ms)
            self._evaluate([allocation.units for allocation in promising])

    def _found(self, allocation: Allocation) -> None:
        """Remember an allocation that has not been evaluated."""
        key = allocation.units.tobytes()
        if key not in self._evaluated:
            self._candidates[key] = allocation

    def _evaluate(self, candidates: list[Ints]) -> None:
        """Evaluate the first candidates and learn from what they cost; the others are forgotten."""
        self._budget.check()
        chosen = candidates[: int(min(self._queries_left, _PLANS_PER_QUERY))]
        before = self._incumbent.cost_ms
        costs = self._incumbent.offer(*(plan_of_units(self._pricing.shards, units) for units in chosen))
        cheapest = int(np.argmin([cost.total_ms for cost in costs]))
        if costs[cheapest].total_ms < before:
            self._best_units = chosen[cheapest]
        self._pricing.learn(chosen, costs)
        self._queries_left -= len(chosen)
        self._evaluated |= {units.tobytes() for units in chosen}
        self._candidates.clear()
