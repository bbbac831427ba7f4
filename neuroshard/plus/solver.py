"""NeuroShardPlus: the published search as a start, and what it leaves on the table."""

from __future__ import annotations

import time

import numpy as np

from neuroshard.budget import Budget, OutOfTime
from neuroshard.packing import check_possible
from neuroshard.plus.additive_pricing import AdditivePricing
from neuroshard.plus.allocation import plan_of
from neuroshard.plus.best import Best
from neuroshard.plus.evaluated_search import EvaluatedSearch
from neuroshard.plus.exact_search import ExactSearch
from neuroshard.plus.settings import PlusSettings
from neuroshard.plus.shelf import Shelf
from neuroshard.plus.starts import packed
from neuroshard.solver import NeuroShard
from shardgym.arguments import check_instance
from shardgym.costs.base import CostModel
from shardgym.costs.simulator import SimulatorCost
from shardgym.errors import NoFeasiblePlanError
from shardgym.plan import ShardingPlan
from shardgym.solver import Observer, check_solve_arguments
from shardgym.task import ShardingTask


class NeuroShardPlus:
    """Local search over who holds how many columns of what, from greedy placements and a narrow NeuroShard search.

    Example:
        >>> plan = NeuroShardPlus().solve(task, cost, time_limit_s=1.0)    # doctest: +SKIP

    Args:
        kicks: how often the best placement is disturbed and improved again. When None: with the learned simulator until
            the time limit where there is one, else only on tasks of fewer than 10 tables; with other cost models 3
            times between queries.
        kick_moves: random moves of one kick.
        shortlist: moves of a device whose communication is predicted.
        sources: most loaded devices that are tried before a placement counts as done.
        softness: width of the soft maximum over devices, as a share of their mean compute.
        queries: plans that cost models other than the learned simulator may be asked for. When None: 32 without a time
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
        start, budget, rng = time.monotonic(), Budget(time_limit_s), np.random.default_rng(seed)
        check_possible(task)
        best, shelf = Best(task, cost, observer), Shelf(task)
        if initial_plan is not None:
            initial_plan.validate(task)
            best.offer(initial_plan)
        try:
            if isinstance(cost, SimulatorCost) and cost.role == "oracle":
                left_s = None if time_limit_s is None else max(time_limit_s - (time.monotonic() - start), 0.0)
                ExactSearch(shelf, cost, self.settings, budget, rng, best).run(initial_plan, left_s)
            else:
                pricing = AdditivePricing(shelf, cost, budget)
                EvaluatedSearch(pricing, self.settings, budget, rng, best).run(initial_plan)
        except NoFeasiblePlanError:
            if initial_plan is None:
                raise
        except self._ends:
            pass
        if best.cost_ms == float("inf"):
            best.offer(plan_of(shelf, packed(shelf)))
        return best.plan()
