"""NeuroShardPlus as a solver: local search from constructed placements, and from NeuroShard's plan."""

from __future__ import annotations

import contextlib
import dataclasses
import math

import numpy as np

from neuroshard.packing import pack_units
from neuroshard.plus.construction import constructed
from neuroshard.plus.linear_model import LinearModel, linear_model
from neuroshard.plus.local_search import Allocation, IteratedLocalSearch, PlusSettings, compile_search
from neuroshard.plus.pricing import EstimatedPricing, ExactPricing, Pricing
from neuroshard.shard_table import ShardTable, plan_of_units, units_of
from neuroshard.solver import ColumnSolver, NeuroShard
from shardgym.arguments import check_instance
from shardgym.arrays import Ints
from shardgym.costs.base import CostModel
from shardgym.errors import NoFeasiblePlanError
from shardgym.incumbent import Budget, Incumbent, OutOfTime
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask

#: Where tables take more than this share of the memory, a narrow NeuroShard search finds poor plans at best.
_TIGHT = 0.8
#: Plans that a cost model which is not additive evaluates, without a limit of time.
_DEFAULT_QUERIES = 32
#: Plans of one query: enough to make up for what the estimate gets wrong, few enough to learn in between.
_PLANS_PER_QUERY = 8
#: Kicks between queries.
_KICKS_PER_QUERY = 16


class NeuroShardPlus(ColumnSolver):
    """Local search over the columns of each table on each device, from tables cut in many ways.

    Example:
        >>> plan = NeuroShardPlus().solve(task, cost, time_limit_s=1.0)    # doctest: +SKIP

    Args:
        kicks: how often the best plan is disturbed and improved again. When None: until the time limit where there is
            one, else 128 times or until two million moves were looked at; with costs that are not additive 16 times
            between queries.
        kick_moves: tables that a kick takes off, cuts anew and places again at most.
        shortlist: moves of a device that are priced exactly.
        sources: most loaded devices that are tried before a plan counts as done.
        softness: width of the soft maximum, as a share of what devices take on average.
        queries: plans that cost models which are not additive evaluate at most. When None: 32 without a time limit, any
            number with one.
        keep_on_interrupt: return the best plan so far on Ctrl-C, instead of passing the interrupt on.

    Raises:
        InputError: a setting is out of range or of another type.
    """

    def __init__(
        self, kicks: int | None = None, kick_moves: int = 4, shortlist: int = 8, sources: int = 2,
        softness: float = 0.005, queries: int | None = None, keep_on_interrupt: bool = False,
    ) -> None:  # fmt: skip
        self.settings = PlusSettings(kicks, kick_moves, shortlist, sources, softness, queries)
        check_instance("keep_on_interrupt", keep_on_interrupt, bool)
        if keep_on_interrupt:
            self._ends = (OutOfTime, KeyboardInterrupt)

    def warm_up(self, task: ShardingTask, cost: CostModel) -> None:
        """Compile the search, and NeuroShard's, which gives plans to start from."""
        NeuroShard().warm_up(task, cost)
        compile_search()

    def search(self, shards: ShardTable, cost: CostModel, seed: int, budget: Budget, incumbent: Incumbent) -> None:
        """Search with exact prices where the cost model is additive, else with estimates that are corrected."""
        rng = np.random.default_rng(seed)
        costs = cost.additive()
        if costs is None:
            estimate = EstimatedPricing(shards, cost, self.settings.softness, budget)
            _EstimateSearch(estimate, self.settings, budget, rng, incumbent).run()
            return
        if cost.learned:
            self._search_as_published(shards, cost, seed, budget, incumbent)
        pricing = ExactPricing(shards, costs, self.settings.softness)

        def found(allocation: Allocation) -> None:
            incumbent.update(lambda: plan_of_units(shards, allocation.units), allocation.total_ms)

        search = IteratedLocalSearch(pricing, self.settings, budget, rng, found)
        model = linear_model(pricing, examples_of(pricing))
        search.run(model, starts_of(search, model, shards, incumbent))

    def pack(self, shards: ShardTable) -> ShardingPlan:
        """Halve tables, or cut them anywhere."""
        return plan_of_units(shards, pack_units(shards))

    def _search_as_published(
        self, shards: ShardTable, cost: CostModel, seed: int, budget: Budget, incumbent: Incumbent
    ) -> None:
        """Start from NeuroShard's plan, which runs compiled over a simulator."""
        tight = shards.task.total_bytes > _TIGHT * shards.task.total_capacity_bytes
        # The narrow one takes a third of the time of the full one.
        published = NeuroShard() if tight else NeuroShard(beam_width=1, candidates=4, levels=4, grid=4)
        # Where it finds no plan, cuts at other places than the middle may still lead to one.
        with contextlib.suppress(NoFeasiblePlanError):
            published.search(shards, cost, seed, budget, incumbent)


def examples_of(pricing: Pricing) -> list[Ints]:
    """Return units of constructed placements, by what shards take alone: devices such as the search will see."""
    whole = [np.eye(pricing.shards.task.num_devices, 1, dtype=np.int64) * pricing.shards.units]
    return [placement.units for placement in constructed(linear_model(pricing, whole))]


def starts_of(search: IteratedLocalSearch, model: LinearModel, shards: ShardTable, incumbent: Incumbent) -> list[Ints]:
    """Return what constructed placements lead to, and the incumbent; a packing where there is neither.

    Raises:
        NoFeasiblePlanError: no packing was found.
    """
    starts = search.starts(model)
    given = units_of(shards, incumbent.plan()) if incumbent.cost_ms < math.inf else None
    if given is not None:
        starts.append(given)
    return starts or [pack_units(shards)]


class _EstimateSearch:
    """Searches with an additive estimate, has the most promising plans evaluated, learns, and searches again."""

    def __init__(
        self, pricing: EstimatedPricing, settings: PlusSettings, budget: Budget, rng: np.random.Generator,
        incumbent: Incumbent,
    ) -> None:  # fmt: skip
        self._pricing = pricing
        self._budget = budget
        self._incumbent = incumbent
        kicks = _KICKS_PER_QUERY if settings.kicks is None else settings.kicks
        settings = dataclasses.replace(settings, kicks=kicks)
        # A step more here would be a plan less that is evaluated, so that there is nothing to nest.
        self._search = IteratedLocalSearch(pricing, settings, budget, rng, self._found, nested=False)
        default = math.inf if budget.limited else _DEFAULT_QUERIES
        self._queries_left = default if settings.queries is None else settings.queries
        # Allocations by what they hold: found and not evaluated yet, and evaluated.
        self._candidates: dict[bytes, Allocation] = {}
        self._evaluated: set[bytes] = set()

    def run(self) -> None:
        """Search until queries are used up or nothing new comes up.

        Raises:
            OutOfTime: the budget is spent.
            NoFeasiblePlanError: no packing was found.
        """
        shards = self._pricing.shards
        while self._queries_left:
            model = linear_model(self._pricing, [])
            starts = starts_of(self._search, model, shards, self._incumbent)
            self._search.run(model, starts)
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
        costs = self._incumbent.offer(*(plan_of_units(self._pricing.shards, units) for units in chosen))
        self._pricing.learn(chosen, costs)
        self._queries_left -= len(chosen)
        self._evaluated |= {units.tobytes() for units in chosen}
        self._candidates.clear()
