"""Replayed streams: against a naive replay id by id, against other costs, and against what is expected."""

import dataclasses
import itertools
from collections import defaultdict

import numpy as np
import pytest
from rank_loads import expected_loads, replayed_loads

from shardgym import EmbeddingTable, InputError, Shard, ShardingPlan, ShardingTask, Topology, ZipfIds, make_cost
from shardgym.costs.replay.row_counts import ExpectedCounts, StreamCounts
from shardgym.tables.ids import draw_bags

HOT = ZipfIds(s=1.1, q=1.0, row_order="by_frequency", lengths="poisson")
NODES = Topology(
    num_devices=8, memory_bytes=(2**30,) * 8, device="a100", fast_domain_size=2, intra_bandwidth=4e9,
    inter_bandwidth=1e9, intra_latency_ms=0.02, inter_latency_ms=0.05,
)  # fmt: skip


def sequences(pooling="none", devices=8, batch_size=48, **more):
    tables = [EmbeddingTable(f"t{i}", 40 + 17 * i, 8, 3.0 + i, HOT, pooling=pooling, **more) for i in range(3)]
    topology = dataclasses.replace(NODES, num_devices=devices, memory_bytes=(2**30,) * devices)
    return ShardingTask(tuple(tables), topology, batch_size)


def tiers(task, rng, columns=((0, 8),)):
    """Rows in up to four ranges: held by all, by one device of every node, by one of every two nodes, and by one."""
    devices, size = task.num_devices, task.topology.fast_domain_size
    shards = []
    for table in task.tables:
        for width in columns:
            cuts = np.sort(rng.choice(np.arange(1, table.num_embeddings), 3, replace=False)).tolist()
            edges = [0, *cuts, table.num_embeddings]
            for per_block, (start, stop) in zip((1, size, 2 * size, devices), itertools.pairwise(edges), strict=True):
                pieces = np.unique(np.linspace(start, stop, per_block + 1).astype(int)).tolist()
                for place, rows in zip(rng.permutation(per_block).tolist(), itertools.pairwise(pieces), strict=False):
                    shards.append(Shard(table.name, rows, width, tuple(range(place, devices, per_block))))
    return ShardingPlan.of(task, shards)


