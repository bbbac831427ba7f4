"""NeuroShard: the published search as a solver."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from neuroshard.beam import BeamSearch, Found, Shards
from neuroshard.budget import Budget, OutOfTime
from neuroshard.engine import Engine, compile_ahead, engine, use_compiled
from neuroshard.kinds import Kinds
from neuroshard.layout import plan_of
from neuroshard.packing import check_possible, pack
from neuroshard.settings import SearchSettings
from shardgym.costs.base import CostModel
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.plan import ShardingPlan
from shardgym.solver import Observer, check_solve_arguments
from shardgym.task import ShardingTask


class NeuroShard:
    """Column splits by beam search, placements by greedy grid search (Zha et al., MLSys 2023, `neurosharder.py`).

    Finds what the published search finds, with optimiser state counted and devices' memory respected one by one.
    Where that one returns nothing, shards are packed by memory alone, tables halved until they fit, and the search
    goes on from there. Made for the learned simulator; with other cost models every device content is one query.

    Example:
        >>> plan = NeuroShard(beam_width=1).solve(task, cost)              # doctest: +SKIP

    Args:
        beam_width: column plans kept from level to level, K in the paper.
        candidates: shards tried by size and as many by compute, N in the paper.
        levels: column cuts of one plan at most, L in the paper.
        grid: limits of a device's width tried for every column plan, M in the paper; 0 for no limit.
        compiled: whether the inner search over a simulator runs compiled by numba; None where numba is installed.
            Plans are the same. The very first search compiles for some seconds, before any time limit begins.
        threads: of the compiled search, for large tasks; plans are the same.

    Raises:
        InputError: a setting is not an integer in range.
        MissingDependencyError: `compiled` is true and numba is not installed.
    """

    def __init__(
        self, beam_width: int = 3, candidates: int = 10, levels: int = 10, grid: int = 11, *,
        compiled: bool | None = None, threads: int = 1,
    ) -> None:  # fmt: skip
        self.settings = SearchSettings(beam_width, candidates, levels, grid)
        self.compiled = use_compiled(compiled)
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise InputError(f"threads of the search must be an integer from 1 on, got {threads!r}")
        self.threads = threads

    def warm_up(self, task: ShardingTask, cost: CostModel) -> None:
        """Compile the search for this cost model, if it runs compiled; some 20 seconds, once on a machine."""
        if self.compiled:
            compile_ahead(task, cost)

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
        """Return the best plan found; `seed` makes no difference, as nothing is drawn.

        Raises:
            NoFeasiblePlanError: shards cannot be packed however tables are halved, or no packing was found.
            InfeasiblePlanError: `initial_plan` is infeasible.
            InputError: `initial_plan` is for another task, or `cost` cannot price tasks of this kind; or an argument is
                of another kind.
        """
        check_solve_arguments(task, cost, seed, time_limit_s=time_limit_s, initial_plan=initial_plan, observer=observer)
        check_possible(task)
        if self.compiled and time_limit_s is not None:
            compile_ahead(task, cost)
        budget = Budget(time_limit_s)
        best = _Best(task, cost, observer)
        if initial_plan is not None:
            initial_plan.validate(task)
            best.offer(initial_plan)
        kinds = Kinds(task)
        with contextlib.suppress(OutOfTime):
            self._search(engine(kinds, cost, compiled=self.compiled, threads=self.threads), budget, best)
        if best.cost_ms == float("inf"):
            best.offer(plan_of(kinds, pack(kinds)))
        return best.plan()

    def _search(self, parts: Engine, budget: Budget, best: _Best) -> None:
        """Search as published; once more from packed shards when that leads to no plan at all."""
        kinds = parts.contents.kinds

        def improved(found: Found) -> None:
            best.take(lambda: plan_of(kinds, found.held), found.cost_ms)

        BeamSearch(parts.contents, self.settings, budget, parts.inner, improved).run(tuple(kinds.whole.tolist()))
        if best.cost_ms < float("inf"):
            return
        held = pack(kinds)
        best.offer(plan_of(kinds, held))
        BeamSearch(parts.contents, self.settings, budget, parts.inner, improved, crowded=True).run(_column_plan(held))


def _column_plan(held: list[list[int]]) -> Shards:
    """Return all shards, those of one table together."""
    return tuple(sorted(kind for on_device in held for kind in on_device))


class _Best:
    """The best plan so far.

    Args:
        task: the task.
        cost: says what plans offered without a cost take.
        observer: told of every improvement.
    """

    def __init__(self, task: ShardingTask, cost: CostModel, observer: Observer | None) -> None:
        self._task, self._cost, self._observer = task, cost, observer
        self._plan: Callable[[], ShardingPlan] | None = None
        self.cost_ms = float("inf")

    def offer(self, plan: ShardingPlan) -> None:
        """Evaluate a plan and keep it if it is better."""
        (cost,) = self._cost.evaluate(self._task, [plan])
        self.take(lambda: plan, cost.total_ms)

    def take(self, plan: Callable[[], ShardingPlan], cost_ms: float) -> None:
        """Keep a plan, made when it is needed, if it is better."""
        if cost_ms < self.cost_ms:
            self._plan, self.cost_ms = plan, cost_ms
            if self._observer is not None:
                self._observer(plan(), cost_ms)

    def plan(self) -> ShardingPlan:
        """Return the best plan.

        Raises:
            NoFeasiblePlanError: there is none.
        """
        if self._plan is None:
            raise NoFeasiblePlanError(f"cost '{self._cost.name}' has no time for any plan that was tried")
        return self._plan()
