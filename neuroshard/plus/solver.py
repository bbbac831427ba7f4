"""NeuroShardPlus as a solver: a NeuroShard search, and local search from the plan that it finds."""

from __future__ import annotations

import time

import numpy as np

from neuroshard.beam import SearchSettings
from neuroshard.packing import pack_units
from neuroshard.plus.construction import cut_greedily, starts_of
from neuroshard.plus.local_search import LocalSearch, PlusSettings
from neuroshard.plus.moves import Allocation
from neuroshard.plus.pricing import AdditivePricing, SimulatorPricing
from neuroshard.shard_table import ShardTable, plan_of_units
from neuroshard.solver import NeuroShard
from shardgym.arguments import check_instance
from shardgym.arrays import Ints
from shardgym.costs.base import CostModel
from shardgym.costs.simulator import SimulatorCost
from shardgym.errors import NoFeasiblePlanError
from shardgym.incumbent import Budget, Incumbent, OutOfTime
from shardgym.plan import ShardingPlan, check_possible
from shardgym.solver import Observer, check_solve_arguments
from shardgym.task import ShardingTask

#: A published search in a third of the time of the full one, for a start.
_NARROW = SearchSettings(beam_width=1, candidates=4, levels=4, grid=4)
#: Where tables take more than this share of the memory, a narrow search finds poor plans at best, and descents from
#: them get stuck; the full one makes sure that the result is not worse than its own.
_TIGHT = 0.8
#: Plans of one query: enough to make up for what the estimate gets wrong, few enough to learn in between.
_PLANS_PER_QUERY = 8
#: Kicks between queries.
_KICKS_PER_ROUND = 3


class NeuroShardPlus:
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
        self._ends: tuple[type[BaseException], ...] = (OutOfTime, *([KeyboardInterrupt] if keep_on_interrupt else []))

    def warm_up(self, task: ShardingTask, cost: CostModel) -> None:
        """Compile NeuroShard's search, which gives the plans to start from."""
        NeuroShard().warm_up(task, cost)

    def solve(
        self,
        task: ShardingTask,
        cost: CostModel,
        seed: int = 0,
        *,
        time_limit_s: float | None = None,
        initial_plan: ShardingPlan | None = None,
        observer: Observer | None = None,
    ) -> ShardingPlan:
        """Return the best plan found.

        Raises:
            NoFeasiblePlanError: shards cannot be packed however tables are halved, or no packing was found.
            InfeasiblePlanError: `initial_plan` is infeasible.
            InputError: `initial_plan` is for another task, or `cost` cannot price tasks of this kind; or an argument is
                of another kind.
            MeasurementError: `cost` has no time for a shard alone on a device.
        """
        check_solve_arguments(task, cost, seed, time_limit_s=time_limit_s, initial_plan=initial_plan, observer=observer)
        start = time.monotonic()
        budget = Budget(time_limit_s)
        rng = np.random.default_rng(seed)
        check_possible(task)
        incumbent = Incumbent(task, cost, observer)
        shards = ShardTable(task)
        if initial_plan is not None:
            initial_plan.validate(task)
            incumbent.offer(initial_plan)
        try:
            if isinstance(cost, SimulatorCost) and cost.role == "oracle":
                left_s = None if time_limit_s is None else max(time_limit_s - (time.monotonic() - start), 0.0)
                published = _published_plan(task, cost, incumbent, initial_plan, left_s)
                budget.check()
                _search_by_simulator(shards, cost, self.settings, budget, rng, incumbent, published)
            else:
                pricing = AdditivePricing(shards, cost, self.settings.softness, budget)
                _EstimateSearch(pricing, self.settings, budget, rng, incumbent).run(initial_plan)
        except NoFeasiblePlanError:
            if initial_plan is None:
                raise
        except self._ends:
            pass
        if incumbent.cost_ms == float("inf"):
            incumbent.offer(plan_of_units(shards, pack_units(shards)))
        return incumbent.plan()


def _published_plan(
    task: ShardingTask, cost: SimulatorCost, incumbent: Incumbent, initial_plan: ShardingPlan | None,
    left_s: float | None,
) -> ShardingPlan | None:  # fmt: skip
    """Return what the published search finds, a narrow one unless memory is tight; None when it finds nothing."""
    tight = task.total_bytes > _TIGHT * task.topology.total_memory_bytes
    settings = SearchSettings() if tight else _NARROW
    search = NeuroShard(settings.beam_width, settings.candidates, settings.levels, settings.grid)

    def improved(plan: ShardingPlan, cost_ms: float) -> None:
        incumbent.update(lambda: plan, cost_ms)

    try:
        return search.solve(task, cost, time_limit_s=left_s, initial_plan=initial_plan, observer=improved)
    except NoFeasiblePlanError:
        return None  # cuts at other places than the middle may still lead to one


def _search_by_simulator(
    shards: ShardTable, cost: SimulatorCost, settings: PlusSettings, budget: Budget, rng: np.random.Generator,
    incumbent: Incumbent, start: ShardingPlan | None,
) -> None:  # fmt: skip
    """Search with exact prices: a descent from a plan, and where there are kicks, one from greedy cutting first.

    Raises:
        OutOfTime: the budget is spent.
        NoFeasiblePlanError: no packing was found.
        InputError: the cost model does not know tasks of this kind.
    """

    def found(allocation: Allocation) -> None:
        incumbent.update(lambda: plan_of_units(shards, allocation.units), allocation.total_ms)

    pricing = SimulatorPricing(shards, cost, settings.softness)
    pricing.fit_column_price()
    search = LocalSearch(pricing, settings, budget, rng, found)
    best = search.run(starts_of(pricing, budget, start), 0)
    kicks = settings.kicks_within(shards.task.num_tables, limited=budget.limited)
    if kicks != 0:
        cut = cut_greedily(pricing, budget, search.offer)
        if cut is not None:
            best = min(best, search.run([cut], 0), key=lambda allocation: allocation.value)
        search.run([best.units], kicks)


class _EstimateSearch:
    """Searches with an additive estimate, has the most promising plans evaluated, learns, and searches again."""

    def __init__(
        self, pricing: AdditivePricing, settings: PlusSettings, budget: Budget, rng: np.random.Generator,
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

    def run(self, initial_plan: ShardingPlan | None) -> None:
        """Search until queries are used up or nothing new comes up.

        Raises:
            OutOfTime: the budget is spent.
            NoFeasiblePlanError: no packing was found.
        """
        self._pricing.fit_column_price()
        starts = starts_of(self._pricing, self._budget, initial_plan)
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
