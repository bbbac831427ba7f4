"""Tables that are mixed, unpooled or skewed: what records say of them, and what costs make of them."""

import dataclasses

import numpy as np
import pytest

from neuroshard.plus.sharing import even_rows
from shardgym import (
    EmbeddingTable,
    InputError,
    RangeIds,
    Shard,
    ShardingPlan,
    ShardingTask,
    StepMemory,
    Topology,
    UniformIds,
    ZipfIds,
    make_cost,
)
from shardgym.costs.devices import DEVICES
from shardgym.costs.gpu.cost import shard_sizes
from shardgym.costs.gpu.exchange import exchange_ms, exchange_topology
from shardgym.costs.gpu.kernels import row_classes
from shardgym.costs.links import COLUMNS, DOMAIN_ROW_COLUMNS, IDS, REPLICA_BYTES, ROW_COLUMNS, SHARDS
from shardgym.costs.mixed_tables import check_alike
from shardgym.costs.plan_cost import PHASES
from shardgym.costs.roofline import shard_ms
from shardgym.costs.shard_keys import ShardKey, plan_keys, shard_loads
from shardgym.tables.row_access import access_share, distinct_rows

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
        ({"precision": "fp16"}, "precision fp16, and the task fp32"),
        ({"optimizer": "adam"}, "optimizer adam, and the task exact_sgd"),
        ({"num_features": 2}, "2 features"),
        ({"weighted": True}, "weighted ids"),
    ],
)
@pytest.mark.parametrize("name", ["simulator", "torchrec_rating", "fbgemm"])
def test_other_costs_refuse_what_they_know_nothing_of(name, changes, found):
    task = task_with(**changes)
    with make_cost(name) as cost, pytest.raises(InputError, match=f"supports tables of one.*table 'a' has {found}"):
        cost.evaluate(task, [ShardingPlan.table_wise(task, [0, 1])])


POOLED = EmbeddingTable("pooled", 50_000, 32, 4.0)
SEQUENCE = EmbeddingTable("sequence", 100_000, 64, 20.0, num_features=2, pooling="none")


def task_of(*tables, devices=2, device="h100"):
    """Some tables on one node."""
    topology = Topology(devices, memory_bytes=2**34, device=device)
    return ShardingTask(tables, topology, 8192)


def test_a_table_says_that_it_is_unpooled():
    assert not SEQUENCE.is_pooled
    assert POOLED.is_pooled
    assert dataclasses.replace(POOLED, pooling="mean").is_pooled
    assert EmbeddingTable.from_json(SEQUENCE.to_json()) == SEQUENCE
    with pytest.raises(InputError, match="table 'sequence' is weighted but unpooled"):
        dataclasses.replace(SEQUENCE, weighted=True)


def test_the_simulator_refuses_unpooled_tables_in_plans_and_in_searches():
    task, cost = task_of(POOLED, SEQUENCE), make_cost("simulator")
    with pytest.raises(InputError, match=r"pooled tables only, but table 'sequence' has pooling"):
        cost.evaluate(task, [ShardingPlan.table_wise(task, [0, 1])])
    with pytest.raises(InputError, match="the simulator supports pooled tables only"):
        cost.additive().add_task(task)


def test_replicas_of_unpooled_tables_are_not_measured():
    task = task_of(SEQUENCE, device="cpu-core")
    with make_cost("fbgemm") as cost:
        (found,) = cost.evaluate(task, [ShardingPlan.of(task, [Shard.whole(SEQUENCE, 0, 1)])])
    assert "unpooled but held by devices 0, 1: FBGEMM's dense CPU kernel only pools" in found.reason


@pytest.mark.measured
def test_steps_are_measured_and_exchange_rows():
    """Twice the ids of a sample are about twice the rows that travel, by the link model."""
    tables = [EmbeddingTable("t", 2000, 32, ids, pooling="none") for ids in (10.0, 20.0)]
    found = []
    with make_cost("fbgemm", rounds=2, warmups=1, iterations=2, comm="modelled") as cost:
        for table in tables:
            task = task_of(table, device="cpu-core")
            found += cost.evaluate(task, [ShardingPlan.of(task, even_rows(table, 2))])
    assert all(of.reason is None for of in found)
    few, many = (of.per_device[:, 3].max() for of in found)
    assert 1.3 * few < many < 3 * few


