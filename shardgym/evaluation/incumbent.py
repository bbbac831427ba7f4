"""The best plan so far, and how long the search for a better one may take."""

import time
from collections.abc import Callable

from shardgym.costs.base import CostModel
from shardgym.costs.plan_cost import PlanCost
from shardgym.costs.ties import quantized
from shardgym.errors import NoFeasiblePlanError
from shardgym.evaluation.solver import Observer
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ShardingTask


class OutOfTime(Exception):
    """The time limit is reached; the search ends with the incumbent."""


class Budget:
    """Time from now on.

    Args:
        seconds: limit; None for none.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.limited = seconds is not None  #: whether there is a limit
        self._seconds = seconds
        self._end = float("inf") if seconds is None else time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left, infinite without a limit."""
        return max(self._end - time.monotonic(), 0.0)

    @property
    def spent(self) -> float:
        """Share of the time that is over, at most 1; 0 without a limit."""
        if self._seconds is None:
            return 0.0
        left = self._end - time.monotonic()
        return 1.0 if left <= 0 else 1.0 - left / self._seconds

    def check(self) -> None:
        """Raise `OutOfTime` when it is spent."""
        if time.monotonic() >= self._end:
            raise OutOfTime


class Incumbent:
    """The best plan so far; of equally good ones, see `shardgym.costs.ties`, the first.

    Args:
        task: the task.
        cost: evaluates offered plans.
        observer: called with every improvement.
    """

    def __init__(self, task: ShardingTask, cost: CostModel, observer: Observer | None) -> None:
        self._task = task
        self._cost = cost
        self._observer = observer
        self._make: Callable[[], ShardingPlan] | None = None
        self.cost_ms = float("inf")  #: of the plan, quantized; infinite as long as there is none

    def offer(self, *plans: ShardingPlan) -> list[PlanCost]:
        """Evaluate plans together and keep the best if it is better; return their costs."""
        costs = self._cost.evaluate(self._task, plans)
        for plan, cost in zip(plans, costs, strict=True):
            self.update(lambda plan=plan: plan, cost.total_ms)  # type: ignore[misc]
        return costs

    def update(self, make: Callable[[], ShardingPlan], cost_ms: float) -> None:
        """Keep a plan of known cost if it is better; `make` returns it, and may be called more than once."""
        compared_ms = float(quantized(cost_ms))
        if compared_ms < self.cost_ms:
            self._make = make
            self.cost_ms = compared_ms
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
