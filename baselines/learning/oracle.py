"""The oracle as training sees it: plans of whole tables as arrays in, times out, and queries are counted."""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.errors import InputError
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ShardingTask


class TrainingOracle:
    """Prices plans and counts them.

    Args:
        cost: what solvers may query.

    Attributes:
        cost: as given.
        queries: plans priced so far.

    Raises:
        InputError: the cost is a judge.
    """

    def __init__(self, cost: CostModel) -> None:
        if cost.scores_only:
            raise InputError(f"cost '{cost.name}' is a judge, which no solver may be fitted on: give an oracle")
        self.cost = cost
        self.queries = 0

    def price(self, task: ShardingTask, devices: Ints) -> Floats:
        """Return the times of plans, infinite for infeasible ones, shape (P, D, 5) as `PlanCost.per_device`.

        Args:
            task: the task.
            devices: of every table in every plan, shape (P, T).
        """
        return self.price_plans(task, [ShardingPlan.table_wise(task, row) for row in devices.tolist()])

    def price_plans(self, task: ShardingTask, plans: list[ShardingPlan]) -> Floats:
        """Return the times of plans in any form, shape (P, D, 5)."""
        self.queries += len(plans)
        return np.array([cost.per_device for cost in self.cost.evaluate(task, plans)])
