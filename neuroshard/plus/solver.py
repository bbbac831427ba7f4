"""NeuroShardPlus as a solver: local search from constructed placements, and from NeuroShard's plan."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from neuroshard.packing import pack_units
from neuroshard.plus.construction import constructed
from neuroshard.plus.groups import GroupCosts, group_sizes, plan_of_groups, task_of_group
from neuroshard.plus.kinds import model_beside, shared_for_room, shared_on_average, with_better_kinds
from neuroshard.plus.linear_model import LinearModel, linear_model
from neuroshard.plus.local_search import Allocation, IteratedLocalSearch, PlusSettings, compile_search
from neuroshard.plus.moving import Moving
from neuroshard.plus.pricing import EstimatedPricing, ExactPricing, Pricing
from neuroshard.plus.sharing import SHARED_TYPES, Form, Shared, forms_of, places_of
from neuroshard.plus.tiered_pricing import TieredPricing
from neuroshard.plus.tiers import TieredShards
from neuroshard.row_splits import splits_of
from neuroshard.shard_table import ShardTable, plan_of_units, units_of
from neuroshard.solver import ColumnSolver, NeuroShard
from shardgym.arguments import check_instance, check_list
from shardgym.arrays import Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.incumbent import Budget, Incumbent, OutOfTime
from shardgym.plan import ShardingPlan
from shardgym.records import short_repr
from shardgym.shard import Shard
from shardgym.task import ShardingTask, exact_bytes

#: Where tables take more than this share of the memory, a narrow NeuroShard search finds poor plans at best.
_TIGHT = 0.8
#: Plans that a cost model which is not additive evaluates, without a limit of time.
_DEFAULT_QUERIES = 32
#: Plans of one query: enough to make up for what the estimate gets wrong, few enough to learn in between.
_PLANS_PER_QUERY = 8
#: Choices of tables to share that are searched from, besides none.
_WAYS = 5
#: Kicks between queries.
_KICKS_PER_QUERY = 16

#: Makes the plan of all groups from the shards of the first one.
InGroups = Callable[[Iterable[Shard]], ShardingPlan]


class NeuroShardPlus(ColumnSolver):
    """Local search over the columns of each table on each device, and over the tables that devices share.

    With an additive cost, a table may be cut by rows over all devices, over those of one node, or, cut by columns
    first, over those of each node; or be replicated. `kinds.py` chooses which. The plan is never worse than what
    columns alone lead to. Where a task allows groups of 2D parallelism, their size is chosen, too. Simulators price no
    replicas. With other costs, tables are cut by columns alone.

    Where tables take more than 80 % of the memory of devices, hosts have memory, and the cost prices it, each device
    keeps the rows that save the most time per byte (`tiers.py`); the others are read from the host, through a cache
    where nobody knows which rows are popular.

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
        sharding_types: what tables may be besides `table_wise`, `column_wise` and `table_column_wise`, by TorchRec's
            names: some of `row_wise`, `table_row_wise`, `grid_shard`, `data_parallel`.
        row_cuts: whether popular rows of a shard may be in the memory of its device and the others in that of its host,
            and shards of a table may have caches of different sizes. TorchRec has one kernel and one cache for each
            table: without, plans can be exported to it.

    Raises:
        InputError: a setting is out of range or of another type.
    """

    def __init__(
        self, kicks: int | None = None, kick_moves: int = 4, shortlist: int = 8, sources: int = 2,
        softness: float = 0.005, queries: int | None = None, keep_on_interrupt: bool = False,
        sharding_types: Sequence[str] = SHARED_TYPES, row_cuts: bool = True,
    ) -> None:  # fmt: skip
        check_instance("row_cuts", row_cuts, bool)
        self.row_cuts = row_cuts
        self.settings = PlusSettings(kicks, kick_moves, shortlist, sources, softness, queries)
        check_instance("keep_on_interrupt", keep_on_interrupt, bool)
        if keep_on_interrupt:
            self._ends = (OutOfTime, KeyboardInterrupt)
        self.sharding_types = tuple(check_list("sharding_types", sharding_types, "names of sharding types"))
        for name in self.sharding_types:
            if name not in SHARED_TYPES:
                known = ", ".join(SHARED_TYPES)
                raise InputError(f"sharding_types: expected some of {known}, got {short_repr(name)}")

    def uses_hosts(self, task: ShardingTask, cost: CostModel) -> bool:
        """See `ColumnSolver`."""
        return cost.host_memory and task.topology.host_memory_bytes > 0 and cost.additive() is not None

    def warm_up(self, task: ShardingTask, cost: CostModel) -> None:
        """Compile the search, and NeuroShard's, which gives plans to start from."""
        NeuroShard().warm_up(task, cost)
        compile_search()

    def search(self, shards: ShardTable, cost: CostModel, seed: int, budget: Budget, incumbent: Incumbent) -> None:
        """Search with exact prices where the cost model is additive, else with estimates that are corrected."""
        costs = cost.additive()
        if costs is None:
            estimate = EstimatedPricing(shards, cost, self.settings.softness, budget)
            estimate.moving = moving_from(shards, incumbent)
            _EstimateSearch(estimate, self.settings, budget, np.random.default_rng(seed), incumbent).run()
            return
        if cost.learned:
            self._search_as_published(shards, cost, seed, budget, incumbent)
        task = shards.task
        in_host = self.uses_hosts(task, cost)
        kinds = {kind for kind in self.sharding_types if cost.replicas or kind != "data_parallel"}
        if not in_host or task.total_bytes <= task.total_capacity_bytes:
            try:
                self._search_in_devices(shards, costs, kinds, cost.replicas, seed, budget, incumbent)
            except NoFeasiblePlanError:
                if not in_host:
                    raise
        if in_host and (task.total_bytes > _TIGHT * task.total_capacity_bytes or incumbent.cost_ms == math.inf):
            self._search_in_tiers(task, costs, kinds, seed, budget, incumbent)

    def _search_in_devices(
        self, shards: ShardTable, costs: AdditiveCosts, kinds: set[str], in_groups: bool, seed: int, budget: Budget,
        incumbent: Incumbent,
    ) -> None:  # fmt: skip
        """Search with all rows in the memory of devices, in groups of 2D parallelism where these are allowed.

        Raises:
            OutOfTime: the budget is spent.
            NoFeasiblePlanError: no packing was found.
        """
        task = shards.task

        def search_on(shards: ShardTable, costs: AdditiveCosts, place: InGroups | None) -> _ExactSearch:
            pricing = ExactPricing(shards, costs, self.settings.softness)
            if place is None:
                pricing.moving = moving_from(shards, incumbent)
            forms = forms_of(shards.task, costs, kinds)
            return _ExactSearch(pricing, forms, self.settings, budget, seed, incumbent, place)

        best = search_on(shards, costs, None)
        # What columns alone lead to says which groups are worth a search; smaller and smaller ones, while that helps.
        for size in group_sizes(task) if in_groups else ():
            of_group = ShardTable(task_of_group(task, size))
            place = functools.partial(plan_of_groups, task, size=size)
            other = search_on(of_group, GroupCosts(costs, task, size), place)
            if other.columns_ms() >= best.columns_ms():
                break
            best = other
        best.run()

    def _search_in_tiers(
        self, task: ShardingTask, costs: AdditiveCosts, kinds: set[str], seed: int, budget: Budget,
        incumbent: Incumbent,
    ) -> None:  # fmt: skip
        """Search with rows in the memory of devices and hosts; first comes a plan by memory alone.

        Raises:
            OutOfTime: the budget is spent.
            NoFeasiblePlanError: no packing was found, or none for which hosts have room.
        """
        forms = forms_of(task, costs, kinds, in_host=True)
        splits = splits_of(task, costs, in_host=True, row_cuts=self.row_cuts)
        # Of cached rows, hosts have all: where they have no room for that, tables are in one memory or the other.
        uncached = [[split for split in of_table if not split.shards[0].cache_load_factor] for of_table in splits]
        for of_tables in (splits, uncached):
            shards = TieredShards(task, costs, of_tables)
            pricing = TieredPricing(shards, costs, self.settings.softness, alike=not self.row_cuts)
            search = _ExactSearch(pricing, forms, self.settings, budget, seed, incumbent)
            with contextlib.suppress(NoFeasiblePlanError):
                search.found(Allocation(pricing, pack_units(shards)))
            search.run()
            if incumbent.cost_ms < math.inf:
                return
        raise NoFeasiblePlanError(
            f"neuroshard_plus found no plan: the hosts have {exact_bytes(task.topology.host_memory_bytes)} each, and "
            "no room for the rows for which devices have none; what helps: more memory of hosts or devices"
        )

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