def loads_of(task, *shards):
    return [shard_loads(task, key) for key in plan_keys(task, ShardingPlan.of(task, shards))]


def test_a_row_travels_for_each_id_however_the_table_is_cut():
    """20 ids a sample, of two features: 20 x 64 columns go to its device, whoever holds them."""
    task = task_of(SEQUENCE)
    rows, width = SEQUENCE.num_embeddings, SEQUENCE.embedding_dim
    by_columns = [Shard("sequence", (0, rows), (32 * n, 32 * n + 32), n) for n in range(2)]
    whole = Shard.whole(SEQUENCE, 0)
    for shards, columns, ids in (
        ([whole], [20 * 64], [20]), (by_columns, [20 * 32] * 2, [20] * 2),
        (even_rows(SEQUENCE, 2), [10 * 64] * 2, [10] * 2),
    ):  # fmt: skip
        loads = loads_of(task, *shards)
        assert [load[COLUMNS] for load in loads] == pytest.approx(columns)
        assert [load[IDS] for load in loads] == pytest.approx(ids)
        assert [load[SHARDS] for load in loads] == [2.0] * len(loads)
        assert not any(load[ROW_COLUMNS] or load[DOMAIN_ROW_COLUMNS] for load in loads)
    (replica,) = loads_of(task, Shard.whole(SEQUENCE, 0, 1))
    assert (replica[COLUMNS], replica[REPLICA_BYTES]) == (0.0, 4 * rows * width)


def test_without_repeats_a_device_gets_one_row_for_each_distinct_id():
    """Each of two devices has 4,096 samples with 81,920 lookups of 100,000 rows."""
    task = dataclasses.replace(task_of(SEQUENCE), dedup_ids=True)
    assert task.digest != task_of(SEQUENCE).digest
    distinct = 100_000 * (1 - (1 - 1 / 100_000) ** 81_920)
    (load,) = loads_of(task, Shard.whole(SEQUENCE, 0))
    assert load[IDS] == pytest.approx(distinct / 4096)
    assert load[COLUMNS] == pytest.approx(64 * distinct / 4096)
    halves = loads_of(task, *even_rows(SEQUENCE, 2))
    assert [half[COLUMNS] for half in halves] == pytest.approx([32 * distinct / 4096] * 2)


@pytest.mark.parametrize("device", ["cpu-core", "h100"])
def test_roofline_by_hand(device):
    """As a table of as many bags of one id each, but for the offsets of bags, and for gradients that cores collect."""
    task = task_of(SEQUENCE, device=device)
    bags = 8192 * 20
    alike = dataclasses.replace(
        task,
        tables=(dataclasses.replace(SEQUENCE, pooling="sum", pooling_factor=1.0, num_features=1),),
        batch_size=bags,
    )
    key = ShardKey("sequence", 100_000, 64)
    constants = DEVICES[device]
    unpooled, pooled = (np.array(shard_ms(constants, of, key)) for of in (task, alike))
    offsets_ms = (bags - 2 * 8192) * 8 / constants.memory_bandwidth * 1e3
    collected_ms = distinct_rows(SEQUENCE, 8192) * constants.unpooled_row_ns * 1e-6
    assert unpooled - constants.table_ms == pytest.approx(pooled - [offsets_ms, -collected_ms])


