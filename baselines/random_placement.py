"""Random placement: the floor under every comparison."""

from __future__ import annotations

import numpy as np

from baselines.placement import descending, place
from shardgym.arguments import check_instance, check_int
from shardgym.arrays import Ints
from shardgym.costs.base import CostModel
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask


class RandomSolver:
    """Every table goes to a device drawn uniformly among those with room for it.

    The published one draws among all devices and lets the plan fail when memory overflows. Tables are placed in
    descending order of size, so that the draw rarely paints itself into a corner; where memory does not bind, all
    plans are equally likely, as in the published one.
    """

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return a random feasible plan; `cost` makes no difference.

        Raises:
            NoFeasiblePlanError: a table fits nowhere any more; another seed may succeed.
            InputError: no task, or a seed that is no whole number.
        """
        del cost
        check_instance("task", task, ShardingTask)
        rng = np.random.default_rng(check_int("seed", seed))

        def any_of(position: int, size: int, fitting: Ints) -> int:
            del position, size
            return int(rng.choice(fitting))

        return place(task, descending([task.table_bytes(table) for table in task.tables]), any_of)
