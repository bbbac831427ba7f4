"""NeuroShardPlus and RowWise as solvers."""

import contextlib
import functools
import math
from collections.abc import Callable, Sequence

from neuroshard.packing import pack_units
from neuroshard.plus.groups import GroupCosts, group_sizes, plan_of_groups, task_of_group
from neuroshard.plus.local_search import Allocation
from neuroshard.plus.pricing import Pricing
from neuroshard.plus.searches import ExactSearch
from neuroshard.plus.sharing import SHARED_TYPES, forms_of
from neuroshard.plus.tiers import TieredPricing, TieredShards
from neuroshard.row_splits import splits_of
from neuroshard.shard_table import ShardTable, plan_of_units
from neuroshard.solver import ColumnSolver
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel, additive_costs, make_cost
from shardgym.errors import InputError, NoFeasiblePlanError, check_instance, check_int, short_repr
from shardgym.evaluation.solver import Budget, Incumbent, OutOfTime
from shardgym.plans.feasibility import ROOM_ADVICE
from shardgym.plans.plan import ShardingPlan
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask, exact_bytes
from shardgym.tasks.topology import Topology

#: What calls everything there is to compile.
_TWO_TABLES = (EmbeddingTable("narrow", 64, 16, pooling_factor=8.0), EmbeddingTable("wide", 256, 32))
#: Where tables take more than this share of the memory of devices, that of hosts is searched, too.
_TIGHT = 0.8


class NeuroShardPlus(ColumnSolver):
    """Local search over the columns of each table on each device, and over the tables that devices share.

    A table may be cut by rows over all devices, over those of one node, or, cut by columns first, over those of each
    node; or be replicated. `choices.py` and `kinds.py` choose which, and `nodes.py` balances single nodes' tables. The
    plan is never worse than that of columns alone. If a task allows groups of 2D parallelism, the search also chooses
    their size. Simulators price no replicas. The cost must be additive; for measured costs, use `measured_rerank`.

    If tables take more than 80 % of device memory, hosts have memory, and the cost prices it, each device keeps the
    rows that save the most time per byte (`tiers.py`). It reads the others from its host, through a cache if the
    popular rows are unknown.

    Example:
        >>> plan = NeuroShardPlus().solve(task, cost, time_limit_s=1.0)    # doctest: +SKIP

    Args:
        kicks: how often to disturb the best plan and improve it again. When None: until the time limit if there is one,
            else 128 times or until two million moves were tried.
        sharding_types: allowed types, by TorchRec's names, besides `table_wise`, `column_wise` and `table_column_wise`:
            some of `row_wise`, `table_row_wise`, `grid_shard`, `data_parallel`.
        row_cuts: whether a shard may have popular rows in device memory and the others in host memory, and shards of a
            table may have caches of different sizes. Without row cuts, plans can be exported to TorchRec, which has one
            kernel and one cache per table.

    Raises:
        InputError: a setting is out of range or of another type.
    """

    _name = "neuroshard_plus"

    def __init__(
        self, kicks: int | None = None, *, sharding_types: Sequence[str] = SHARED_TYPES, row_cuts: bool = True
    ) -> None:
        check_instance("row_cuts", row_cuts, bool)
        self.row_cuts = row_cuts
        self.kicks = None if kicks is None else check_int("kicks", kicks, 0)
        self.sharding_types = tuple(sharding_types)
        for name in self.sharding_types:
            if name not in SHARED_TYPES:
                known = ", ".join(SHARED_TYPES)
                raise InputError(f"sharding_types: expected some of {known}, got {short_repr(name)}")

    def check_ready(self, cost: CostModel) -> None:
        """Raise `InputError` if the cost is not additive."""
        additive_costs(cost, self._name)

    def leaves_devices(self, task: ShardingTask, cost: CostModel) -> bool:
        """See `ColumnSolver`."""
        return cost.host_memory and task.topology.host_memory_bytes > 0

    def warm_up(self, task: ShardingTask, cost: CostModel) -> None:
        """Solve a task of two tables, which compiles the search."""
        del task, cost
        topology = Topology(num_devices=4, memory_bytes=(2**20,) * 4, fast_domain_size=2)
        NeuroShardPlus(kicks=1).solve(ShardingTask(_TWO_TABLES, topology, batch_size=8), make_cost("roofline"))

    def search(self, shards: ShardTable, cost: CostModel, seed: int, budget: Budget, incumbent: Incumbent) -> None:
        """See `ColumnSolver`."""
        costs = additive_costs(cost, self._name)
        task = shards.task
        beyond = self.leaves_devices(task, cost)
        kinds = {kind for kind in self.sharding_types if cost.replicas or kind != "data_parallel"}
        search = functools.partial(ExactSearch, kicks=self.kicks, seed=seed, incumbent=incumbent)
        tight = beyond and task.total_bytes > _TIGHT * task.total_capacity_bytes
        if not beyond or task.total_bytes <= task.total_capacity_bytes:
            # Where hosts may help, half of the time is for them.
            first = Budget(budget.left_s / 2) if tight and budget.limited else budget
            try:
                _search_in_devices(
                    functools.partial(search, budget=first), shards, costs, kinds, in_groups=cost.replicas
                )
            except NoFeasiblePlanError:
                if not beyond:
                    raise
            except OutOfTime:
                budget.check()
        if tight or (beyond and incumbent.cost_ms == math.inf):
            _search_in_tiers(functools.partial(search, budget=budget), task, costs, kinds, row_cuts=self.row_cuts)

    def pack(self, shards: ShardTable) -> ShardingPlan:
        """See `ColumnSolver`; halves tables, or else cuts them anywhere."""
        return plan_of_units(shards, pack_units(shards))


