"""Devices priced by sums over their shards, as searches and environments do it, and a cost that prices none."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from shardgym import CostModel, Shard, ShardingPlan, ShardingTask
from shardgym.arrays import Floats
from shardgym.costs.roofline import RooflineCost


class WholePlans(RooflineCost):
    """Scores whole plans only, as another cost does, or as roofline."""

    def __init__(self, cost: CostModel | None = None) -> None:
        super().__init__()
        self.cost = cost

    def score(self, task, plans):
        return super().score(task, plans) if self.cost is None else self.cost.evaluate(task, plans)


def compute_ms(cost: CostModel, task: ShardingTask, devices: Sequence[Sequence[Shard]]) -> Floats:
    """Return forward and backward ms of devices that hold these shards, by an additive cost, shape (D, 2)."""
    costs = cost.additive()
    assert costs is not None
    return costs.exact_compute_ms(np.stack([costs.vectors(costs.encode(task, held)).sum(axis=0) for held in devices]))


def table_wise_totals(cost: CostModel, task: ShardingTask, placements: Sequence[Sequence[int]]) -> Floats:
    """Return the totals of plans of whole tables, given by the device of each table, shape (P,)."""
    costs = cost.additive()
    assert costs is not None
    shards = costs.encode(task, [Shard.whole(table, 0) for table in task.tables])
    held = np.array(placements)[:, None] == np.arange(task.num_devices)[:, None]
    return costs.total_ms(costs.add_task(task), held @ costs.vectors(shards))


def even_share_ms(cost: CostModel, task: ShardingTask) -> float:
    """Return the time of all tables on one device, whatever its memory, over the number of devices."""
    roomy = dataclasses.replace(task, topology=task.topology.roomy())
    [on_one] = cost.evaluate(roomy, [ShardingPlan.table_wise(roomy, [0] * task.num_tables)])
    return on_one.total_ms / task.num_devices
