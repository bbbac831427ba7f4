"""Tables that differ from others of their task: in precision, optimiser, features and weights."""

import dataclasses

import numpy as np
import pytest

from shardgym import EmbeddingTable, InputError, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.costs.links import COLUMNS, IDS, REPLICA_BYTES, ROW_COLUMNS, SHARDS
from shardgym.costs.mixed_tables import check_alike
from shardgym.costs.shard_keys import ShardKey, shard_loads

TABLE = EmbeddingTable("a", 100_000, 64, 20.0)
OTHER = EmbeddingTable("b", 50_000, 32, 4.0)
MODELLED = [("roofline", {}), ("roofline", {"hardware": "h100"}), ("gpu", {"hardware": "h100", "ids": True})]


def task_with(**changes):
    """Two devices, and a first table of another kind."""
    return ShardingTask((dataclasses.replace(TABLE, **changes), OTHER), Topology(2, memory_bytes=2**30), 8192)


def total_ms(cost, task):
    plan = ShardingPlan.table_wise(task, [0, 1])
    return cost.evaluate(task, [plan])[0].total_ms


def test_a_table_says_what_differs_from_its_task():
    mixed = task_with(precision="fp16", optimizer="adam")
    assert [mixed.precision_of(t) for t in mixed.tables] == ["fp16", "fp32"]
    assert [mixed.optimizer_of(t) for t in mixed.tables] == ["adam", "exact_sgd"]
    assert mixed.table_bytes(mixed.tables[0]) == 100_000 * 64 * (2 + 8)
    assert mixed.table_bytes(OTHER) == 50_000 * 32 * 4
    assert mixed.total_bytes == sum(ShardingPlan.table_wise(mixed, [0, 1]).bytes_per_device(mixed))
    rowwise = dataclasses.replace(task_with(precision="fp16"), optimizer="rowwise_adagrad")
    sizes = rowwise.columns_bytes(np.array([0, 0, 1, 1]), np.array([64, 8, 32, 0]))
    assert sizes.tolist() == [100_000 * (64 * 2 + 4), 100_000 * (8 * 2 + 4), 50_000 * (32 * 4 + 4), 0]


def test_two_ways_of_one_statement_make_one_task():
    every = {"topology": Topology(2, memory_bytes=2**30), "batch_size": 8192}
    alike = ShardingTask((TABLE, OTHER), optimizer="adam", **every)
    by_tables = ShardingTask(tuple(dataclasses.replace(table, optimizer="adam") for table in (TABLE, OTHER)), **every)
    assert (by_tables, by_tables.digest) == (alike, alike.digest)
    check_alike(by_tables, "cost 'fbgemm'")
    assert task_with(precision="fp32", optimizer="exact_sgd") == task_with()
    assert ShardingTask.from_json(by_tables.to_json()) == alike


@pytest.mark.parametrize(("name", "settings"), MODELLED)
def test_modelled_costs_price_what_tables_say(name, settings):
    cost = make_cost(name, **settings)
    plain = total_ms(cost, task_with())
    assert total_ms(cost, task_with(precision="fp32", optimizer="exact_sgd")) == plain
    assert total_ms(cost, task_with(precision="fp16")) < plain
    adam = task_with(optimizer="adam")
    assert total_ms(cost, adam) > plain
    assert total_ms(cost, task_with(weighted=True)) > plain
    # As many ids, in more bags.
    assert total_ms(cost, task_with(num_features=3)) > plain
    (found,) = cost.evaluate(adam, [ShardingPlan.table_wise(adam, [0, 1])])
    assert any("TorchRec runs 2 operators" in note for note in found.notes)


@pytest.mark.parametrize(("name", "settings"), MODELLED)
def test_features_that_share_a_table_cost_less_than_tables_of_their_own(name, settings):
    """They fetch the same rows, and put out as much."""
    cost = make_cost(name, **settings)
    shared = dataclasses.replace(task_with(), tables=(dataclasses.replace(TABLE, num_features=2),))
    halves = tuple(dataclasses.replace(TABLE, name=name, pooling_factor=10.0) for name in "ab")
    apart = dataclasses.replace(shared, tables=halves)
    (one,) = cost.evaluate(shared, [ShardingPlan.table_wise(shared, [0])])
    (two,) = cost.evaluate(apart, [ShardingPlan.table_wise(apart, [0, 0])])
    np.testing.assert_allclose(one.per_device[:, [0, 3]], two.per_device[:, [0, 3]], rtol=1e-9)
    assert one.total_ms < two.total_ms
    assert one.total_ms > 0.5 * two.total_ms


def test_loads_have_bags_of_features_and_bytes_of_weights():
    task = task_with(num_features=3, weighted=True, precision="fp16")
    whole = shard_loads(task, ShardKey("a", 100_000, 64))
    assert (whole[COLUMNS], whole[SHARDS], whole[IDS]) == (192, 3, 30.0)
    rows = shard_loads(task, ShardKey("a", 50_000, 64))
    assert (rows[ROW_COLUMNS], rows[IDS]) == (96, 15.0)
    everywhere = shard_loads(task, ShardKey("a", 100_000, 64, served=1))
    assert everywhere[REPLICA_BYTES] == 100_000 * 64 * 2


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"precision": "fp16"}, "weights in fp16 and the task is in fp32"),
        ({"optimizer": "adam"}, "optimizer adam and the task exact_sgd"),
        ({"num_features": 2}, "2 features"),
        ({"weighted": True}, "weighted ids"),
    ],
)
@pytest.mark.parametrize("name", ["simulator", "torchrec_rating", "fbgemm"])
def test_other_costs_refuse_what_they_know_nothing_of(name, changes, found):
    task = task_with(**changes)
    with make_cost(name) as cost, pytest.raises(InputError, match=f"knows tables of one.*table 'a' has {found}"):
        cost.evaluate(task, [ShardingPlan.table_wise(task, [0, 1])])
