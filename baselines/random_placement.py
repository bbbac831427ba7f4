"""Random placement: the floor under every comparison."""

from __future__ import annotations

import numpy as np

from baselines.greedy import devices_with_room
from shardgym.arguments import check_instance, check_int
from shardgym.costs.base import CostModel
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tasks.task import ShardingTask


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
        sizes = [task.table_bytes(table) for table in task.tables]
        room = np.array(task.capacity_bytes, dtype=np.int64)
        devices = [0] * task.num_tables
        for n in sorted(range(task.num_tables), key=lambda n: (sizes[n], n), reverse=True):
            devices[n] = int(rng.choice(devices_with_room(task, Shard.whole(task.tables[n], 0), room)))
            room[devices[n]] -= sizes[n]
        return ShardingPlan.table_wise(task, devices)
