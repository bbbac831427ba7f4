"""Collectives of tables that are cut by rows or replicated: their times by hand, and which costs price them."""

import dataclasses

import numpy as np
import pytest

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology, ZipfIds, make_cost
from shardgym.costs import links
from shardgym.costs.links import (
    COLUMNS,
    LOADS,
    operators,
    output_exchange_ms,
    reduce_scatter_ms,
    replica_exchange_ms,
    transfer_ms,
)
from shardgym.costs.plan_cost import PHASES
from shardgym.tables.row_access import distinct_rows

#: Inside 1,000 bytes take 1 ms and each start 1 ms; between domains 1,000 bytes take 10 ms and each start 2 ms.
LINKS = {"intra_bandwidth": 1e6, "inter_bandwidth": 1e5, "intra_latency_ms": 1.0, "inter_latency_ms": 2.0}
FOUR = Topology(num_devices=4, memory_bytes=2**30, **LINKS)
TWO_DOMAINS = dataclasses.replace(FOUR, fast_domain_size=2)

HISTOGRAM = (0.5, 0.2, 0.1, 0.1, 0.1, *[0.0] * 12)
TABLES = (
    EmbeddingTable("big", 4000, 32, 5.0, ids=ZipfIds(1.1)),
    EmbeddingTable("seen", 3000, 16, 2.0, reuse_histogram=HISTOGRAM),
    EmbeddingTable("small", 40, 8, 1.0),
)


def loads_of(**columns):
    """Loads of four devices from some of their columns."""
    loads = np.zeros((1, 4, LOADS))
    for name, values in columns.items():
        loads[0, :, getattr(links, name)] = values
    return loads


def task_on(topology, batch_size=1024, **options):
    return ShardingTask(TABLES, topology, batch_size, **options)


def rows_of(table, *devices):
    edges = np.linspace(0, table.num_embeddings, len(devices) + 1).astype(int).tolist()
    columns = (0, table.embedding_dim)
    return [Shard(table.name, edges[n : n + 2], columns, device) for n, device in enumerate(devices)]


def cost_of(name, task, shards, group_size=None):
    return make_cost(name).evaluate(task, [ShardingPlan.of(task, shards, group_size)])[0]


def test_a_reduce_scatter_passes_all_but_one_share_over_each_link():
    assert reduce_scatter_ms(FOUR, np.array([4000.0, 0.0])).tolist() == [1 + 3, 0]
    # Two devices of a domain have two links to the other one.
    assert reduce_scatter_ms(TWO_DOMAINS, np.array(4000.0)) == 2 + 3000 / 2e5 * 1e3
    slow_inside = dataclasses.replace(TWO_DOMAINS, intra_bandwidth=1.5e5)
    assert reduce_scatter_ms(slow_inside, np.array(4000.0)) == 2 + 3000 / 1.5e5 * 1e3


def test_row_shards_are_exchanged_as_columns_of_their_table_whatever_holds_them():
    alone = output_exchange_ms(FOUR, loads_of(ROW_COLUMNS=[4, 4, 4, 4]), 100, 4)
    np.testing.assert_allclose(alone, 1 + 100 * 16 * 4 * 3 / 4 / 1e6 * 1e3)
    np.testing.assert_allclose(output_exchange_ms(FOUR, loads_of(ROW_COLUMNS=[10, 6, 0, 0]), 100, 4), alone)
    columns = loads_of(COLUMNS=[8, 0, 0, 8])
    both = columns + loads_of(ROW_COLUMNS=[4, 4, 4, 4])
    transfer = transfer_ms(FOUR, columns[..., COLUMNS], 100, 4)
    np.testing.assert_allclose(output_exchange_ms(FOUR, both, 100, 4), transfer + alone)


def test_sums_of_one_domain_are_added_up_there_and_then_cross():
    """A table of 8 columns in the first domain, one of 4 in the second one."""
    loads = loads_of(DOMAIN_ROW_COLUMNS=[4, 4, 2, 2])
    inside = 1 + 100 * 8 * 4 / 2 / 1e6 * 1e3
    # A device has 8 columns of 25 samples for its place in the other domain, or gets as many.
    between = 2 + 8 * 25 * 4 / 1e5 * 1e3
    np.testing.assert_allclose(output_exchange_ms(TWO_DOMAINS, loads, 100, 4), [[inside + between] * 4])


def test_replicas_and_places_of_groups_all_reduce():
    everywhere = loads_of(REPLICA_BYTES=[4000] * 4)
    np.testing.assert_allclose(replica_exchange_ms(FOUR, everywhere, 1), 2 * (1 + 3))
    places = everywhere + loads_of(GROUP_BYTES=[2000, 0, 2000, 0])
    # Two groups of a domain each: the places of both have a link each.
    expected = [[2 * (2 + 15) + 2 * (2 + 10), 2 * (2 + 15)] * 2]
    np.testing.assert_allclose(replica_exchange_ms(TWO_DOMAINS, places, 2), expected)
    rarely = replica_exchange_ms(TWO_DOMAINS, places, 2, interval=4)
    np.testing.assert_allclose(rarely, [[2 * (2 + 15) + (2 + 10) / 2, 2 * (2 + 15)] * 2])


def test_each_way_to_exchange_outputs_has_an_operator():
    loads = loads_of(COLUMNS=[4, 0, 0, 4], ROW_COLUMNS=[1, 1, 0, 0], DOMAIN_ROW_COLUMNS=[0, 0, 0, 2], REPLICAS=[1] * 4)
    assert operators(loads).tolist() == [[3, 2, 1, 3]]
    assert operators(np.zeros((2, LOADS))).tolist() == [0, 0]