def starts_of(
    search: IteratedLocalSearch, model: LinearModel, shards: ShardTable, incumbent: Incumbent | None
) -> list[Ints]:
    """Return what constructed placements lead to, and the incumbent if there is one; a packing where there is neither.

    Raises:
        NoFeasiblePlanError: no packing was found, or none was looked for, as devices share tables.
    """
    starts = search.starts(model)
    if search.pricing.shared.places:
        if not starts:
            raise NoFeasiblePlanError("columns find no room beside the tables that devices share")
        return starts
    given = units_of(shards, incumbent.plan()) if incumbent is not None and incumbent.cost_ms < math.inf else None
    if given is not None:
        starts.append(given)
    return starts or [pack_units(shards)]


def moving_from(shards: ShardTable, incumbent: Incumbent) -> Moving | None:
    """Return what moving from the plan in use takes; None where there is none."""
    return None if incumbent.in_use is None else Moving(shards, incumbent.in_use)


class _ExactSearch:
    """Searches over columns by exact prices: where nothing is shared, and from what seems best to share.

    Args:
        pricing: of the task, where nothing is shared.
        forms: in which tables can be shared.
        settings: how thoroughly.
        budget: of time.
        seed: of the kicks.
        incumbent: is told of every plan.
        in_groups: of a search on the devices of one group, makes the plan of all groups; None for all devices.
    """

    def __init__(
        self, pricing: ExactPricing, forms: Sequence[Sequence[Form]], settings: PlusSettings, budget: Budget, seed: int,
        incumbent: Incumbent, in_groups: InGroups | None = None,
    ) -> None:  # fmt: skip
        self._pricing = pricing
        self._forms = forms
        self._settings = settings
        self._budget = budget
        self._seed = seed
        self._incumbent = incumbent
        self._in_groups = in_groups
        self._model = linear_model(pricing, examples_of(pricing))

    @functools.cached_property
    def _by_columns(self) -> Allocation | None:
        return self._descended(self._pricing.shared)

    def columns_ms(self) -> float:
        """Return what the plan takes that a descent by columns alone leads to; infinite where they find no room.

        Raises:
            OutOfTime: the budget is spent.
        """
        return math.inf if self._by_columns is None else self._by_columns.total_ms

    def run(self) -> None:
        """Search until kicks are used up, or for as long as there is time and they bring anything.

        Raises:
            OutOfTime: the budget is spent.
            NoFeasiblePlanError: no packing was found.
        """
        given = self._given()
        tried = [self._by_columns]
        ways = shared_on_average(self._pricing, self._forms, self._budget)
        tried += [self._descended(shared) for shared in ways[:_WAYS]]
        tried += given
        if not any(tried):
            for_room = shared_for_room(self._pricing, self._forms, self._budget)
            found = (allocation for shared in for_room if (allocation := self._descended(shared)) is not None)
            tried = [*itertools.islice(found, _WAYS)]
        descended = [
            _nearer(self._search_beside(allocation.pricing.shared), allocation)
            for allocation in tried
            if allocation is not None
        ]
        if not descended:
            pack_units(self._pricing.shards)  # says why there is no plan
        # Step by step, rows and replicas lead elsewhere than both together.
        by_rows = [[form for form in forms if form.kind != "data_parallel"] for forms in self._forms]
        replicas = [[form for form in forms if form.kind == "data_parallel"] for forms in self._forms]
        best = min((self._flipped(descended[0], forms) for forms in (by_rows, replicas)), key=lambda one: one.value)
        best = min((self._flipped(one, self._forms) for one in (best, *descended[1:])), key=lambda one: one.value)
        kicked = []
        # Kicks bring more to some plans than to others: that by columns alone is improved in any case.
        for allocation in dict.fromkeys((descended[0], best)):
            search = self._search_beside(allocation.pricing.shared)
            model = model_beside(self._model, search.pricing)
            kicked.append((search, model, search.kicked(model, search.sampled(allocation))))
        search, model, best = min(kicked, key=lambda end: end[2].value)
        search.kicked_on(model, _nearer(search, best))

    def _flipped(self, allocation: Allocation, forms: Sequence[Sequence[Form]]) -> Allocation:
        return with_better_kinds(allocation, forms, self._model, self._search_beside)

    def _search_beside(self, shared: Shared) -> IteratedLocalSearch:
        """Return the search over the columns of the tables that are not shared."""
        rng = np.random.default_rng(self._seed)
        return IteratedLocalSearch(self._pricing.beside(shared), self._settings, self._budget, rng, self.found)

    def _descended(self, shared: Shared) -> Allocation | None:
        """Return what a descent leads to; None where columns find no room."""
        search = self._search_beside(shared)
        model = model_beside(self._model, search.pricing)
        if len(shared.places) == len(model.units):  # no columns are left to place
            return search.offer(np.zeros((len(model.memory), len(model.units)), dtype=np.int64))
        try:
            given = self._incumbent if self._in_groups is None else None
            return search.descended(model, starts_of(search, model, self._pricing.shards, given))
        except NoFeasiblePlanError:
            return None

    def _given(self) -> list[Allocation]:
        """Return the incumbent, if devices share tables in it."""
        if self._incumbent.cost_ms == math.inf or self._in_groups is not None:
            return []
        shards = self._pricing.shards
        plan = self._incumbent.plan()
        places = places_of(shards.task, plan, self._forms)
        shared = self._pricing.shared.changed([], places)
        units = units_of(shards, plan, shared.places) if places else None
        if units is None:
            return []
        search = self._search_beside(shared)
        return [search.descended(model_beside(self._model, search.pricing), [units])]

    def found(self, allocation: Allocation) -> None:
        """Offer the plan of an allocation."""

        def plan() -> ShardingPlan:
            of_devices = allocation.pricing.plan(allocation.units)
            return of_devices if self._in_groups is None else self._in_groups(of_devices.shards)

        self._incumbent.update(plan, allocation.total_ms)


