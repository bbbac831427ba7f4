"""The analytic cost against sums done by hand."""

import dataclasses

import pytest

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology, ZipfIds, make_cost
from shardgym.costs.devices import DEVICES, DeviceConstants, device_constants
from shardgym.costs.roofline import RooflineCost, shard_ms
from shardgym.costs.shard_keys import ShardKey
from shardgym.errors import UnknownNameError
from shardgym.tables.row_access import distinct_rows
from shardgym.tasks.topology import PRESETS

#: Round numbers: 1e6 bytes/s, so that 1,000 bytes take 1 ms, and no latencies.
PLAIN = DeviceConstants(
    memory_bandwidth=1e6, update_bandwidth=1e6, cache_bytes=10**9, cache_bandwidth=1e7, access_bytes=1, row_access_ns=0,
    lookup_ns=0, forward_ms=0, backward_ms=0, table_ms=0, stream_bandwidth=1e6, source="made up",
)  # fmt: skip


def histogram(**bins):
    return tuple(bins.get(f"b{i}", 0.0) for i in range(17))


def make_task(*tables, devices=2, **options):
    topology = Topology(num_devices=devices, memory_bytes=2**30)
    return ShardingTask(tables=tables, topology=topology, **{"batch_size": 100, **options})


#: 200 ids on 100 distinct rows, each accessed twice; 16 bytes a row.
TWICE = EmbeddingTable("a", 1000, 4, 2.0, reuse_histogram=histogram(b1=1.0))


def times(task, device=PLAIN, rows=1000, columns=4):
    """Return forward and backward ms."""
    return shard_ms(device, task, ShardKey("a", rows, columns))


WIDE = make_task(dataclasses.replace(TWICE, embedding_dim=8))


@pytest.mark.parametrize(
    ("task", "device", "key", "expected"),
    [
        # 200 ids x 8 + 100 offsets x 8 + 100 samples x 16 = 4,000 bytes: 4 ms. 100 rows x 16 from memory: 1.6 ms.
        # 100 repeats x 16 from a cache ten times as fast: 0.16 ms.
        (make_task(TWICE), {}, {}, 4 + 1.6 + 0.16),
        # Working set 100 rows x 16 = 1,600 bytes; half of it cached: of 100 repeats 50 cost 1/10.
        (make_task(TWICE), {"cache_bytes": 800}, {}, 4 + 1.6 + 0.8 + 0.08),
        # Half the rows: 100 ids on 50 distinct rows. 800 + 100 x 24 = 3,200 bytes: 3.2 ms; rows 0.8 + 0.08 ms.
        (make_task(TWICE), {}, {"rows": 500}, 3.2 + 0.88),
        # Column shards both read all ids. Whole: 2.4 + 3.2 streamed, 3.52 rows. Halves: 2.4 ms are paid twice.
        (WIDE, {}, {"columns": 8}, 2.4 + 3.2 + 3.52),
        (WIDE, {}, {"columns": 4}, 2.4 + 1.6 + 1.76),
        # 200 ids x 1,000 ns = 0.2 ms, 100 rows outside of the cache x 2,000 ns = 0.2 ms.
        (make_task(TWICE), {"lookup_ns": 1000, "row_access_ns": 2000, "table_ms": 5}, {}, 5 + 5.76 + 0.4),
        # Narrow rows cost a whole access, half precision halves rows and pooled values.
        (make_task(TWICE), {"access_bytes": 64}, {}, 4 + 6.4 + 0.64),
        (make_task(TWICE, precision="fp16"), {}, {}, 2.4 + 0.8 + 0.88),
    ],
)
def test_forward_is_ids_offsets_rows_and_pooled_values_over_bandwidth(task, device, key, expected):
    assert times(task, dataclasses.replace(PLAIN, **device), **key)[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("optimizer", "extra_ms"),
    # 100 rows, read and written: nothing, 4 bytes, 4 x 4 bytes, 8 x 4 bytes each.
    [("exact_sgd", 0), ("rowwise_adagrad", 0.8), ("adagrad", 3.2), ("adam", 6.4)],
)
def test_backward_is_sort_gradients_and_updates_with_optimizer_state_over_bandwidth(optimizer, extra_ms):
    # Sort 200 x 128 = 25,600 bytes: 25.6 ms. Gradients: 100 rows x 16 from memory 1.6 ms, 100 more from cache 0.16 ms.
    # 100 distinct rows x 16 read and written: 3.2 ms.
    assert times(make_task(TWICE, optimizer=optimizer))[1] == pytest.approx(25.6 + 1.6 + 0.16 + 3.2 + extra_ms)


@pytest.mark.parametrize(
    ("options", "pooling", "extra_ms"),
    [
        # 100 rows of 4 columns x 1,000 ns.
        ({"optimizer": "adagrad"}, "sum", 0.4),
        ({"optimizer": "rowwise_adagrad"}, "sum", 0),
        # 100 rows x 3,000 ns.
        ({}, "none", 0.3),
        ({"optimizer": "adagrad"}, "none", 0.7),
    ],
)
def test_cores_take_longer_for_adagrad_and_for_unpooled_tables(options, pooling, extra_ms):
    task = make_task(dataclasses.replace(TWICE, pooling=pooling), **options)
    slower = dataclasses.replace(PLAIN, adagrad_ns=1000, unpooled_row_ns=3000)
    (forward, backward), plain = times(task, slower), times(task)
    assert (forward, backward) == (plain[0], pytest.approx(plain[1] + extra_ms))


