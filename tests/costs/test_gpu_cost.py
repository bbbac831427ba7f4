"""The GPU model: what fused kernels and exchanges must show, whatever the constants."""

import dataclasses

import numpy as np
import pytest
from sums import compute_ms

from neuroshard.plus.sharing import even_rows
from shardgym import EmbeddingTable, InputError, Shard, ShardingPlan, ShardingTask, Topology, ZipfIds, make_cost
from shardgym.costs.gpu.cards import CARDS, card
from shardgym.costs.gpu.collectives import all_reduce_ms, reduce_scatter_ms
from shardgym.costs.gpu.cost import shard_sizes
from shardgym.costs.gpu.exchange import LINKS, exchange_ms, exchange_topology, ramp_ms, topology_of, two_step_ms
from shardgym.costs.gpu.kernels import KERNELS, Work, missed_accesses, row_classes, shard_work
from shardgym.costs.links import IDS, part_of
from shardgym.costs.shard_keys import ShardKey, shard_loads

#: 16 MB: as much as fits an L2.
TABLE = EmbeddingTable("t", 62_500, 64, 10.0)


def compute(*tables, hardware="h100", batch_size=8192, shards=None, **options):
    """Forward and backward ms of one device that holds all tables, or some shards."""
    topology = Topology(num_devices=2, memory_bytes=2**40)
    task = ShardingTask(tables, topology, batch_size, **options)
    cost = make_cost("gpu", hardware=hardware)
    held = [Shard.whole(table, 0) for table in tables] if shards is None else shards
    return compute_ms(cost, task, [held])[0]


def copies(table, count):
    return [dataclasses.replace(table, name=f"t{i}") for i in range(count)]


@pytest.mark.parametrize("hardware", ["v100", "h100"])
def test_fusing_many_small_tables_is_cheaper_than_their_sum(hardware):
    small = dataclasses.replace(TABLE, num_embeddings=1000, pooling_factor=2.0)
    fused = compute(*copies(small, 50), hardware=hardware, batch_size=2048)
    assert (fused < 0.5 * 50 * compute(small, hardware=hardware, batch_size=2048)).all()


def test_groups_that_do_not_suit_the_nodes_of_the_named_card_have_no_cost():
    task = ShardingTask((TABLE,), Topology(num_devices=12, memory_bytes=2**40), 8192, group_sync_interval=10)
    plan = ShardingPlan.of(task, [Shard("t", (0, 62_500), (0, 64), (0, 6))], group_size=6)
    assert make_cost("roofline").evaluate(task, [plan])[0].feasible
    (found,) = make_cost("gpu", hardware="h100").evaluate(task, [plan])
    assert found.reason == "groups of 6 devices neither divide fast domains of 8 nor are multiples of them"


