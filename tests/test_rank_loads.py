"""Loads of devices: expected ones against streams replayed id by id, and streams that do not match their table."""

import numpy as np
import pytest

from shardgym.bags import Bags
from shardgym.errors import InputError
from shardgym.ids import draw_bags
from shardgym.plan import ShardingPlan
from shardgym.rank_loads import RankLoads, expected_loads, replayed_loads
from shardgym.shard import Shard
from shardgym.table import EmbeddingTable, RangeIds, ZipfIds
from shardgym.task import ShardingTask
from shardgym.topology import Topology

HALVES = RangeIds(shares=(0.75, 0.25))


def task_of(*tables, devices=2, batch_size=4):
    return ShardingTask(tables, Topology(num_devices=devices, memory_bytes=2**30), batch_size)


TASK = task_of(EmbeddingTable("t", 8, 4, 2.0, HALVES))
BAGS = Bags(np.array([0, 1, 1, 7, 0, 0, 3, 4]), np.array([2, 2, 3, 1]))


def test_ids_are_counted_where_their_rows_are():
    plan = ShardingPlan.of(TASK, [Shard("t", (0, 4), (0, 4), 0), Shard("t", (4, 8), (0, 4), 1)])
    lookups, distinct = replayed_loads(TASK, plan, {"t": BAGS})
    assert lookups.tolist() == [6, 2]
    assert distinct.tolist() == [3, 2]
    assert expected_loads(TASK, plan).lookups.tolist() == [6, 2]


def test_replicas_look_up_their_own_samples():
    plan = ShardingPlan.of(TASK, [Shard("t", (0, 8), (0, 4), (0, 1))])
    lookups, distinct = replayed_loads(TASK, plan, {"t": BAGS})
    assert lookups.tolist() == [4, 4]  # bags 0 and 1, bags 2 and 3
    assert distinct.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ({}, "stream: has no ids of table 't'"),
        ({"t": BAGS, "u": BAGS}, "stream: has ids of table 'u', which is not in the task"),
        ({"t": Bags(BAGS.indices, BAGS.lengths[:3])}, "table 't': there are 3 samples, expected the 4 of a batch"),
        ({"t": Bags(BAGS.indices[:7], BAGS.lengths)}, "table 't': bags hold 8 ids, there are 7"),
        ({"t": Bags(BAGS.indices + 1, BAGS.lengths)}, "table 't': id 8 is none of its rows, expected 0 to 7"),
        ({"t": Bags(BAGS.indices - 1, BAGS.lengths)}, "table 't': id -1 is none of its rows"),
        ({"t": Bags(BAGS.indices, np.array([3, 3, 3, -1]))}, "table 't': a bag has -1 ids"),
    ],
)
def test_a_stream_that_does_not_match_its_table_is_refused_by_name(stream, message):
    plan = ShardingPlan.table_wise(TASK, [0])
    with pytest.raises(InputError, match=message):
        replayed_loads(TASK, plan, stream)


ORDERS = [
    {"row_order": "scattered"},
    {"row_order": "by_frequency"},
    {"row_order": "blocks", "block_rows": 300},
]


def row_plan(seed, order, devices):
    """Return a task of one table whose rows are cut anywhere, and the plan."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(20_000, 200_000))
    law = ZipfIds(s=float(rng.uniform(0.6, 1.2)), q=float(rng.uniform(0, 5)), **order)
    task = task_of(EmbeddingTable("t", rows, 4, 8.0, law), devices=devices, batch_size=32_768)
    cuts = np.sort(rng.choice(np.arange(1, rows), devices - 1, replace=False)).tolist()
    ranges = zip([0, *cuts], [*cuts, rows], strict=True)
    return task, ShardingPlan.of(task, [Shard("t", of, (0, 4), d) for d, of in enumerate(ranges)])


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order["row_order"])
@pytest.mark.parametrize(("seed", "devices"), [(0, 2), (1, 4), (2, 8), (3, 16)])
def test_loads_are_those_of_replayed_streams(order, seed, devices):
    task, plan = row_plan(seed, order, devices)
    expected = expected_loads(task, plan)
    batches = [{"t": draw_bags(task.tables[0], task.batch_size, seed=seed, batch=n)} for n in range(4)]
    counted = [replayed_loads(task, plan, stream) for stream in batches]
    for found, told in zip(RankLoads(*np.mean(counted, axis=0)), expected, strict=True):
        # Of hardly used ranks the stream says little: they are held against a fiftieth of the mean.
        np.testing.assert_allclose(told, found, rtol=0.1, atol=0.1 * 0.02 * found.mean())