@pytest.mark.parametrize("cost", ["roofline", "gpu"])
def test_another_operator_costs_its_start(cost):
    """The same shards, of which one is cut by rows and one is not, against both whole."""
    task = task_on(Topology.preset("dgx-h100", 2, 2**30))
    big, seen, small = task.tables
    held = [Shard.whole(seen, 0), Shard.whole(small, 1)]
    prices = make_cost(cost).additive()
    batch = prices.batch(task, [ShardingPlan.of(task, [*rows_of(big, 0, 1), *held])])
    vectors = prices.vectors(batch.shards)
    sums = np.stack([vectors[batch.devices == device].sum(axis=0) for device in range(2)])
    counts = np.array([2, 2])
    extra = prices.exact_compute_ms(sums) - prices.device_ms(sums[:, :-LOADS], counts)
    np.testing.assert_allclose(extra, prices.operator_ms(sums[:, :-LOADS], counts), rtol=1e-9)
    assert (extra > 0).all()


@pytest.mark.parametrize("cost", ["roofline", "gpu"])
def test_many_small_tables_are_better_replicated_and_large_ones_are_not(cost):
    def total_ms(num_embeddings, replicated):
        tables = tuple(EmbeddingTable(f"t{n}", num_embeddings, 64, 3.0) for n in range(64))
        task = ShardingTask(tables, Topology.preset("dgx-h100", 8), batch_size=65536)
        holders = [range(8) if replicated else (n % 8,) for n in range(64)]
        return cost_of(cost, task, [Shard.whole(t, *held) for t, held in zip(tables, holders, strict=True)]).total_ms

    assert total_ms(500, replicated=True) < 0.8 * total_ms(500, replicated=False)
    assert total_ms(1_000_000, replicated=True) > 2 * total_ms(1_000_000, replicated=False)


@pytest.mark.parametrize("cost", ["roofline", "gpu"])
def test_all_replicated_exchanges_gradients_alone(cost):
    task = task_on(Topology.preset("dgx-h100", 8, 2**30))
    found = cost_of(cost, task, [Shard.whole(table, *range(8)) for table in task.tables])
    assert np.ptp(found.per_device, axis=0).max() == 0
    assert not found.per_device[:, PHASES.index("forward_comm")].any()
    assert found.per_device[:, PHASES.index("backward_comm")].all()


@pytest.mark.parametrize("cost", ["roofline", "gpu"])
def test_a_group_works_as_a_task_of_its_own_and_then_exchanges_weights(cost):
    """Two groups of four with half of the samples each; ids come from laws, so that half a batch is one."""
    task = dataclasses.replace(task_on(Topology.preset("dgx-h100", 8, 2**30)), tables=(TABLES[0], TABLES[2]))
    big, small = task.tables
    half = dataclasses.replace(task, topology=Topology.preset("dgx-h100", 4, 2**30), batch_size=512)
    found = cost_of(cost, task, [*rows_of(big, (0, 4), (3, 7)), Shard.whole(small, 1, 5)], group_size=4)
    alone = cost_of(cost, half, [*rows_of(big, 0, 3), Shard.whole(small, 1)])
    per_device = found.per_device.copy()
    weights_ms = per_device[:4, 3] - alone.per_device[:, 3]
    assert (weights_ms[[0, 1, 3]] > 0).all()
    assert weights_ms[2] == pytest.approx(0)
    per_device[:, 3] -= np.tile(weights_ms, 2)
    np.testing.assert_allclose(per_device, np.tile(alone.per_device, (2, 1)), rtol=0.02)
    rare = dataclasses.replace(task, group_sync_interval=5)
    rarely = cost_of(cost, rare, [*rows_of(big, (0, 4), (3, 7)), Shard.whole(small, 1, 5)], group_size=4)
    np.testing.assert_allclose(rarely.per_device[:4, 3] - alone.per_device[:, 3], weights_ms / 5, atol=1e-9)


def test_a_share_of_the_samples_touches_fewer_rows_than_all_and_more_than_its_share():
    seen = TABLES[1]
    whole = distinct_rows(seen, 1024)
    assert whole / 4 < distinct_rows(seen, 1024, served=1 / 4) < whole
    once = dataclasses.replace(seen, reuse_histogram=(1.0, *[0.0] * 16))
    assert distinct_rows(once, 1024, served=1 / 4) == pytest.approx(512)


@pytest.mark.parametrize(
    ("cost", "holders", "group_size", "message"),
    [
        ("simulator", (0, 1, 2, 3), None, "cost 'simulator' prices no replicas, and table 'big' is held by"),
        ("roofline", (0, 2), None, "table 'big' is in tiers: its rows are held by devices 0, "),
        ("roofline", (0, 3), 2, "table 'big' is in tiers: its rows are held by devices 0, "),
    ],
)
def test_what_a_cost_does_not_know_has_no_price(cost, holders, group_size, message):
    task = task_on(FOUR)
    rest = (0, 2) if group_size else (0,)
    held = [Shard.whole(task.tables[0], *holders), *(Shard.whole(table, *rest) for table in task.tables[1:])]
    found = cost_of(cost, task, held, group_size)
    assert not found.feasible
    assert message in found.reason


def test_groups_across_domains_have_no_price():
    task = task_on(dataclasses.replace(FOUR, num_devices=6, memory_bytes=(2**30,) * 6, fast_domain_size=2))
    found = cost_of("roofline", task, [Shard.whole(table, 0, 3) for table in task.tables], 3)
    assert found.reason == "groups of 3 devices are neither parts nor multiples of fast domains of 2"
