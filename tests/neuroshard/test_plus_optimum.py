"""`neuroshard_plus` against every plan there is, on tasks small enough to try them all."""

import dataclasses
import itertools

import numpy as np
import pytest
from random_tasks import random_task

from neuroshard.plus.solver import NeuroShardPlus
from shardgym import Shard, ShardingPlan, ShardingTask, make_cost

UNIT = 4


def shares(units: int, devices: int) -> list[tuple[int, ...]]:
    """All ways to give units of a table to devices."""
    return [shares for shares in itertools.product(range(units + 1), repeat=devices) if sum(shares) == units]


def every_plan(task: ShardingTask) -> list[ShardingPlan]:
    """All feasible plans in which a device holds at most one shard of a table and no rows are cut."""
    ways = [shares(table.embedding_dim // UNIT, task.num_devices) for table in task.tables]
    plans = [plan_of(task, shares) for shares in itertools.product(*ways)]
    limits = task.topology.memory_bytes
    return [p for p in plans if all(a <= b for a, b in zip(p.bytes_per_device(task), limits, strict=True))]


def plan_of(task: ShardingTask, shares: tuple[tuple[int, ...], ...]) -> ShardingPlan:
    shards = []
    for table, per_device in zip(task.tables, shares, strict=True):
        ends = UNIT * np.cumsum(per_device)
        shards += [
            Shard(table.name, (0, table.num_embeddings), (int(end) - UNIT * units, int(end)), device)
            for device, (end, units) in enumerate(zip(ends, per_device, strict=True))
            if units
        ]
    return ShardingPlan.of(task, shards)


def narrow_task(seed: int, tables: int, devices: int, spare: float) -> ShardingTask:
    """The first tables of at most 16 columns of a large random task, memory in proportion."""
    drawn = [table for table in random_task(seed, 60, devices).tables if table.embedding_dim <= 16][:tables]
    task = dataclasses.replace(random_task(seed, 1, devices), tables=tuple(drawn))
    memory = (int(spare * task.total_bytes / devices),) * devices
    return dataclasses.replace(task, topology=dataclasses.replace(task.topology, memory_bytes=memory))


CASES = [(seed, *size, spare) for seed in range(3) for size in ((5, 2), (3, 3)) for spare in (4.0, 1.25)]


@pytest.mark.parametrize(("seed", "tables", "devices", "spare"), CASES)
@pytest.mark.parametrize("model", ["simulator", "cpu-core", "rtx-2080-ti"])
def test_plans_are_within_a_percent_of_the_optimum(simulator, model, seed, tables, devices, spare):
    cost = simulator if model == "simulator" else make_cost("roofline", hardware=model)
    task = narrow_task(seed, tables, devices, spare)
    costs = [answer.total_ms for answer in cost.evaluate(task, every_plan(task))]
    assert len(costs) > 10, "a task that tells nothing"
    (found,) = cost.evaluate(task, [NeuroShardPlus().solve(task, cost)])
    assert min(costs) * (1 - 1e-9) <= found.total_ms <= 1.01 * min(costs)