@pytest.mark.parametrize("columns", [16, 64, 128])
def test_cutting_columns_repeats_the_work_of_ids(columns):
    table = dataclasses.replace(TABLE, embedding_dim=columns)
    halves = [Shard("t", (0, table.num_embeddings), cut, 0) for cut in ((0, columns // 2), (columns // 2, columns))]
    whole, cut, half = compute(table), compute(table, shards=halves), compute(table, shards=halves[:1])
    assert (cut > np.array([1.02, 1.1]) * whole).all()
    assert (half > 0.5 * whole).all()


@pytest.mark.parametrize(("hardware", "optimizer", "zipf"), [("v100", "exact_sgd", False), ("h100", "adam", True)])
def test_more_is_never_cheaper(hardware, optimizer, zipf):
    """In batch, pooling, width and rows; and a table more on the device."""
    table = dataclasses.replace(TABLE, ids=ZipfIds(s=1.05)) if zipf else TABLE
    options = {"hardware": hardware, "optimizer": optimizer}
    grown = {
        "batch": [compute(table, batch_size=batch, **options) for batch in (64, 1024, 4096, 65536)],
        "pooling": [compute(dataclasses.replace(table, pooling_factor=p), **options) for p in (0.5, 1.0, 10.0, 90.0)],
        "width": [compute(dataclasses.replace(table, embedding_dim=d), **options) for d in (4, 8, 64, 124, 128, 512)],
        "rows": [compute(dataclasses.replace(table, num_embeddings=e), **options) for e in (1, 10**3, 10**5, 10**8)],
        "tables": [compute(*copies(table, n), batch_size=256, **options) for n in (1, 2, 5, 20)],
    }
    for name, times in grown.items():
        assert (np.diff(times, axis=0) >= -1e-9).all(), name
        assert (times[-1] > times[0]).all(), name


def test_small_batches_share_the_l2_cache_among_tables_and_large_ones_do_not():
    """In a small batch many tables are in flight, so none of them has the cache to itself."""
    table = dataclasses.replace(TABLE, embedding_dim=256, pooling_factor=200.0, ids=ZipfIds(s=1.0))
    for batch, shared in ((512, True), (65536, False)):
        sizes = shard_sizes([(table, (0, table.num_embeddings), 256)], batch, "fp32", "exact_sgd")
        work = shard_work(CARDS["a100"], sizes)[0]
        assert (work[Work.MEMORY_CROWDED] > 1.01 * work[Work.MEMORY_ALONE]) == shared


@pytest.mark.parametrize(
    ("optimizer", "rows"), [("exact_sgd", 0), ("rowwise_adagrad", 0.125), ("adagrad", 1), ("adam", 2)]
)
def test_optimiser_state_is_read_and_written_with_every_distinct_row(optimizer, rows):
    """In units of a row of 256 bytes; a single value takes a sector of 32."""
    added = compute(TABLE, optimizer=optimizer)[1] - compute(TABLE)[1]
    distinct = row_classes(TABLE, 8192)[0].sum()
    bandwidth = CARDS["h100"].memory_bandwidth * KERNELS.update_share
    assert added == pytest.approx(rows * 2 * distinct * 256 / bandwidth * 1e3)


def test_uniform_rows_are_missed_as_far_as_the_table_does_not_fit():
    rows, accesses = row_classes(dataclasses.replace(TABLE, num_embeddings=1000), 8192)
    missed = missed_accesses(rows[None], accesses[None], np.array([250.0]))
    assert missed[0] == pytest.approx(0.75 * 81920, rel=0.01)
    assert missed_accesses(rows[None], accesses[None], np.array([2000.0]))[0] == pytest.approx(1000)


@pytest.mark.parametrize(
    ("devices", "width", "sent", "bandwidth", "floor"),
    [
        # To seven peers over NVLink; between nodes the network card decides.
        (8, 64.0, 7 * 1000 * 256, 450e9 * LINKS.fast_share, LINKS.fast_floor_us),
        (16, 512.0, 8 * 500 * 2048, 50e9 * LINKS.slow_share, LINKS.slow_floor_us),
    ],
)
def test_an_exchange_is_floor_ramp_and_bytes_over_achieved_bandwidth(devices, width, sent, bandwidth, floor):
    links = exchange_topology(card("h100"), Topology(num_devices=devices, memory_bytes=1))
    found = exchange_ms(links, np.full(devices, width), 8000, 4)
    message = 8000 / devices * width * 4
    ramp = LINKS.ramp_us * message / (message + LINKS.ramp_bytes)
    assert found == pytest.approx(1e3 * sent / bandwidth + 1e-3 * (floor + ramp))


def test_without_a_card_named_the_topology_names_card_and_links():
    topology = Topology.preset("dgx-h100", 8)
    task = ShardingTask((TABLE,), topology, 8192)
    plan = ShardingPlan.table_wise(task, [0])
    own, named = (make_cost("gpu", **options).evaluate(task, [plan])[0] for options in ({}, {"hardware": "h100"}))
    assert own.per_device[:, [1, 4]] == pytest.approx(named.per_device[:, [1, 4]])
    slower = dataclasses.replace(task, topology=dataclasses.replace(topology, intra_bandwidth=1e9))
    assert make_cost("gpu").evaluate(slower, [ShardingPlan.table_wise(slower, [0])])[0].total_ms > own.total_ms


def nodes(number, size=4):
    return dataclasses.replace(topology_of(card("h100"), number * size), fast_domain_size=size)


@pytest.mark.parametrize("links", [nodes(1, 8), nodes(8, 1), nodes(1, 1)])
def test_two_steps_are_one_where_there_is_one_node_or_one_device_in_each(links):
    widths = np.arange(1.0, links.num_devices + 1)
    once = exchange_ms(links, widths, 8192, 4)
    assert two_step_ms(links, widths, 8192, 4).tolist() == once.tolist()
    assert once.all() == (links.num_devices > 1)


def test_two_steps_by_hand():
    """Two nodes of two: a device hands over its columns of two places' samples, then the node those of one peer."""
    links = dataclasses.replace(
        nodes(2, 2), intra_bandwidth=1e6, inter_bandwidth=1e5, intra_latency_ms=1.0, inter_latency_ms=2.0
    )
    widths = np.array([[30.0, 10.0, 20.0, 20.0]])
    column = 1000 / 4 * 4
    inside = 1.0 + column * 2 * np.array([30, 30, 20, 20]) / 1e3 + ramp_ms(np.float64(column * 2 * 20))
    between = 2.0 + column * 40 / 1e2 + ramp_ms(np.float64(column * 2 * 20))
    assert two_step_ms(links, widths, 1000, 4)[0] == pytest.approx(inside + between)
    with pytest.raises(InputError, match="12 devices are not a multiple of 8: use exchange='flat'"):
        two_step_ms(dataclasses.replace(nodes(3), fast_domain_size=8), np.ones(12), 1024, 4)


def placed(cost, shards, devices=16, **options):
    task = ShardingTask((TABLE,), Topology.preset("dgx-h100", devices), 65536, **options)
    return cost.evaluate(task, [ShardingPlan.of(task, shards)])[0]


def test_defaults_are_flat_and_without_ids():
    plain, two_step, both = (
        make_cost("gpu", **s) for s in ({}, {"exchange": "two_step"}, {"exchange": "two_step", "ids": True})
    )
    whole = [Shard.whole(TABLE, 0)]
    assert placed(plain, whole, 8).per_device.tolist() == placed(two_step, whole, 8).per_device.tolist()
    assert placed(plain, whole).total_ms != placed(two_step, whole).total_ms
    assert [len(placed(cost, whole, 8).notes) for cost in (plain, two_step, both)] == [0, 0, 1]


def test_ids_are_received_before_the_forward_pass():
    """One node of eight: seven peers send 8,192 lengths and ten ids a sample, all of 8 bytes."""
    found, without = (placed(make_cost("gpu", ids=ids), [Shard.whole(TABLE, 0)], 8).per_device for ids in (True, False))
    links = exchange_topology(None, Topology.preset("dgx-h100", 8))
    sizes = np.array([8192, 81920]) * 8.0
    taken = 3 * links.intra_latency_ms + 7e3 * sizes.sum() / links.intra_bandwidth + ramp_ms(sizes).sum()
    assert found[0] - without[0] == pytest.approx([taken, 0, 0, 0, 0])
    assert not found[1:, [0, 1, 4]].any()
    # The peers wait for ids and forward compute; where ids are hidden, for all compute and the exchange of gradients.
    assert found[1:, 2] - found[1:, 3] == pytest.approx(taken + found[0, 1])
    assert without[1:, 2] == pytest.approx(without[0, [1, 3, 4]].sum())


def test_ids_without_repeats_by_hand():
    """Each of eight devices has 81,920 lookups of 62,500 rows: it sends 8 bytes a distinct row and 4 a lookup."""
    distinct = 62_500 * (1 - (1 - 1 / 62_500) ** 81_920)
    assert 45_000 < distinct < 46_000
    links = exchange_topology(None, Topology.preset("dgx-h100", 8))
    cost = make_cost("gpu", ids=True)
    rows = [Shard("t", (n * 31_250, (n + 1) * 31_250), (0, 64), n) for n in range(2)]
    columns = [Shard("t", (0, 62_500), (32 * n, 32 * n + 32), n) for n in range(2)]
    for shards, share in (([Shard.whole(TABLE, 0)], 1.0), (columns, 1.0), (rows, 0.5)):
        sizes = np.array([8192 * 8.0, share * (8 * distinct + 4 * 81_920)])
        taken = 3 * links.intra_latency_ms + 7e3 * sizes.sum() / links.intra_bandwidth + ramp_ms(sizes).sum()
        found = placed(cost, shards, 8, dedup_ids=True).per_device
        assert found[0, 0] == pytest.approx(taken)
        assert found[:, [1, 3, 4]].tolist() == placed(cost, shards, 8).per_device[:, [1, 3, 4]].tolist()


def test_weights_of_lookups_are_sent_beside_distinct_ids():
    """Of one device: 4 distinct ids, and for each of 10 lookups a sample 4 bytes of position and 4 of weight."""
    task = ShardingTask((EmbeddingTable("few", 4, 8, 10.0, weighted=True),), Topology.preset("dgx-h100", 2), 2 * 8192)
    once = dataclasses.replace(task, dedup_ids=True)
    whole, replica = ShardKey("few", 4, 8), ShardKey("few", 4, 8, served=1)
    assert shard_loads(once, whole)[IDS] == pytest.approx(4 / 8192 + 10 * (4 + 4) / 8)
    assert shard_loads(task, whole)[IDS] == 15.0
    assert shard_loads(once, replica) == shard_loads(task, replica)


def test_fp16_on_the_wire_halves_what_is_exchanged_and_nothing_else():
    task_wide, halved = make_cost("gpu"), make_cost("gpu", wire="fp16")
    preset = Topology.preset("dgx-h100", 16)
    links = exchange_topology(None, preset)
    whole = [Shard.whole(TABLE, 0)]
    before, after = (placed(cost, whole).per_device for cost in (task_wide, halved))
    widths = np.array([64.0] + [0.0] * 15)
    assert after[:, 3] == pytest.approx(exchange_ms(links, widths, 65536, 2))
    assert before[:, 3] == pytest.approx(exchange_ms(links, widths, 65536, 4))
    assert after[:, [0, 1, 4]].tolist() == before[:, [0, 1, 4]].tolist()
    assert (after[:, 2] < before[:, 2]).all()
    rows = even_rows(TABLE, 16)
    gathered = reduce_scatter_ms(preset, np.array(65536.0 * 64 * 2))
    assert placed(halved, rows).per_device[:, 3] == pytest.approx(np.full(16, gathered))
    everywhere = [Shard.whole(TABLE, *range(16))]
    assert placed(halved, everywhere).per_device.tolist() == placed(task_wide, everywhere).per_device.tolist()
    assert placed(halved, whole, precision="fp16").total_ms == placed(task_wide, whole, precision="fp16").total_ms
    assert "convert to fp16" in placed(halved, whole).notes[0]
    assert placed(halved, whole, precision="fp16").notes == ()


def test_a_device_that_is_no_gpu_is_refused_with_the_remedy():
    task = ShardingTask((TABLE,), Topology.preset("cpu", 2), 8192)
    with pytest.raises(InputError, match=r"'cpu-core' is not one of .*'gpu,hardware=h100'"):
        make_cost("gpu").evaluate(task, [ShardingPlan.table_wise(task, [0])])
    task = ShardingTask((TABLE,), Topology.preset("dgx-h100", 16), batch_size=16_384)
    with pytest.raises(InputError, match="fast links join 2 of these cards, but the task's nodes have 8 devices"):
        make_cost("gpu", hardware="h100-pcie").evaluate(task, [ShardingPlan.table_wise(task, [0])])


@pytest.mark.parametrize(
    ("hardware", "options", "noted"),
    [
        ("h100", {}, []),
        ("h100", {"devices": 129}, ["all-to-alls of more than 128 GPUs are extrapolated: none have been published"]),
        ("h100", {"precision": "fp16"}, []),
        ("h200", {}, ["a100, h100, not of h200"]),
        ("a100", {"optimizer": "adagrad"}, ["not validated for backward passes with adagrad"]),
        ("a100", {"optimizer": "rowwise_adagrad"}, ["two backward passes with rowwise_adagrad"]),
        (
            "rtx-2080-ti",
            {"precision": "fp16", "optimizer": "adam"},
            ["a100, h100, not of rtx-2080-ti", "only one backward pass in fp16"],
        ),
    ],
)
def test_a_cost_says_when_nothing_published_is_near(hardware, options, noted):
    options = dict(options)
    topology = Topology(num_devices=options.pop("devices", 2), memory_bytes=2**40)
    task = ShardingTask((TABLE,), topology, 8192, **options)
    notes = make_cost("gpu", hardware=hardware).evaluate(task, [ShardingPlan.table_wise(task, [0])])[0].notes
    assert len(notes) == len(noted)
    assert all(text in note for text, note in zip(noted, notes, strict=True))


@pytest.mark.parametrize("hardware", [None, "h100"])
def test_row_shards_and_replicas_take_what_their_collectives_do(hardware):
    """On two nodes by the links of the data sheet, whether the card or the task's topology names them."""
    cost, links = make_cost("gpu", hardware=hardware), Topology.preset("dgx-h100", 16)
    rows = even_rows(TABLE, 16)
    output_bytes, gradient_bytes = np.array(65536.0 * 64 * 4), np.array(4.0 * TABLE.num_embeddings * 64)
    by_rows, replicated = placed(cost, rows), placed(cost, [Shard.whole(TABLE, *range(16))])
    assert by_rows.per_device[:, 3] == pytest.approx(float(reduce_scatter_ms(links, output_bytes)))
    assert replicated.per_device[:, 3] == pytest.approx(float(all_reduce_ms(links, gradient_bytes)))


def test_rows_of_one_node_are_added_up_there():
    """Only the sums cross the network, so a table on one node of two costs less than over both."""
    cost = make_cost("gpu")
    shards = even_rows(TABLE, 8)
    one_node = placed(cost, shards)
    spread = placed(cost, [dataclasses.replace(shard, devices=(2 * n,)) for n, shard in enumerate(shards)])
    links = Topology.preset("dgx-h100", 16)
    inside = float(reduce_scatter_ms(part_of(links, 8), np.array(65536.0 * TABLE.embedding_dim * 4)))
    assert (one_node.per_device[:, 3] > inside).all()
    assert spread.per_device[0, 3] == pytest.approx(
        float(reduce_scatter_ms(links, np.array(65536.0 * TABLE.embedding_dim * 4)))
    )


def test_ids_of_replicas_stay_where_they_are():
    """Of two tables one is replicated: each device receives lengths and ids of the other one alone."""
    small = EmbeddingTable("small", 500, 64, 3.0)
    task = ShardingTask((TABLE, small), Topology.preset("dgx-h100", 8), 65536)
    cost = make_cost("gpu", ids=True)
    plans = [
        ShardingPlan.of(task, [Shard.whole(TABLE, 0), Shard.whole(small, *range(8))]),
        ShardingPlan.of(task, [Shard.whole(table, *range(8)) for table in task.tables]),
    ]
    one, none = (found.per_device[:, 0] for found in cost.evaluate(task, plans))
    assert one.tolist() == [placed(cost, [Shard.whole(TABLE, 0)], 8).per_device[0, 0], *[0] * 7]
    assert not none.any()


def test_nodes_of_a_task_stay_nodes_with_the_links_of_another_card():
    """A GB200 has 71 others beside it; a task in nodes of 8 is cut by these, and its groups are made of them."""
    task = ShardingTask(
        tuple(copies(TABLE, 16)), Topology.preset("dgx-h100", 16), batch_size=16_384, group_sync_interval=10
    )
    sums = ShardingPlan.of(
        task,
        [Shard(f"t{n}", (r * 62_500 // 8, (r + 1) * 62_500 // 8), (0, 64), r) for n in range(16) for r in range(8)],
    )
    grouped = ShardingPlan.of(task, [Shard.whole(table, n % 8, n % 8 + 8) for n, table in enumerate(task.tables)], 8)
    h100, gb200 = (make_cost("gpu", hardware=name).evaluate(task, [sums, grouped]) for name in ("h100", "gb200"))
    for slow, fast in zip(h100, gb200, strict=True):
        assert fast.feasible
        assert 0 < fast.per_device[:, 2:4].max() < slow.per_device[:, 2:4].max()
