"""Shard tables and device sets: what is priced once is the same as what is worked out anew."""

import numpy as np
import pytest
from random_tasks import random_task

from neuroshard.device_sets import AdditiveDeviceSets, EvaluatedDeviceSets
from neuroshard.shard_table import ShardTable, plan_of
from shardgym import EmbeddingTable, ShardingTask, Topology, make_cost
from shardgym.costs.ties import QUANTUM, quantized


def task_of(*widths: int) -> ShardingTask:
    tables = tuple(EmbeddingTable(f"t{n}", 100, width) for n, width in enumerate(widths))
    return ShardingTask(tables, Topology(num_devices=2, memory_bytes=2**30), batch_size=8)


def test_shards_have_every_width_and_halves_where_these_are_allowed():
    shards = ShardTable(task_of(32, 4, 24))
    assert shards.columns.tolist() == [*range(0, 33, 4), 0, 4, *range(0, 25, 4)]
    assert shards.tables.tolist() == [0] * 9 + [1] * 2 + [2] * 7
    assert shards.first.tolist() == [0, 9, 11]
    assert shards.whole.tolist() == [8, 10, 17]
    assert shards.bytes.tolist() == [400 * width for width in shards.columns.tolist()]
    reached = shards.reached_by_halving()
    assert shards.columns[reached].tolist() == [4, 8, 16, 32, 4, 12, 24]
    assert shards.tables[reached].tolist() == [0, 0, 0, 0, 1, 2, 2]
    assert shards.halves[reached].tolist() == [-1, 1, 2, 4, -1, -1, 14]


def test_a_plan_hands_out_columns_from_the_left():
    shards = ShardTable(task_of(16, 4))
    plan = plan_of(shards, [[2], [1, 1, 6]])
    plan.validate(shards.task)
    assert [(s.table, s.columns, s.devices[0]) for s in plan.shards] == [
        ("t0", (0, 8), 0), ("t0", (8, 12), 1), ("t0", (12, 16), 1), ("t1", (0, 4), 1)
    ]  # fmt: skip


@pytest.mark.parametrize("model", ["simulator", "roofline", "whole plans"])
def test_sets_cost_what_whole_plans_cost(simulator, model):
    """On devices of their own and in a plan; in another order they are the same sets."""
    cost = simulator if model == "simulator" else make_cost("roofline")
    shards = ShardTable(random_task(7, 6, 2))
    by_sums = model != "whole plans"
    sets = AdditiveDeviceSets(shards, cost.additive()) if by_sums else EvaluatedDeviceSets(shards, cost)
    devices = np.zeros(2, dtype=np.int64)
    for first, second in zip(shards.whole[:3], shards.whole[3:], strict=True):
        devices = sets.add(devices, np.array([first, second]))
    (whole,) = cost.evaluate(shards.task, [plan_of(shards, [sets.members(device) for device in devices])])
    np.testing.assert_array_equal(sets.table.passes_ms[devices], quantized(whole.per_device[:, [1, 4]]))
    np.testing.assert_array_equal(sets.table.compute_ms[devices], sets.table.passes_ms[devices].sum(axis=1))
    assert sets.total_ms(devices[None]) == pytest.approx([whole.total_ms], rel=0, abs=2 * QUANTUM)
    count, backwards = sets.count, np.zeros(1, dtype=np.int64)
    for shard in shards.whole[2::-1]:
        backwards = sets.add(backwards, np.array([shard]))
    assert backwards[0] == devices[0]
    assert sets.count == count + 2
