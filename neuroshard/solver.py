"""NeuroShard, the published search as a solver, and ColumnSolver, its base class with NeuroShardPlus."""

import abc
import dataclasses
import math

import numpy as np
from scipy.optimize import linear_sum_assignment

from neuroshard.beam import BeamSearch, SearchSettings
from neuroshard.device_sets import AdditiveDeviceSets, EvaluatedDeviceSets
from neuroshard.grid_search import Cutoff, GridSearch
from neuroshard.packing import pack
from neuroshard.shard_table import ShardTable, plan_of
from shardgym.arrays import Floats
from shardgym.costs.base import CostModel, make_cost
from shardgym.errors import NoFeasiblePlanError
from shardgym.evaluation.solver import Budget, Incumbent, Observer, OutOfTime, check_solve_arguments
from shardgym.plans.feasibility import check_possible
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import COLUMN_UNIT, Shard
from shardgym.tasks.task import ShardingTask


class ColumnSolver(abc.ABC):
    """A solver that cuts tables by columns, searches within a time limit, and returns its incumbent."""

    #: Exceptions that end a search early, with the best plan so far.
    _ends: tuple[type[BaseException], ...] = (OutOfTime,)

    @abc.abstractmethod
    def warm_up(self, task: ShardingTask, cost: CostModel) -> None:
        """Compile the search."""

    def leaves_devices(self, task: ShardingTask, cost: CostModel) -> bool:  # noqa: ARG002
        """Return whether rows may be in host memory."""
        return False

    @abc.abstractmethod
    def search(self, shards: ShardTable, cost: CostModel, seed: int, budget: Budget, incumbent: Incumbent) -> None:
        """Update the incumbent, initially `initial_plan` if there is one, with every better plan.

        Raises:
            OutOfTime: the budget is spent.
            NoFeasiblePlanError: no packing was found.
        """

    @abc.abstractmethod
    def pack(self, shards: ShardTable) -> ShardingPlan:
        """Return a plan by memory alone, for searches that end without a plan.

        Raises:
            NoFeasiblePlanError: no packing was found.
        """

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
        """Return the best plan found; with an initial plan, devices are permuted to keep most of it in place.

        Raises:
            NoFeasiblePlanError: shards cannot be packed however tables are halved, or no packing was found.
            InfeasiblePlanError: `initial_plan` is infeasible.
            InputError: `initial_plan` is for another task, `cost` cannot price this task, or an argument has a wrong
                type.
            MeasurementError: `cost` has no time for a shard alone on a device.
        """
        check_solve_arguments(task, cost, seed, time_limit_s=time_limit_s, initial_plan=initial_plan)
        beyond = self.leaves_devices(task, cost)
        check_possible(task, in_host=beyond)
        if time_limit_s is not None:
            self.warm_up(task, cost)  # a time limit is for searching, not for compiling
        budget = Budget(time_limit_s)
        incumbent = Incumbent(task, cost, observer)
        if initial_plan is not None:
            initial_plan.validate(task)
            incumbent.offer(initial_plan)
        shards = ShardTable(task)
        try:
            self.search(shards, cost, seed, budget, incumbent)
        except NoFeasiblePlanError:
            if initial_plan is None:
                raise
        except self._ends:
            pass
        if incumbent.cost_ms == math.inf:
            incumbent.offer(self.pack(shards))
        plan = incumbent.plan()
        if initial_plan is None or plan == initial_plan:
            return plan
        near = plan_like(task, plan, initial_plan)
        if near == plan:
            return plan
        here, there = cost.evaluate(task, [plan, near])
        return near if there.total_ms <= here.total_ms else plan


