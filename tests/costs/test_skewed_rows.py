"""Costs of ranges of rows that are not equally popular: the hot rank shows, and nothing else changes."""

import dataclasses

import numpy as np
import pytest

from neuroshard.plus.sharing import even_rows
from shardgym import EmbeddingTable, RangeIds, Shard, ShardingPlan, ShardingTask, Topology, ZipfIds, make_cost
from shardgym.costs.gpu.kernels import row_classes
from shardgym.costs.links import IDS
from shardgym.costs.plan_cost import PHASES
from shardgym.costs.shard_keys import plan_keys, shard_loads
from shardgym.tables.row_access import access_share, distinct_rows

FORWARD = PHASES.index("forward_compute")
BY_FREQUENCY = ZipfIds(s=1.1, row_order="by_frequency")
#: One range has half of the rows and nine tenths of the lookups.
NINE_TENTHS = RangeIds(shares=(0.9, 0.1))


def task_of(ids, rows=100_000, pooling=20.0, device="h100", devices=4, **fields):
    table = EmbeddingTable("t", rows, 32, pooling, ids, **fields)
    topology = Topology(num_devices=devices, memory_bytes=2**30, device=device)
    return ShardingTask((table,), topology, 8192)


def by_rows(task):
    return ShardingPlan.of(task, even_rows(task.tables[0], task.num_devices))


@pytest.mark.parametrize(("cost", "device"), [("roofline", "cpu-core"), ("roofline", "h100"), ("gpu", "h100")])
def test_the_hot_rank_computes_longest_and_the_coldest_least(cost, device):
    task = task_of(BY_FREQUENCY, device=device)
    (answer,) = make_cost(cost).evaluate(task, [by_rows(task)])
    forward = answer.per_device[:, FORWARD]
    assert (np.diff(forward) < 0).all()
    fair = task_of(ZipfIds(s=1.1), device=device)
    (even,) = make_cost(cost).evaluate(fair, [by_rows(fair)])
    assert np.ptp(even.per_device[:, FORWARD]) == 0
    assert forward[-1] < even.per_device[0, FORWARD] < forward[0]
    assert answer.total_ms > even.total_ms


@pytest.mark.parametrize("cost", ["roofline", "gpu"])
def test_whole_tables_and_columns_cost_the_same_wherever_hot_rows_lie(cost):
    found = []
    for ids in (ZipfIds(s=1.1), BY_FREQUENCY, ZipfIds(s=1.1, row_order="scattered")):
        task = task_of(ids)
        columns = [Shard("t", (0, 100_000), (8 * n, 8 * n + 8), n) for n in range(4)]
        plans = [ShardingPlan.table_wise(task, [0]), ShardingPlan.of(task, columns)]
        found.append([answer.per_device.tolist() for answer in make_cost(cost).evaluate(task, plans)])
    assert found[0] == found[1] == found[2]


def test_ids_without_repeats_are_those_of_the_range():
    task = dataclasses.replace(task_of(NINE_TENTHS), dedup_ids=True)
    table = task.tables[0]
    for key in plan_keys(task, by_rows(task)):
        start, stop = key.row_range
        lookups = table.pooling_factor * access_share(table, start, stop)
        distinct = distinct_rows(table, 8192, start, stop, 1 / 4) / (8192 / 4)
        assert shard_loads(task, key)[IDS] == pytest.approx(distinct + lookups / 2)


@pytest.mark.parametrize("reuse", [None, (0.6, 0.2, 0.1, 0.05, 0.03, 0.02, *[0.0] * 11)])
@pytest.mark.parametrize("ids", [BY_FREQUENCY, NINE_TENTHS, ZipfIds(s=1.1, row_order="blocks", block_rows=5000)])
def test_classes_of_ranges_add_up_to_their_lookups_and_distinct_rows(ids, reuse):
    table = EmbeddingTable("t", 100_000, 32, 20.0, ids, reuse_histogram=reuse)
    for start, stop in ((0, 25_000), (25_000, 60_001), (60_001, 100_000)):
        rows, accesses = row_classes(table, 8192, start, stop)
        lookups = 8192 * 20.0 * access_share(table, start, stop)
        assert rows @ accesses == pytest.approx(max(lookups, rows.sum()), rel=1e-6)
        assert rows.sum() == pytest.approx(distinct_rows(table, 8192, start, stop), rel=0.1)
        assert (accesses >= 1).all()


def test_keys_have_a_first_row_only_where_it_makes_a_difference():
    fair, skewed = task_of(ZipfIds(s=1.1)), task_of(BY_FREQUENCY)
    assert [key.first_row for key in plan_keys(fair, by_rows(fair))] == [0] * 4
    assert [key.first_row for key in plan_keys(skewed, by_rows(skewed))] == [0, 25_000, 50_000, 75_000]
    columns = ShardingPlan.of(skewed, [Shard("t", (0, 100_000), (8 * n, 8 * n + 8), n) for n in range(4)])
    assert {key.first_row for key in plan_keys(skewed, columns)} == {0}


def test_the_simulator_follows_lookups_and_says_what_it_does_not_know():
    topology = Topology(num_devices=4, memory_bytes=2**30)
    known = dataclasses.replace(task_of(NINE_TENTHS, device="cpu-core"), topology=topology)
    cost = make_cost("simulator")
    rows, whole = cost.evaluate(known, [by_rows(known), ShardingPlan.table_wise(known, [0])])
    note = "ranges of rows that are more popular than others"
    assert any(note in text for text in rows.notes)
    assert not any(note in text for text in whole.notes)
    assert (rows.per_device[:2, FORWARD] > 1.5 * rows.per_device[2:, FORWARD]).all()
    fair = dataclasses.replace(task_of(ZipfIds(s=1.1), device="cpu-core"), topology=topology)
    (answer,) = cost.evaluate(fair, [by_rows(fair)])
    assert not any(note in text for text in answer.notes)