def _nearer(search: IteratedLocalSearch, best: Allocation) -> Allocation:
    """Return an allocation that is nearer to the plan in use, if there is one and that is better.

    Devices change places, as far as that lets them keep more; then columns of tables go back where they were, one table
    after the other.
    """
    moving = best.pricing.moving
    if moving is None:
        return best
    shards = best.pricing.shards
    room = best.pricing.memory

    def better(units: Ints) -> Allocation:
        if (shards.bytes[shards.first + units].sum(axis=1) > room).any():
            return best
        other = Allocation(best.pricing, units)
        return search.offer(units) if other.value < best.value else best

    best = better(best.units[moving.like(best.units)])
    there = np.flatnonzero((moving.kept.sum(axis=0) == best.pricing.units) & (best.pricing.units > 0))
    improved = True
    while improved:
        before = best
        for table in there[(best.units[:, there] != moving.kept[:, there]).any(axis=0)].tolist():
            units = best.units.copy()
            units[:, table] = moving.kept[:, table]
            best = better(units)
        improved = best is not before
    return best


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
            promising = sorted(self._candidates.values(), key=self._expected_ms)
            self._evaluate([allocation.units for allocation in promising])

    def _found(self, allocation: Allocation) -> None:
        """Remember an allocation that has not been evaluated."""
        key = allocation.units.tobytes()
        if key not in self._evaluated:
            self._candidates[key] = allocation

    def _expected_ms(self, allocation: Allocation) -> float:
        return allocation.total_ms + self._pricing.moving_ms(allocation.units)

    def _evaluate(self, candidates: list[Ints]) -> None:
        """Evaluate the first candidates and learn from what they cost; the others are forgotten."""
        self._budget.check()
        chosen = candidates[: int(min(self._queries_left, _PLANS_PER_QUERY))]
        costs = self._incumbent.offer(*(self._pricing.plan(units) for units in chosen))
        self._pricing.learn(chosen, costs)
        self._queries_left -= len(chosen)
        self._evaluated |= {units.tobytes() for units in chosen}
        self._candidates.clear()
