"""Contents and prefixes: what is shared is the same as what is worked out anew."""

from __future__ import annotations

import numpy as np
import pytest
from random_tasks import random_task

from neuroshard.engine import engine
from neuroshard.evaluated_contents import EvaluatedContents
from neuroshard.kinds import Kinds
from neuroshard.layout import plan_of
from neuroshard.prefixes import Prefixes
from neuroshard.simulator_contents import SimulatorContents
from shardgym import EmbeddingTable, ShardingTask, Topology, make_cost


def task_of(*widths: int) -> ShardingTask:
    tables = tuple(EmbeddingTable(f"t{n}", 100, width) for n, width in enumerate(widths))
    return ShardingTask(tables, Topology(num_devices=2, memory_bytes=2**30), batch_size=8)


def test_kinds_are_the_widths_that_halving_leads_to():
    kinds = Kinds(task_of(32, 4, 24))
    assert kinds.columns.tolist() == [32, 16, 8, 4, 4, 24, 12]
    assert kinds.tables.tolist() == [0, 0, 0, 0, 1, 2, 2]
    assert kinds.halves.tolist() == [1, 2, 3, -1, -1, 6, -1]
    assert kinds.whole.tolist() == [0, 4, 5]
    assert kinds.bytes.tolist() == [400 * width for width in kinds.columns.tolist()]


def test_a_plan_of_kinds_hands_out_columns_from_the_left():
    kinds = Kinds(task_of(16, 4))
    plan = plan_of(kinds, [[1], [2, 2, 3]])
    plan.validate(kinds.task)
    assert [(s.table, s.columns, s.device) for s in plan.shards] == [
        ("t0", (0, 8), 0), ("t0", (8, 12), 1), ("t0", (12, 16), 1), ("t1", (0, 4), 1)
    ]  # fmt: skip


@pytest.mark.parametrize("model", ["simulator", "roofline"])
def test_contents_cost_what_whole_plans_cost(simulator, model):
    """On devices of their own and in a plan; in another order they are the same contents."""
    cost = simulator if model == "simulator" else make_cost("roofline")
    kinds = Kinds(random_task(7, 6, 2))
    contents = (SimulatorContents if model == "simulator" else EvaluatedContents)(kinds, cost)
    devices = np.zeros(2, dtype=np.int64)
    for first, second in zip(kinds.whole[:3], kinds.whole[3:], strict=True):
        devices = contents.add(devices, np.array([first, second]))
    (whole,) = cost.evaluate(kinds.task, [plan_of(kinds, [contents.held(device) for device in devices])])
    np.testing.assert_allclose(contents.ms[devices], whole.per_device[:, [0, 3]].sum(axis=1), rtol=1e-9)
    assert contents.totals(devices[None]) == pytest.approx([whole.total_ms], rel=1e-9)
    count, backwards = contents.count, np.zeros(1, dtype=np.int64)
    for kind in kinds.whole[2::-1]:
        backwards = contents.add(backwards, np.array([kind]))
    assert backwards[0] == devices[0]
    assert contents.count == count + 2


def test_many_contents_survive_growing(simulator):
    kinds = Kinds(random_task(8, 12, 2))
    contents = SimulatorContents(kinds, simulator)
    rng, content = np.random.default_rng(0), np.zeros(300, dtype=np.int64)
    for _ in range(12):
        content = contents.add(content, rng.integers(0, len(kinds), 300))
    assert contents.count > 3000
    alone = SimulatorContents(kinds, simulator)
    one = np.zeros(1, dtype=np.int64)
    for kind in contents.held(int(content[17])):
        one = alone.add(one, np.array([kind]))
    assert alone.ms[one[0]] == pytest.approx(contents.ms[content[17]], rel=1e-9)


def test_more_kinds_than_there_is_room_for_at_first(simulator, compiled):
    kinds = Kinds(random_task(9, 1100, 2))
    contents = engine(kinds, simulator, compiled=compiled).contents
    singles = contents.singles(kinds.whole)
    assert singles[-1] == SimulatorContents(kinds, simulator).singles(kinds.whole[-1:])[0] > 0


def test_prefixes_part_where_sequences_part():
    tree = Prefixes(np.array([[1, 2, 3], [1, 2, 4], [5, 2, 3], [1, 2, 3], [1, 9, 3]]))
    assert tree.rows.tolist() == [[1, 2, 3], [1, 2, 4], [1, 9, 3], [5, 2, 3]]
    assert tree.row_of.tolist() == [0, 1, 3, 0, 2]
    assert list(tree.forks(0)) == [(0, 3)]
    assert list(tree.forks(1)) == [(0, 2)]
    assert list(tree.forks(2)) == [(0, 1)]