class RowWise(NeuroShardPlus):
    """`neuroshard_plus` restricted to cuts by columns, and by rows over all devices (TorchRec's `row_wise`).

    A row shard looks up its share of the ids and sends partial sums of the whole width. Cutting by rows therefore pays
    for tables with many ids per sample, which every column shard reads in full. It adds the same load to all devices.
    Boards show with this solver the gain from `row_wise` alone.

    `kicks` and `row_cuts` are as in `NeuroShardPlus`.
    """

    _name = "row_wise"

    def __init__(self, kicks: int | None = None, *, row_cuts: bool = True) -> None:
        super().__init__(kicks, sharding_types=["row_wise"], row_cuts=row_cuts)


def _search_in_devices(
    search: Callable[..., ExactSearch], shards: ShardTable, costs: AdditiveCosts, kinds: set[str], *, in_groups: bool
) -> None:
    """Search with all rows in device memory, also in groups of 2D parallelism if `in_groups`."""
    task = shards.task
    best = search(Pricing(shards, costs), forms_of(task, costs, kinds))
    # What columns alone lead to says which groups are worth a search; smaller and smaller ones, while that helps.
    for size in group_sizes(task) if in_groups else ():
        of_group = task_of_group(task, size)
        group_costs = GroupCosts(costs, task, size)
        plan_of = functools.partial(plan_of_groups, task, size=size)
        pricing = Pricing(ShardTable(of_group), group_costs)
        other = search(pricing, forms_of(of_group, group_costs, kinds), in_groups=plan_of)
        if other.columns_ms() >= best.columns_ms():
            break
        best = other
    best.run()


def _search_in_tiers(
    search: Callable[..., ExactSearch], task: ShardingTask, costs: AdditiveCosts, kinds: set[str], *, row_cuts: bool
) -> None:
    """Search with rows in device and host memory, after a first plan by memory alone."""
    forms = forms_of(task, costs, kinds, in_host=True)
    splits = splits_of(task, costs, in_host=True, row_cuts=row_cuts)
    # Of cached rows, hosts have all: where they have no room for that, tables are in one memory or the other.
    uncached = [
        [split for split in of_table if split.shards[0].compute_kernel != "fused_uvm_caching"] for of_table in splits
    ]
    for of_tables in (splits, uncached):
        shards = TieredShards(task, costs, of_tables)
        pricing = TieredPricing(shards, costs, alike=not row_cuts)
        tried = search(pricing, forms)
        with contextlib.suppress(NoFeasiblePlanError):
            tried.found(Allocation(pricing, pack_units(shards)))
        with contextlib.suppress(NoFeasiblePlanError):
            tried.run()
        if tried.incumbent.cost_ms < math.inf:
            return
    raise NoFeasiblePlanError(
        f"no plan was found: the hosts, with {exact_bytes(task.topology.host_memory_bytes)} each, have no "
        f"room for the rows that do not fit on devices; {ROOM_ADVICE}"
    )
