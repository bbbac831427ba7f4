"""How different two plans are, and the best plans that differ."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shardgym.arrays import Floats
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask


def held_work(task: ShardingTask, plan: ShardingPlan) -> Floats:
    """Return which share of a task's work each device holds of each table, shape (D, T); all add up to 1.

    The work of a table is its columns times one more than its pooling factor: values that are read and values that are
    sent for a sample. Of a shard it is the share of the table's cells.
    """
    position = {table.name: n for n, table in enumerate(task.tables)}
    held = np.zeros((task.num_devices, task.num_tables))
    for shard in plan.shards:
        table = task.table(shard.table)
        rows = shard.num_rows / table.num_embeddings
        held[shard.device, position[shard.table]] += shard.num_columns * rows * (1.0 + table.pooling_factor)
    return np.asarray(held / held.sum(), dtype=np.float64)


def placement_distance(one: Floats, other: Floats) -> float:
    """Return the share of work that is on different devices, from 0 to 1.

    Plans that only swap what whole devices hold are at distance 0: devices are renamed where that leaves more work in
    place, those first that have most in common.

    Args:
        one: `held_work` of a plan, shape (D, T).
        other: of another plan for the same task.
    """
    common = np.stack([np.minimum(row[row > 0], other[:, row > 0]).sum(axis=1) for row in one])
    named_alike = float(common.trace())
    renamed = 0.0
    for _ in range(len(one)):
        pair = np.unravel_index(common.argmax(), common.shape)
        renamed += float(common[pair])
        common[pair[0]] = -1.0
        common[:, pair[1]] = -1.0
    return min(max(1.0 - max(named_alike, renamed), 0.0), 1.0)


def diverse_best(
    task: ShardingTask, found: Mapping[ShardingPlan, float], count: int, distance: float
) -> list[ShardingPlan]:
    """Return the cheapest plans that differ: each is the next cheapest that is far enough from all before it.

    Args:
        task: the task.
        found: cost of each plan in ms; of equally cheap ones the first comes first.
        count: plans at most; fewer where no others are far enough.
        distance: of any two, at least; see `placement_distance`.
    """
    plans: list[ShardingPlan] = []
    held: list[Floats] = []
    for plan in sorted(found, key=lambda plan: found[plan]):
        if len(plans) == count:
            break
        work = held_work(task, plan)
        if all(placement_distance(work, other) >= distance for other in held):
            plans.append(plan)
            held.append(work)
    return plans