def nearest(task, shard, device):
    """The nearest holder in the words of the design: itself, one of its link domain, that of its group, the first."""
    size = task.topology.fast_domain_size
    if device in shard.devices:
        return device
    in_domain = [holder for holder in shard.devices if holder // size == device // size]
    group = task.num_devices // len(shard.devices)
    in_group = [holder for holder in shard.devices if holder // group == device // group]
    return [*in_domain, *in_group, *shard.devices][0]


def naive_bytes(task, plan):
    """Bytes of ids and of rows by (from, to), replayed id by id in plain Python; ids with the lengths of bags."""
    ids, rows = defaultdict(int), defaultdict(int)
    share = task.batch_size // task.num_devices
    for table in task.tables:
        bags = draw_bags(table, task.batch_size, seed=0)
        ends = [0, *np.cumsum(bags.lengths).tolist()]
        asked = set()
        for device in range(task.num_devices):
            own = bags.indices[ends[device * share] : ends[(device + 1) * share]].tolist()
            for row in sorted(set(own)) if task.dedup_ids else own:
                for shard in plan.of_table(table.name):
                    server = nearest(task, shard, device)
                    if shard.rows[0] <= row < shard.rows[1] and server != device:
                        ids[device, server] += 12 if table.weighted else 8
                        rows[server, device] += shard.num_columns * 4
            for shard in plan.of_table(table.name):
                asked.add((device, nearest(task, shard, device)))
        for device, server in asked:
            ids[device, server] += share * table.num_features * 8 * (device != server)
    return ids, rows


def sent_by_level(task, pairs):
    size = task.topology.fast_domain_size
    sent = np.zeros((task.num_devices, 2))
    for (sender, receiver), num_bytes in pairs.items():
        sent[sender, int(sender // size != receiver // size)] += num_bytes
    return sent


@pytest.mark.parametrize("dedup", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_bytes_of_rows_are_those_of_a_naive_replay(seed, dedup):
    task = dataclasses.replace(sequences(num_features=1 + seed % 2), dedup_ids=dedup)
    plan = tiers(task, np.random.default_rng(seed), [((0, 8),), ((0, 4), (4, 8))][seed // 2])
    assert all(plan.kind_of(table.name, task) == "tiers" for table in task.tables)
    found = make_cost("replay").traffic(task, plan)
    ids, rows = naive_bytes(task, plan)
    np.testing.assert_array_equal(found.ids, sent_by_level(task, ids))
    np.testing.assert_array_equal(found.outputs, sent_by_level(task, rows))
    back = {(receiver, sender): num_bytes for (sender, receiver), num_bytes in rows.items()}
    np.testing.assert_array_equal(found.gradients, sent_by_level(task, back))
    both = sent_by_level(task, ids)[:, 1].sum() + 2 * sent_by_level(task, rows)[:, 1].sum()
    assert found.global_all_to_all_bytes == both > 0


def test_times_of_rows_are_those_of_the_busier_direction_of_the_busier_link():
    task = sequences()
    plan = tiers(task, np.random.default_rng(5))
    [cost] = make_cost("replay").evaluate(task, [plan])
    _, rows = naive_bytes(task, plan)
    back = {(receiver, sender): num_bytes for (sender, receiver), num_bytes in rows.items()}
    busier = np.maximum(sent_by_level(task, rows), sent_by_level(task, back))
    transfer = (np.array([0.02, 0.05]) + busier / np.array([4e9, 1e9]) * 1e3).max(axis=1)
    forward = cost.per_device[:, 2]
    enters = cost.per_device[:, 0] + cost.per_device[:, 1]
    np.testing.assert_allclose(forward, (enters + transfer).max() - enters, rtol=1e-12)
    copied = cost.per_device[:, 3] - transfer.max()
    # Replicas exchange gradients of all their rows: 2 (n - 1) / n of the bytes cross each link of a ring.
    num_bytes = dict.fromkeys((8, 4, 2, 1), 0)
    for shard in plan.on(0):
        num_bytes[len(shard.devices)] += shard.num_rows * 8 * 4
    bandwidth = {8: 2e9, 4: 1e9, 2: 1e9}
    expected = sum(2 * (0.05 + (n - 1) / n * num_bytes[n] / bandwidth[n] * 1e3) for n in (8, 4, 2) if num_bytes[n])
    assert copied[0] == pytest.approx(expected, rel=1e-12)


def kinds_of(task):
    """One plan for each sharding type, and one in groups."""
    devices, size = task.num_devices, task.topology.fast_domain_size
    halves = ((0, 4), (4, 8))

    def rows(table, width, holders):
        edges = np.linspace(0, table.num_embeddings, len(holders) + 1).astype(int).tolist()
        return [Shard(table.name, of, width, d) for d, of in zip(holders, itertools.pairwise(edges), strict=True)]

    domain = [range(n * size, (n + 1) * size) for n in range(devices // size)]
    tables = list(enumerate(task.tables))
    return {
        "table_wise": [Shard.whole(t, n) for n, t in tables],
        "column_wise": [
            Shard(t.name, (0, t.num_embeddings), w, (n + 3 * k) % 8) for n, t in tables for k, w in enumerate(halves)
        ],
        "row_wise": [s for _, t in tables for s in rows(t, (0, 8), range(devices))],
        "table_row_wise": [s for n, t in tables for s in rows(t, (0, 8), domain[n])],
        "grid_shard": [s for n, t in tables for k, w in enumerate(halves) for s in rows(t, w, domain[n + k])],
        "data_parallel": [Shard.whole(t, *range(devices)) for _, t in tables],
        "groups": [Shard.whole(t, n, n + 4) for n, t in tables],
    }  # fmt: skip


KINDS = ["table_wise", "column_wise", "row_wise", "table_row_wise", "grid_shard", "data_parallel", "groups"]


@pytest.mark.parametrize(
    ("kind", "pooling", "dedup"),
    [*((kind, "sum", False) for kind in KINDS), ("table_wise", "none", False), ("table_wise", "none", True)],
)
def test_by_expectation_plans_take_what_roofline_says(kind, pooling, dedup):
    """Exchanges of pooled outputs depend on no ids; whole unpooled tables send as many rows as are expected."""
    task = dataclasses.replace(sequences(pooling, weighted=pooling == "sum"), dedup_ids=dedup)
    plan = ShardingPlan.of(task, kinds_of(task)[kind], 4 if kind == "groups" else None)
    if kind != "groups":
        assert {plan.kind_of(table.name, task) for table in task.tables} == {kind}
    [ours] = make_cost("replay", ids="expected").evaluate(task, [plan])
    [roofline] = make_cost("roofline").evaluate(task, [plan])
    np.testing.assert_allclose(ours.per_device[:, [1, 4]], roofline.per_device[:, [1, 4]], rtol=1e-9, atol=1e-12)
    # With ids in the step all wait for the exchange of the busiest device, for which roofline lets nobody wait on GPUs.
    np.testing.assert_allclose(ours.per_device[:, 3].max(), roofline.per_device[:, 3].max(), rtol=1e-9)


@pytest.mark.parametrize("dedup", [False, True])
def test_ids_of_pooled_tables_without_repeats_come_with_positions(dedup):
    task = dataclasses.replace(sequences("sum", weighted=True), dedup_ids=dedup)
    plan = ShardingPlan.of(task, kinds_of(task)["table_wise"])
    sent = make_cost("replay").traffic(task, plan).ids.sum(axis=1)
    expected = np.zeros(8)
    for number, table in enumerate(task.tables):
        bags = draw_bags(table, task.batch_size, seed=0)
        ends = [0, *np.cumsum(bags.lengths)[5::6].tolist()]
        for device in {*range(8)} - {number}:
            own = bags.indices[ends[device] : ends[device + 1]].tolist()
            expected[device] += 6 * 8 + (8 * len(set(own)) + 8 * len(own) if dedup else 12 * len(own))
    np.testing.assert_array_equal(sent, expected)


def added_up(task, plan, counts):
    """Lookups and distinct rows of every device, shard by shard."""
    found = np.zeros((2, task.num_devices))
    for shard in plan.shards:
        edges = np.unique([0, *shard.rows, task.table(shard.table).num_embeddings])
        at = edges.tolist().index(shard.rows[0])
        holders = list(shard.devices)
        found[0, holders] += counts[shard.table].counts(edges).lookups[at].reshape(len(holders), -1).sum(axis=1)
        found[1, holders] += counts[shard.table].touched(edges, len(holders))[at]
    return found


@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_ranks(seed):
    task = dataclasses.replace(sequences(), batch_size=4096)
    plan = tiers(task, np.random.default_rng(seed))
    streams = {t.name: StreamCounts(t, task.batch_size, 8, seed=3, batch=0) for t in task.tables}
    replayed = replayed_loads(task, plan, {t.name: draw_bags(t, task.batch_size, seed=3) for t in task.tables})
    np.testing.assert_array_equal(added_up(task, plan, streams), replayed)
    laws = {t.name: ExpectedCounts(t, task.batch_size, 8) for t in task.tables}
    np.testing.assert_allclose(added_up(task, plan, laws), expected_loads(task, plan), rtol=1e-9)


def test_rings_pass_on_the_bytes_that_the_link_model_prices():
    task = sequences("sum")
    cost = make_cost("replay")
    samples = task.batch_size * 4  # bytes of a column of the batch
    by_rows = cost.traffic(task, ShardingPlan.of(task, kinds_of(task)["row_wise"]))
    np.testing.assert_allclose(by_rows.outputs.sum(axis=1), 7 / 8 * 24 * samples)
    np.testing.assert_allclose(by_rows.outputs[:, 1], 7 / 8 * 24 * samples / 2)
    copies = cost.traffic(task, ShardingPlan.of(task, kinds_of(task)["data_parallel"]))
    weights = sum(table.num_embeddings * 8 * 4 for table in task.tables)
    assert not copies.ids.any()
    assert not copies.outputs.any()
    np.testing.assert_allclose(copies.replicas.sum(axis=1), 2 * 7 / 8 * weights)
    of_domains = cost.traffic(task, ShardingPlan.of(task, kinds_of(task)["table_row_wise"]))
    # In a domain a ring of two; between domains each device has half of the columns of three other domains' samples.
    np.testing.assert_allclose(of_domains.outputs[:6], [[4 * samples, 8 * samples / 8 * 3]] * 6)
    assert not of_domains.outputs[6:].any()


def test_several_batches_are_averaged():
    task = sequences()
    plan = tiers(task, np.random.default_rng(0))
    both = make_cost("replay", batches=2).evaluate(task, [plan])[0].per_device
    first = make_cost("replay").evaluate(task, [plan])[0].per_device
    assert (both != first).any()
    other_seed = make_cost("replay", seed=1).evaluate(task, [plan])[0].per_device
    assert (other_seed != first).any()
    np.testing.assert_array_equal(make_cost("replay").evaluate(task, [plan])[0].per_device, first)


def test_other_costs_say_who_prices_tiers():
    task = sequences("sum")
    [answer] = make_cost("roofline").evaluate(task, [tiers(task, np.random.default_rng(0))])
    assert "only 'replay' prices: some of its rows are held by devices 0, 1, 2, 3, 4, 5, 6, 7," in answer.reason
    assert answer.reason.endswith(
        ", expected all rows of a table on one device each, on all devices, or on the same place in every group"
    )


def test_groups_that_cut_domains_have_no_price():
    task = dataclasses.replace(
        sequences(), topology=dataclasses.replace(NODES, num_devices=6, memory_bytes=(2**30,) * 6)
    )
    plan = ShardingPlan.of(task, [Shard.whole(t, 0, 3) for t in task.tables])
    with pytest.raises(InputError, match="groups of 3 devices neither divide"):
        make_cost("replay").traffic(task, plan)


def test_nodes_of_several_sizes_are_priced_without_copies():
    topology = dataclasses.replace(NODES, num_devices=5, memory_bytes=(2**30,) * 5)
    task = dataclasses.replace(sequences(), topology=topology, batch_size=50)
    plan = ShardingPlan.table_wise(task, [0, 3, 4])
    found = make_cost("replay").traffic(task, plan)
    _, rows = naive_bytes(task, plan)
    np.testing.assert_array_equal(found.outputs, sent_by_level(task, rows))
    assert make_cost("replay").evaluate(task, [plan])[0].feasible