@pytest.mark.parametrize("once", [False, True])
def test_gpu_by_hand(once):
    """One table on one of 16 GPUs: the exchange carries the rows of all ids, or of the distinct ones of each GPU."""
    task = ShardingTask((SEQUENCE,), Topology.preset("dgx-h100", 16), 65_536, dedup_ids=once)
    (found,) = make_cost("gpu", ids=True).evaluate(task, [ShardingPlan.table_wise(task, [0])])
    (halved,) = make_cost("gpu", ids=True, wire="fp16").evaluate(task, [ShardingPlan.table_wise(task, [0])])
    draws = 4096 * 20
    rows = 100_000 * (1 - (1 - 1 / 100_000) ** draws) if once else draws
    links = exchange_topology(None, task.topology)
    columns = np.array([64 * rows / 4096] + [0.0] * 15)
    assert found.per_device[:, 3] == pytest.approx(exchange_ms(links, columns, 65_536, 4).max())  # all wait for it
    assert halved.per_device[:, 3] == pytest.approx(exchange_ms(links, columns, 65_536, 2).max())
    lookups = 16 * rows
    sizes = shard_sizes([(SEQUENCE, (0, 100_000), 64)], 65_536, "fp32", "exact_sgd", senders=16 if once else 1)
    assert sizes.ids[0] == pytest.approx(lookups, rel=1e-3)
    assert not sizes.pooled[0]
    assert (sizes.touched * sizes.accesses).sum() == pytest.approx(lookups, rel=1e-3)


def test_memory_by_hand():
    """Rows of all ids that a shard receives, and at home those of the own samples; a quantiser copies them."""
    step = StepMemory(
        input_copies=1, id_copies=1, output_copies=2, partial_sum_copies=3, joined_output_copies=1, gradient_copies=1,
        quantizer_copies=0,
    )  # fmt: skip
    task = dataclasses.replace(task_of(SEQUENCE), step_memory=step)
    ids = 8192 * 20
    whole = task.shard_bytes(SEQUENCE, (0, 100_000), 64)
    assert whole.ids == 8 * ids + 8192 * 2 * 8
    assert whole.outputs == 64 * 2 * 4 * ids
    assert task.own_bytes(0) == 4096 * (20 * 8 + 2 * 8) + 4096 * 20 * 64 * 4
    # A range of rows has rows and no partial sums, in the hottest batch a little more than half of them.
    half = task.shard_bytes(SEQUENCE, (0, 50_000), 64, hottest=False)
    assert half.outputs == whole.outputs / 2
    assert half.outputs < task.shard_bytes(SEQUENCE, (0, 50_000), 64).outputs < 1.02 * half.outputs
    quantized = dataclasses.replace(step, quantizer_copies=5)
    tables = (dataclasses.replace(SEQUENCE, precision="fp32"),)
    narrowed = dataclasses.replace(task, tables=tables, precision="fp16", step_memory=quantized)
    assert narrowed.shard_bytes(tables[0], (0, 100_000), 64)[3:] == (64 * ids * 2 * 4, 64 * ids * 5 * 2)
    once = dataclasses.replace(task, dedup_ids=True)
    distinct = 2 * 100_000 * (1 - (1 - 1 / 100_000) ** 81_920)
    assert once.shard_bytes(SEQUENCE, (0, 100_000), 64).outputs == pytest.approx(64 * 2 * 4 * distinct, rel=1e-6)
    assert once.own_bytes(0) == task.own_bytes(0)


@pytest.mark.parametrize("name", ["simulator", "torchrec_rating", "fbgemm"])
def test_costs_that_know_all_ids_alone_refuse_ids_without_repeats(name):
    task = dataclasses.replace(task_of(POOLED), dedup_ids=True)
    with make_cost(name) as cost, pytest.raises(InputError, match="does not support tasks with dedup_ids"):
        cost.evaluate(task, [ShardingPlan.table_wise(task, [0])])


FORWARD = PHASES.index("forward_compute")
BY_FREQUENCY = ZipfIds(s=1.1, row_order="by_frequency")
#: One range has half of the rows and nine tenths of the lookups.
NINE_TENTHS = RangeIds(shares=(0.9, 0.1))


def skewed_task(ids, rows=100_000, pooling=20.0, device="h100", devices=4, **fields):
    table = EmbeddingTable("t", rows, 32, pooling, ids, **fields)
    topology = Topology(num_devices=devices, memory_bytes=2**30, device=device)
    return ShardingTask((table,), topology, 8192)


def by_rows(task):
    return ShardingPlan.of(task, even_rows(task.tables[0], task.num_devices))


