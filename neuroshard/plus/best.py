"""Best: the best plan so far, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable

from shardgym.costs.base import CostModel
from shardgym.costs.plan_cost import PlanCost
from shardgym.errors import NoFeasiblePlanError
from shardgym.plan import ShardingPlan
from shardgym.solver import Observer
from shardgym.task import ShardingTask


class Best:
    """The best plan so far; of equally good ones the first.

    Args:
        task: the task.
        cost: says what offered plans take.
        observer: told of every improvement.

    Attributes:
        cost_ms: of the plan; infinite as long as there is none.
    """

    def __init__(self, task: ShardingTask, cost: CostModel, observer: Observer | None) -> None:
        self._task, self._cost, self._observer = task, cost, observer
        self._make: Callable[[], ShardingPlan] | None = None
        self.cost_ms = float("inf")

    def offer(self, *plans: ShardingPlan) -> list[PlanCost]:
        """Evaluate plans together and keep the best if it is better; return their costs."""
        costs = self._cost.evaluate(self._task, plans)
        for plan, cost in zip(plans, costs, strict=True):
            self.take(lambda plan=plan: plan, cost.total_ms)  # type: ignore[misc]
        return costs

    def take(self, make: Callable[[], ShardingPlan], cost_ms: float) -> None:
        """Keep a plan of known cost, made when it is needed, if it is better."""
        if cost_ms < self.cost_ms:
            self._make, self.cost_ms = make, cost_ms
            if self._observer is not None:
                self._observer(make(), cost_ms)

    def plan(self) -> ShardingPlan:
        """Return the best plan.

        Raises:
            NoFeasiblePlanError: there is none.
        """
        if self._make is None:
            raise NoFeasiblePlanError(f"cost '{self._cost.name}' has no time for any plan that was tried")
        return self._make()
