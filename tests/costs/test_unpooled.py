"""Unpooled tables, which put out a row for each id: what records say of them, and what costs make of them."""

import dataclasses

import numpy as np
import pytest

from neuroshard.plus.sharing import even_rows
from shardgym import EmbeddingTable, InputError, Shard, ShardingPlan, ShardingTask, StepMemory, Topology, make_cost
from shardgym.costs.devices import DEVICES
from shardgym.costs.gpu.cost import shard_sizes
from shardgym.costs.gpu.exchange import exchange_ms, exchange_topology
from shardgym.costs.links import COLUMNS, DOMAIN_ROW_COLUMNS, IDS, REPLICA_BYTES, ROW_COLUMNS, SHARDS
from shardgym.costs.roofline import shard_ms
from shardgym.costs.shard_keys import ShardKey, plan_keys, shard_loads
from shardgym.tables.row_access import distinct_rows

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
    with pytest.raises(InputError, match="table 'sequence' is weighted and not pooled"):
        dataclasses.replace(SEQUENCE, weighted=True)


def test_the_simulator_refuses_unpooled_tables_in_plans_and_in_searches():
    task, cost = task_of(POOLED, SEQUENCE), make_cost("simulator")
    with pytest.raises(InputError, match=r"pooled tables alone: table 'sequence' has pooling"):
        cost.evaluate(task, [ShardingPlan.table_wise(task, [0, 1])])
    with pytest.raises(InputError, match="the simulator knows pooled tables alone"):
        cost.additive().add_task(task)


def test_replicas_of_unpooled_tables_are_not_measured():
    task = task_of(SEQUENCE, device="cpu-core")
    with make_cost("fbgemm") as cost:
        (found,) = cost.evaluate(task, [ShardingPlan.of(task, [Shard.whole(SEQUENCE, 0, 1)])])
    assert "unpooled and held by devices 0, 1: FBGEMM's dense kernel pools rows on CPUs" in found.reason


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
    with make_cost(name) as cost, pytest.raises(InputError, match="knows no ids without repeats"):
        cost.evaluate(task, [ShardingPlan.table_wise(task, [0])])
