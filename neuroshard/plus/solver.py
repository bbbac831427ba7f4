"""NeuroShardPlus as a solver: local search from constructed placements, and from NeuroShard's plan."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence

import numpy as np

from neuroshard.packing import pack_units
from neuroshard.plus.form_arrays import compile_choices
from neuroshard.plus.groups import GroupCosts, group_sizes, plan_of_groups, task_of_group
from neuroshard.plus.local_search import Allocation, PlusSettings, compile_search
from neuroshard.plus.nodes import compile_packing
from neuroshard.plus.pricing import EstimatedPricing, ExactPricing
from neuroshard.plus.searches import EstimateSearch, ExactSearch, InGroups, moving_from
from neuroshard.plus.sharing import SHARED_TYPES, forms_of
from neuroshard.plus.tiered_pricing import TieredPricing
from neuroshard.plus.tiers import TieredShards
from neuroshard.row_splits import splits_of
from neuroshard.shard_table import ShardTable, plan_of_units
from neuroshard.solver import ColumnSolver, NeuroShard
from neuroshard.ssd_tables import ssd_choices
from shardgym.arguments import check_instance, check_list
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.evaluation.incumbent import Budget, Incumbent, OutOfTime
from shardgym.plans.feasibility import room_advice
from shardgym.plans.plan import ShardingPlan
from shardgym.records import short_repr
from shardgym.tasks.task import ShardingTask, exact_bytes

#: Where tables take more than this share of the memory, a narrow NeuroShard search finds poor plans at best.
_TIGHT = 0.8


class NeuroShardPlus(ColumnSolver):
    """Local search over the columns of each table on each device, and over the tables that devices share.

    With an additive cost, a table may be cut by rows over all devices, over those of one node, or, cut by columns
    first, over those of each node; or be replicated. `averages.py` and `kinds.py` choose which, and `nodes.py` which
    node has what single nodes hold. The plan is never worse than what columns alone lead to. Where a task allows groups
    of 2D parallelism, their size is chosen, too. Simulators price no replicas. With other costs, tables are cut by
    columns alone.

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

    def leaves_devices(self, task: ShardingTask, cost: CostModel) -> bool:
        """See `ColumnSolver`."""
        topology = task.topology
        return cost.host_memory and topology != topology.devices_alone and cost.additive() is not None

    def warm_up(self, task: ShardingTask, cost: CostModel) -> None:
        """Compile the search, and NeuroShard's, which gives plans to start from."""
        NeuroShard().warm_up(task, cost)
        compile_search()
        compile_packing()
        compile_choices()

    def search(self, shards: ShardTable, cost: CostModel, seed: int, budget: Budget, incumbent: Incumbent) -> None:
        """Search with exact prices where the cost model is additive, else with estimates that are corrected."""
        costs = cost.additive()
        if costs is None:
            estimate = EstimatedPricing(shards, cost, self.settings.softness, budget)
            estimate.moving = moving_from(shards, incumbent)
            EstimateSearch(estimate, self.settings, budget, np.random.default_rng(seed), incumbent).run()
            return
        if cost.learned:
            self._search_as_published(shards, cost, seed, budget, incumbent)
        task = shards.task
        beyond = self.leaves_devices(task, cost)
        kinds = {kind for kind in self.sharding_types if cost.replicas or kind != "data_parallel"}
        if not beyond or task.total_bytes <= task.total_capacity_bytes:
            try:
                self._search_in_devices(shards, costs, kinds, cost.replicas and costs.groups, seed, budget, incumbent)
            except NoFeasiblePlanError:
                if not beyond:
                    raise
        if beyond and (task.total_bytes > _TIGHT * task.total_capacity_bytes or incumbent.cost_ms == math.inf):
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

        def search_on(shards: ShardTable, costs: AdditiveCosts, place: InGroups | None) -> ExactSearch:
            pricing = ExactPricing(shards, costs, self.settings.softness)
            if place is None:
                pricing.moving = moving_from(shards, incumbent)
            forms = forms_of(shards.task, costs, kinds)
            return ExactSearch(pricing, forms, self.settings, budget, seed, incumbent, place)

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
        """Search with rows in the memory of devices and hosts, and on SSDs; first comes a plan by memory alone.

        Raises:
            OutOfTime: the budget is spent.
            NoFeasiblePlanError: no packing was found, or none for which hosts have room.
        """
        in_host = task.topology.host_memory_bytes > 0
        # The first plan says little of others where tables may also go to SSDs: a full device can be paid for there.
        first_is_enough = not task.topology.ssd_bytes
        for on_ssd in ssd_choices(task, costs):
            forms = forms_of(task, costs, kinds, in_host=in_host, on_ssd=on_ssd)
            splits = splits_of(task, costs, in_host=in_host, row_cuts=self.row_cuts, on_ssd=on_ssd)
            # Of cached rows, hosts have all: where they have no room for that, tables are in one memory or the other.
            uncached = [
                [split for split in of_table if split.shards[0].compute_kernel != "fused_uvm_caching"]
                for of_table in splits
            ]
            for of_tables in (splits, uncached):
                shards = TieredShards(task, costs, of_tables)
                pricing = TieredPricing(shards, costs, self.settings.softness, alike=not self.row_cuts)
                search = ExactSearch(pricing, forms, self.settings, budget, seed, incumbent)
                with contextlib.suppress(NoFeasiblePlanError):
                    search.found(Allocation(pricing, pack_units(shards)))
                # Other tables on SSDs may still lead to a plan.
                with contextlib.suppress(NoFeasiblePlanError):
                    search.run()
                if incumbent.cost_ms < math.inf and first_is_enough:
                    return
        if incumbent.cost_ms < math.inf:
            return
        ssds = f" and the SSDs {exact_bytes(task.topology.ssd_bytes, '')}" if task.topology.ssd_bytes else ""
        raise NoFeasiblePlanError(
            f"neuroshard_plus found no plan: the hosts have {exact_bytes(task.topology.host_memory_bytes)} each{ssds}, "
            f"and no room for the rows for which devices have none; {room_advice(task)}"
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