@pytest.mark.parametrize(
    ("optimizer", "passes", "expected"),
    # 1,000 rows x 16 bytes: gradients set to zero, and read to update weights, which are read and written; so are
    # states. A bucket is written and read besides.
    [
        ("exact_sgd", 4, 4 * 16),
        ("exact_sgd", 6, 6 * 16),
        ("rowwise_adagrad", 6, 6 * 16 + 2 * 4),
        ("adagrad", 6, 6 * 16 + 2 * 16),
    ],
)
def test_replicas_update_all_rows(optimizer, passes, expected):
    task = make_task(TWICE, optimizer=optimizer)
    replica = ShardKey("a", 1000, 4, served=1)
    device = dataclasses.replace(PLAIN, dense_passes=passes)
    forward, backward = shard_ms(device, task, replica)
    at_once = dataclasses.replace(device, stream_bandwidth=float("inf"))
    lookups = shard_ms(at_once, task, replica)
    assert (forward, backward) == (lookups[0], pytest.approx(lookups[1] + expected))


@pytest.mark.parametrize(("copies", "extra_mib"), [(1, 0), (2, 40)])
@pytest.mark.parametrize("device", ["cpu-core", "h100"])
def test_gradients_that_the_heap_does_not_keep_are_in_fresh_memory(device, copies, extra_mib):
    names = "ab"[:copies]
    task = make_task(*(EmbeddingTable(name, 163_840, 32) for name in names))  # 20 MiB each
    plan = ShardingPlan.of(task, [Shard.whole(table, 0, 1) for table in task.tables])
    found = RooflineCost(device).evaluate(task, [plan])[0].per_device[0, 4]
    constants = DEVICES[device]
    work = sum(shard_ms(constants, task, ShardKey(name, 163_840, 32, served=1))[1] for name in names)
    fresh = extra_mib * 2**20 / DEVICES["cpu-core"].fresh_bandwidth * 1e3 if device == "cpu-core" else 0
    assert found == pytest.approx(constants.backward_ms + work + fresh)


def test_devices_pay_once_for_being_used_and_nothing_when_empty():
    task = make_task(TWICE, dataclasses.replace(TWICE, name="b"), devices=3)
    forward, backward = times(task, DEVICES["cpu-core"])
    both = RooflineCost().evaluate(task, [ShardingPlan.table_wise(task, [1, 1])])[0].per_device
    assert both[1, 1] == pytest.approx(DEVICES["cpu-core"].forward_ms + 2 * forward)
    assert both[1, 4] == pytest.approx(DEVICES["cpu-core"].backward_ms + 2 * backward)
    assert both[[0, 2]][:, [1, 4]].tolist() == [[0, 0], [0, 0]]


def test_the_override_replaces_the_device():
    task = make_task(TWICE)
    plan = ShardingPlan.table_wise(task, [0])
    override = make_cost("roofline", hardware="h100")
    native = dataclasses.replace(task, topology=dataclasses.replace(task.topology, device="h100"))
    [there], [here] = (
        override.evaluate(task, [plan]), RooflineCost().evaluate(native, [ShardingPlan.table_wise(native, [0])])
    )  # fmt: skip
    assert there.per_device.tolist() == here.per_device.tolist()
    assert there.per_device.tolist() != RooflineCost().evaluate(task, [plan])[0].per_device.tolist()


def test_an_unknown_device_is_named():
    task = make_task(TWICE)
    task = dataclasses.replace(task, topology=dataclasses.replace(task.topology, device="abacus"))
    with pytest.raises(UnknownNameError, match="unknown device 'abacus'"):
        RooflineCost().evaluate(task, [ShardingPlan.table_wise(task, [0])])


def test_every_topology_preset_names_a_known_device():
    assert {device_constants(preset["device"]).source for preset in PRESETS.values()}


def test_distinct_rows_come_from_the_histogram_where_there_is_one_and_never_exceed_rows_or_ids():
    # Half of the rows once, half (2, 4] times, on average 3.5: 200 ids on 200 / 2.25 rows.
    table = dataclasses.replace(TWICE, reuse_histogram=histogram(b0=0.5, b2=0.5))
    assert distinct_rows(table, 100) == pytest.approx(200 / 2.25)
    assert distinct_rows(TWICE, 100) == 100
    once = histogram(b0=1.0)
    assert distinct_rows(EmbeddingTable("t", 10, 4, 5.0, reuse_histogram=once), 100) == 10
    assert distinct_rows(EmbeddingTable("t", 2**40, 4, 0.5, ids=ZipfIds(0.0)), 100) <= 50
    assert distinct_rows(EmbeddingTable("t", 10, 4, 0.0, reuse_histogram=histogram()), 100) == 0


@pytest.mark.parametrize(
    ("device", "options", "noted"),
    [
        ("cpu-core", {}, ""),
        ("cpu-core", {"precision": "fp16"}, "not with fp16, which a core converts in software"),
        ("cpu-core", {"optimizer": "adam"}, "not with adam"),
        ("h100", {"precision": "fp16"}, ""),
    ],
)
def test_roofline_says_when_it_was_not_held_against_a_kind_of_task(device, options, noted):
    """FP16 tables took 36.0 ms on a core where roofline says 7.4; FP32 took 15.4 where it says 9.9."""
    task = make_task(TWICE, **options)
    notes = RooflineCost(device).evaluate(task, [ShardingPlan.table_wise(task, [0])])[0].notes
    assert bool(notes) == bool(noted)
    assert noted in "".join(notes)