@pytest.mark.parametrize(("cost", "device"), [("roofline", "cpu-core"), ("roofline", "h100"), ("gpu", "h100")])
def test_the_hot_rank_computes_longest_and_the_coldest_least(cost, device):
    task = skewed_task(BY_FREQUENCY, device=device)
    (answer,) = make_cost(cost).evaluate(task, [by_rows(task)])
    forward = answer.per_device[:, FORWARD]
    assert (np.diff(forward) < 0).all()
    fair = skewed_task(ZipfIds(s=1.1), device=device)
    (even,) = make_cost(cost).evaluate(fair, [by_rows(fair)])
    assert np.ptp(even.per_device[:, FORWARD]) == 0
    assert forward[-1] < even.per_device[0, FORWARD] < forward[0]
    assert answer.total_ms > even.total_ms


@pytest.mark.parametrize("cost", ["roofline", "gpu"])
def test_whole_tables_and_columns_cost_the_same_wherever_hot_rows_lie(cost):
    found = []
    for ids in (ZipfIds(s=1.1), BY_FREQUENCY, ZipfIds(s=1.1, row_order="scattered")):
        task = skewed_task(ids)
        columns = [Shard("t", (0, 100_000), (8 * n, 8 * n + 8), n) for n in range(4)]
        plans = [ShardingPlan.table_wise(task, [0]), ShardingPlan.of(task, columns)]
        found.append([answer.per_device.tolist() for answer in make_cost(cost).evaluate(task, plans)])
    assert found[0] == found[1] == found[2]


def test_ids_without_repeats_are_those_of_the_range():
    task = dataclasses.replace(skewed_task(NINE_TENTHS), dedup_ids=True)
    table = task.tables[0]
    for key in plan_keys(task, by_rows(task)):
        start, stop = key.row_range
        lookups = table.pooling_factor * access_share(table, start, stop)
        distinct = distinct_rows(table, 8192, start, stop, 1 / 4) / (8192 / 4)
        assert shard_loads(task, key)[IDS] == pytest.approx(distinct + lookups / 2)


@pytest.mark.parametrize("pooling", [20.0, 0.001, 0.0])
@pytest.mark.parametrize("reuse", [None, (0.6, 0.2, 0.1, 0.05, 0.03, 0.02, *[0.0] * 11)])
@pytest.mark.parametrize(
    "ids", [UniformIds(), ZipfIds(1.05), BY_FREQUENCY, NINE_TENTHS, ZipfIds(s=1.1, row_order="blocks", block_rows=5000)]
)
def test_classes_of_ranges_add_up_to_their_lookups_and_distinct_rows(ids, reuse, pooling):
    table = EmbeddingTable("t", 100_000, 32, pooling, ids, reuse_histogram=reuse)
    for start, stop in ((0, 100_000), (0, 25_000), (25_000, 60_001), (60_001, 100_000)):
        rows, accesses = row_classes(table, 8192, start, stop)
        lookups = 8192 * pooling * access_share(table, start, stop)
        assert rows @ accesses == pytest.approx(max(lookups, rows.sum()), rel=1e-6)
        assert rows.sum() == pytest.approx(distinct_rows(table, 8192, start, stop), rel=0.1)
        assert (accesses >= 1).all()


def test_the_simulator_follows_lookups_and_says_what_it_does_not_know():
    topology = Topology(num_devices=4, memory_bytes=2**30)
    known = dataclasses.replace(skewed_task(NINE_TENTHS, device="cpu-core"), topology=topology)
    cost = make_cost("simulator")
    rows, whole = cost.evaluate(known, [by_rows(known), ShardingPlan.table_wise(known, [0])])
    note = "ranges of rows that are more popular than others"
    assert any(note in text for text in rows.notes)
    assert not any(note in text for text in whole.notes)
    assert (rows.per_device[:2, FORWARD] > 1.5 * rows.per_device[2:, FORWARD]).all()
    fair = dataclasses.replace(skewed_task(ZipfIds(s=1.1), device="cpu-core"), topology=topology)
    (answer,) = cost.evaluate(fair, [by_rows(fair)])
    assert not any(note in text for text in answer.notes)
