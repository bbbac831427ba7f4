"""The link model, with collectives of tables cut by rows or replicated: by hand, and which costs price them."""

import dataclasses

import numpy as np
import pytest

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology, ZipfIds, make_cost
from shardgym.costs import links as module
from shardgym.costs.links import (
    COLUMNS,
    LOADS,
    exchange_times,
    operators,
    output_exchange_ms,
    reduce_scatter_ms,
    replica_exchange_ms,
    transfer_ms,
)
from shardgym.costs.plan_cost import PHASES
from shardgym.costs.shard_keys import output_widths


def topology(devices, **links):
    values = {"intra_latency_ms": 1.0, "inter_latency_ms": 5.0, "intra_bandwidth": 4e6, "inter_bandwidth": 1e6}
    return Topology(num_devices=devices, memory_bytes=2**30, **{**values, **links})


def task(devices, **links):
    tables = tuple(EmbeddingTable(name, 100, 8) for name in "ab")
    return ShardingTask(tables=tables, topology=topology(devices, **links), batch_size=1000)


@pytest.mark.parametrize(
    ("links", "widths", "element_bytes", "ms"),
    [
        # Each sends 500 samples x 8 columns x 4 bytes = 16,000 bytes: 4 ms at 4e6 bytes/s, plus 1 ms.
        ({}, [8, 8], 4, [5, 5]),
        ({}, [8, 8], 2, [3, 3]),
        # Device 0 sends 500 x 16 x 4 = 32,000 bytes, device 1, which has no shard, receives as many.
        ({}, [16, 0], 4, [9, 9]),
        # 250 samples each. To the other domain: 500 x 8 x 4 = 16,000 bytes at 1e6: 16 + 5 ms. Inside: 250 x 8 x 4 =
        # 8,000 bytes at 4e6: 2 + 1 ms, hidden behind the slower links.
        ({"fast_domain_size": 2}, [8, 8, 8, 8], 4, [21] * 4),
        # Alone in its domain, a device uses only the links between domains.
        ({"fast_domain_size": 1, "intra_latency_ms": 1000.0}, [8, 8], 4, [21, 21]),
    ],
)
def test_an_all_to_all_takes_latency_plus_bytes_over_bandwidth(links, widths, element_bytes, ms):
    made = topology(len(widths), **links)
    assert transfer_ms(made, np.array(widths), 1000, element_bytes) == pytest.approx(ms)


def exchanges(toy, compute_ms, placement, *, ids_hidden):
    """Exchanges of a plan of whole tables, by forward and backward compute of its devices."""
    widths = np.array(output_widths(toy, ShardingPlan.table_wise(toy, placement)))
    transfer = transfer_ms(toy.topology, widths, toy.batch_size, 4)
    return exchange_times(np.array(compute_ms), transfer, ids_hidden=ids_hidden)


@pytest.mark.parametrize("ids_hidden", [True, False])
def test_one_device_does_not_communicate(ids_hidden):
    assert not np.any(exchanges(task(1), [[7.0, 3.0]], [0, 0], ids_hidden=ids_hidden))


@pytest.mark.parametrize(
    ("ids_hidden", "forward_ms", "backward_ms"),
    [
        # Nobody waits for the exchange of gradients, and those with less of it wait in the forward exchange.
        (True, [24.2 + 19.2 + 0.5, 24.2 + 19.2, 43.4], [24.2, 24.2, 43.4]),
        # All leave each exchange with device 2, which enters the forward exchange with 4 ms of compute done.
        (False, [43.4 + 0.5, 43.4, 43.4], [43.4] * 3),
    ],
)
def test_devices_wait_for_the_busiest_link(ids_hidden, forward_ms, backward_ms):
    """In domains {0, 1} and {2}: device 2 exchanges everything over slow links. Device 0 computes 0.5 ms less."""
    three = dataclasses.replace(task(3, fast_domain_size=2), batch_size=900)
    found = exchanges(three, [[3.5, 6.0], [4.0, 6.0], [4.0, 6.0]], [2, 2], ids_hidden=ids_hidden)
    # Device 2 sends 600 x 16 x 4 = 38,400 bytes between domains; 0 and 1 receive 300 x 16 x 4 = 19,200 each.
    assert found.backward_ms == pytest.approx(backward_ms)
    assert found.forward_ms == pytest.approx(forward_ms)


def test_row_shards_count_with_their_full_width_and_tables_with_all_that_they_put_out():
    """Three features of 8 columns; 5 rows of 4 columns for each sample; replicas put out nothing for others."""
    tables = EmbeddingTable("a", 100, 8, num_features=3), EmbeddingTable("b", 100, 8, 5.0, pooling="none")
    two = dataclasses.replace(task(2), tables=(*tables, EmbeddingTable("c", 100, 64)))
    shards = [Shard("a", (0, 50), (0, 8), 0), Shard("a", (50, 100), (0, 8), 1), Shard("b", (0, 100), (0, 4), 0)]
    plan = ShardingPlan.of(two, [*shards, Shard("b", (0, 100), (4, 8), 1), Shard.whole(two.tables[2], 0, 1)])
    assert output_widths(two, plan) == [24 + 20, 24 + 20]


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
        loads[0, :, getattr(module, name)] = values
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


@pytest.mark.parametrize(
    ("cost", "holders", "group_size", "message"),
    [
        ("simulator", (0, 1, 2, 3), None, "cost 'simulator' prices no replicas, but table 'big' is held by"),
        ("roofline", (0, 2), None, "'big' is in tiers, which only 'replay' prices: its rows are held by devices 0, "),
        ("roofline", (0, 3), 2, "'big' is in tiers, which only 'replay' prices: its rows are held by devices 0, "),
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
    assert found.reason == "groups of 3 devices neither divide fast domains of 2 nor are multiples of them"