class NeuroShard(ColumnSolver):
    """Column splits by beam search, placements by greedy grid search (Zha et al., MLSys 2023, `neurosharder.py`).

    The search finds what the published search finds, but counts optimiser state and respects each device's memory. If
    the published search finds nothing, this one halves tables until they can be packed by memory alone, and continues
    from there. It is made for additive cost models; other cost models evaluate whole plans.

    Example:
        >>> plan = NeuroShard(beam_width=1).solve(task, cost)              # doctest: +SKIP

    Args:
        beam_width: column plans kept per level, K in the paper.
        candidates: shards tried by size, and as many by compute, N in the paper.
        levels: maximum number of column cuts per plan, L in the paper.
        grid: number of limits on devices' widths per column plan, M in the paper; 0 for no limit.

    Raises:
        InputError: a setting is not an integer in range.
    """

    def __init__(self, beam_width: int = 3, candidates: int = 10, levels: int = 10, grid: int = 11) -> None:
        self.settings = SearchSettings(beam_width, candidates, levels, grid)

    def warm_up(self, task: ShardingTask, cost: CostModel) -> None:
        """Compile the search, which takes some seconds once per machine."""
        possible = [table for table in task.tables if table.embedding_dim % COLUMN_UNIT == 0]
        if possible:
            # Placing one table calls everything there is to compile; a cost that measures need not price it.
            shards = ShardTable(dataclasses.replace(task, tables=tuple(possible[:1]), name=""))
            inner = inner_search(shards, cost if cost.additive() else make_cost("roofline"), Budget())
            inner.device_sets.single_ms(shards.whole)
            inner.device_sets.reserve(len(inner.device_sets.table.keys))
            inner.place(shards.whole[None], np.array([np.inf]), Cutoff(1))

    def search(self, shards: ShardTable, cost: CostModel, seed: int, budget: Budget, incumbent: Incumbent) -> None:
        """Search as published, and once more from packed shards if that finds no plan. Deterministic."""
        del seed
        inner = inner_search(shards, cost, budget)
        BeamSearch(inner, self.settings, incumbent, hurry=budget.limited).run(shards.whole)
        if incumbent.cost_ms < math.inf:
            return
        devices = pack(shards)
        incumbent.offer(plan_of(shards, devices))
        packed = [row for rows in devices for row in rows]
        # Shards of one table together, the widest first.
        start = sorted(packed, key=lambda row: (shards.tables[row], -shards.columns[row]))
        BeamSearch(inner, self.settings, incumbent, hurry=budget.limited, crowded=True).run(np.array(start))

    def pack(self, shards: ShardTable) -> ShardingPlan:
        """Halve tables until they can be packed."""
        return plan_of(shards, pack(shards))


def inner_search(shards: ShardTable, cost: CostModel, budget: Budget) -> GridSearch:
    """Return the inner search for a cost model.

    Raises:
        InputError: `cost` cannot price tasks of this kind.
    """
    costs = cost.additive()
    sets = EvaluatedDeviceSets(shards, cost) if costs is None else AdditiveDeviceSets(shards, costs)
    return GridSearch(sets, budget)


def plan_like(task: ShardingTask, plan: ShardingPlan, in_use: ShardingPlan) -> ShardingPlan:
    """Permute the devices of a plan so that most of the plan in use stays in place.

    Only shards with all rows on a single device move; row shards stay in their order, as TorchRec requires. Devices
    swap within fast domains, and domains of equal size swap as a whole. If devices differ, the new plan may be
    infeasible, or have another cost.
    """
    devices = task.num_devices
    domain = task.topology.fast_domain_size
    if devices % domain or plan.group_size is not None:
        return plan
    heights = {table.name: table.num_embeddings for table in task.tables}

    def moves(shard: Shard) -> bool:
        return len(shard.devices) == 1 and shard.num_rows == heights[shard.table]

    stays = np.zeros((devices, devices))  # bytes of each device now, if it gets what each is to have
    for table in task.tables:
        old = [shard for shard in in_use.of_table(table.name) if shard.num_rows == table.num_embeddings]
        for shard in filter(moves, plan.of_table(table.name)):
            for other in old:
                columns = min(shard.columns[1], other.columns[1]) - max(shard.columns[0], other.columns[0])
                if columns > 0:
                    stays[list(other.devices), shard.devices[0]] += columns * (
                        task.table_bytes(table) / table.embedding_dim
                    )
    count = devices // domain
    blocks = stays.reshape(count, domain, count, domain).swapaxes(1, 2)
    inner = [[_best(blocks[n, m]) for m in range(count)] for n in range(count)]
    rows = np.arange(domain)
    gains = np.array([[blocks[n, m, rows, inner[n][m]].sum() for m in range(count)] for n in range(count)])
    place = {
        m * domain + int(then): n * domain + now
        for n, m in enumerate(_best(gains))
        for now, then in enumerate(inner[n][m])
    }
    shards = (
        dataclasses.replace(shard, devices=(place[shard.devices[0]],)) if moves(shard) else shard
        for shard in plan.shards
    )
    return ShardingPlan.of(task, shards)


def _best(gains: Floats) -> list[int]:
    """Return the column of each row of a square, so that the sum is largest."""
    columns: list[int] = linear_sum_assignment(gains, maximize=True)[1].tolist()
    return columns
