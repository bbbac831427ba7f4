"""Rows in the memory of the host by the cost `gpu`: what must hold whatever the constants, and what caches miss."""

import dataclasses

import numpy as np
import pytest

from shardgym import EmbeddingTable, InputError, Shard, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.costs.gpu.cards import CARDS
from shardgym.costs.gpu.host_memory import HOST
from shardgym.tables.ids import draw_bags
from shardgym.tables.row_access import distinct_rows
from shardgym.tables.row_popularity import cache_misses, popularity
from shardgym.tables.table import RangeIds, UniformIds, ZipfIds

ROWS = 1_000_000
TABLE = EmbeddingTable("t", ROWS, 64, 5.0, ZipfIds(1.1, row_order="by_frequency"))
BATCH = 8192
TOPOLOGY = Topology(num_devices=2, memory_bytes=2**40, device="a100", host_memory_bytes=2**40)


def task_of(*tables, **changes):
    return dataclasses.replace(ShardingTask(tables or (TABLE,), TOPOLOGY, BATCH), **changes)


def held(rows=(0, ROWS), kernel="fused", share=0.0, table="t", device=0):
    return Shard(table, rows, (0, 64), device, kernel, share)


def per_device(task, *shards, **settings):
    (cost,) = make_cost("gpu", **settings).evaluate(task, [ShardingPlan.of(task, shards)])
    assert cost.feasible, cost.reason
    return cost.per_device


def compute(task, *shards, **settings):
    """Forward and backward compute of the first device, ms."""
    return per_device(task, *shards, **settings)[0, [1, 4]]


def test_every_lookup_reads_its_row_and_every_distinct_row_is_updated():
    device = compute(task_of(), held())
    host = compute(task_of(), held(kernel="fused_uvm"))
    bus = CARDS["a100"].host * 1e-3
    read = BATCH * 5 * 256 / (bus * HOST.read_share)
    updated = distinct_rows(TABLE, BATCH) * 256 / (bus * HOST.update_share)
    assert read < host[0] < device[0] + read
    assert updated + HOST.backward_us * 1e-3 < host[1] < device[1] + updated + HOST.backward_us * 1e-3
    # Two shards have one fixed time.
    other = dataclasses.replace(TABLE, name="u")
    both = compute(task_of(TABLE, other), held(kernel="fused_uvm"), held(kernel="fused_uvm", table="u"))
    assert both[1] < 2 * host[1] - HOST.backward_us * 1e-3


def test_the_bus_is_that_of_the_topology_or_of_the_card():
    slow = dataclasses.replace(TOPOLOGY, host_bandwidth=CARDS["a100"].host / 4)
    uvm = held(kernel="fused_uvm")
    usual, named = compute(task_of(), uvm), compute(task_of(topology=slow), uvm)
    assert 3 * usual[0] < named[0] < 4 * usual[0]
    assert compute(task_of(topology=slow), uvm, hardware="h100")[0] < usual[0]


def test_kernels_are_ordered_and_a_larger_cache_is_never_slower():
    task = task_of()
    times = [compute(task, held(kernel="fused_uvm_caching", share=share)).sum() for share in (0.001, 0.01, 0.1, 0.5, 1)]
    assert (np.diff(times) < 0).all()
    assert compute(task, held(kernel="fused_uvm")).sum() > times[0]
    # All that a full cache costs is the fixed time: SGD has no state in the memory of the host.
    assert times[-1] == pytest.approx(compute(task, held()).sum() + HOST.backward_us * 1e-3)
    with_adam = task_of(optimizer="adam")
    full = compute(with_adam, held(kernel="fused_uvm_caching", share=1.0))
    assert full[1] > compute(with_adam, held())[1] + distinct_rows(TABLE, BATCH) * 512 / (CARDS["a100"].host * 1e-3)


def test_a_table_in_both_memories_of_one_device_is_exchanged_once():
    task = task_of()
    whole = per_device(task, held(kernel="fused_uvm"))
    split = per_device(task, held((0, 100)), held((100, ROWS), "fused_uvm"))
    assert split[:, 3] == pytest.approx(whole[:, 3])
    apart = per_device(task, held((0, 100)), held((100, ROWS), "fused_uvm", device=1))
    assert apart[:, 3] != pytest.approx(whole[:, 3])


def test_popularity_has_all_rows_and_lookups_most_popular_first():
    histogram = (0.5, 0.3, 0.2, *[0.0] * 14)
    for table, start, stop in (
        (TABLE, 0, ROWS),
        (TABLE, 0, 1000),
        (dataclasses.replace(TABLE, ids=ZipfIds(1.1)), 5, 1000),
        (dataclasses.replace(TABLE, ids=UniformIds()), 0, 1000),
        (dataclasses.replace(TABLE, ids=UniformIds(), reuse_histogram=histogram), 0, ROWS),
        (dataclasses.replace(TABLE, ids=RangeIds((0.25, 0.75))), 0, ROWS),
    ):
        cells = popularity(table, BATCH, start, stop)
        assert cells.sizes.sum() == pytest.approx(stop - start)
        assert (np.diff(cells.rates) <= 1e-15).all()
        if stop == ROWS:
            assert cells.masses.sum() == pytest.approx(1)
    assert popularity(dataclasses.replace(TABLE, ids=RangeIds((0.25, 0.75))), BATCH).masses[0] == pytest.approx(0.75)


@pytest.mark.parametrize("kernel_cost", ["gpu", "roofline"])
def test_a_cache_that_a_batch_outgrows_is_priced_between_none_and_one_that_holds_the_batch(kernel_cost):
    """Rows without room are read at each lookup, and updated, over the bus; where a batch just fits is no jump."""
    task = task_of(optimizer="adagrad")
    distinct = distinct_rows(TABLE, BATCH)

    def times(*shards):
        plans = [ShardingPlan.of(task, [shard]) for shard in shards]
        return np.array([cost.per_device[0, [1, 4]] for cost in make_cost(kernel_cost).evaluate(task, plans)])

    def cached(rows):
        return held(kernel="fused_uvm_caching", share=rows / ROWS)

    none, tiny = times(held(kernel="fused_uvm"), cached(1e-6))
    assert tiny == pytest.approx(none, rel=1e-4)
    below, above = times(cached(distinct * 0.999), cached(distinct * 1.001))
    assert below == pytest.approx(above, rel=0.01)
    half = times(cached(distinct / 2))[0].sum()
    assert above.sum() < half < none.sum()


@pytest.mark.parametrize(("ids", "rows"), [(ZipfIds(1.1), 3000), (ZipfIds(0.6), 5000), (UniformIds(), 4000)])
@pytest.mark.parametrize("share", [0.003, 0.015, 0.1, 0.4])
def test_what_a_cache_misses_is_what_one_misses_that_drops_the_oldest_row(ids, rows, share):
    """Batches go through a cache that drops what was touched longest ago, but nothing that the batch itself touches."""
    table = EmbeddingTable("t", rows, 4, 2.0, ids)
    room = int(share * rows)
    rng = np.random.default_rng(0)
    last = np.full(rows, -1)
    held = np.zeros(rows, dtype=bool)
    found = np.zeros(5)
    for batch in range(400):
        lookups = draw_bags(table, 64, seed=batch)[0]
        touched = np.unique(lookups)
        missing = rng.permutation(touched[~held[touched]])
        out = missing[max(room - int(held[touched].sum()), 0) :]
        last[touched] = batch
        held[touched] = True
        held[out] = False
        kept = np.flatnonzero(held)
        held[kept[np.argsort(last[kept], kind="stable")][: max(len(kept) - room, 0)]] = False
        if batch >= 200:
            found += [len(missing) - len(out), len(out), np.isin(lookups, out).sum(), len(touched), len(lookups)]
    cells = popularity(table, 64)
    misses = cache_misses(cells, 128, room)
    assert misses == pytest.approx(found[:3] / found[[3, 3, 4]], abs=0.03)
    assert not any(cache_misses(cells, 128, rows))


def test_roofline_counts_the_same_bytes_at_the_bandwidth_of_the_bus():
    task = task_of()
    cost = make_cost("roofline")
    bus = CARDS["a100"].host * 1e-3

    def times(of_task, **changes):
        plan = ShardingPlan.of(of_task, [held(**changes)])
        return cost.evaluate(of_task, [plan])[0].per_device[0, [1, 4]]

    added = times(task, kernel="fused_uvm") - times(task)
    distinct = distinct_rows(TABLE, BATCH)
    assert added == pytest.approx([BATCH * 5 * 256 / bus, distinct * 256 / bus])
    shares = [times(task, kernel="fused_uvm_caching", share=share).sum() for share in (0.001, 0.1, 1.0)]
    assert (np.diff(shares) < 0).all()
    assert shares[-1] == pytest.approx(times(task).sum())
    slow = task_of(topology=dataclasses.replace(TOPOLOGY, host_bandwidth=1e9))
    assert times(slow, kernel="fused_uvm")[0] > 20 * times(task, kernel="fused_uvm")[0]
    core = task_of(topology=dataclasses.replace(TOPOLOGY, device="cpu-core"))
    with pytest.raises(InputError, match=r"knows no bandwidth from 'cpu-core'.*set host_bandwidth of the topology"):
        times(core, kernel="fused_uvm")
