"""Rows on SSDs by the costs `gpu` and `roofline`: what must hold whatever the constants."""

import dataclasses

import numpy as np
import pytest

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.costs.gpu.cards import CARDS
from shardgym.costs.gpu.host_memory import HOST
from shardgym.errors import InputError
from shardgym.tables.row_access import distinct_rows
from shardgym.tables.row_popularity import missed_share, popularity
from shardgym.tables.table import ZipfIds
from shardgym.tasks.drives import BLOCK_BYTES, DRIVES, Drive
from shardgym.tasks.topology import DEFAULT_SSD

ROWS = 1_000_000
TABLE = EmbeddingTable("t", ROWS, 64, 5.0, ZipfIds(1.1))
BATCH = 8192
TOPOLOGY = Topology(num_devices=2, memory_bytes=2**40, device="a100", host_memory_bytes=2**40, ssd_bytes=2**40)


def task_of(*tables, **changes):
    task = ShardingTask(tables or (TABLE,), TOPOLOGY, BATCH, optimizer="rowwise_adagrad")
    return dataclasses.replace(task, **changes)


def held(share, kernel="key_value", table="t", device=0):
    return Shard(table, (0, ROWS), (0, 64), device, kernel, share)


def compute(task, *shards, cost="gpu"):
    """Forward and backward compute of the first device, ms."""
    (found,) = make_cost(cost).evaluate(task, [ShardingPlan.of(task, shards)])
    assert found.feasible, found.reason
    return found.per_device[0, [1, 4]]


def missed_rows(share):
    cells = popularity(TABLE, BATCH)
    return distinct_rows(TABLE, BATCH) * missed_share(cells, BATCH * 5, share * ROWS)


@pytest.mark.parametrize("name", DRIVES)
def test_a_missed_row_is_a_read_of_blocks_and_a_write(name):
    ssd = DRIVES[name]
    narrow, block, wide = ssd.row_ms(np.array([4.0, BLOCK_BYTES, 10 * BLOCK_BYTES + 1])).tolist()
    assert narrow == pytest.approx(
        1e3 * (max(1 / ssd.reads, BLOCK_BYTES / ssd.read_bandwidth) + 4 / ssd.write_bandwidth)
    )
    assert block - narrow == pytest.approx(1e3 * (BLOCK_BYTES - 4) / ssd.write_bandwidth)
    written = (10 * BLOCK_BYTES + 1) / ssd.write_bandwidth
    assert wide == pytest.approx(1e3 * (11 * BLOCK_BYTES / ssd.read_bandwidth + written))
    # Not more random reads than its bandwidth lets through, by a few percent at most.
    assert ssd.reads * BLOCK_BYTES < 1.05 * ssd.read_bandwidth
    assert ssd.source
    assert DEFAULT_SSD in DRIVES


def test_unknown_drives_are_named():
    with pytest.raises(InputError, match=r"unknown ssd 'micron-9201': expected one of .*micron-9200"):
        dataclasses.replace(TOPOLOGY, ssd="micron-9201")


def test_gpu_adds_what_the_drive_takes_to_what_the_bus_does():
    task, ssd = task_of(), DRIVES[DEFAULT_SSD]
    on_ssd, fused = compute(task, held(0.1)), compute(task, held(0.0, "fused"))
    bus = CARDS["a100"].host * 1e-3 * HOST.fetch_share
    expected = missed_rows(0.1) * (256 / bus + float(ssd.row_ms(np.array(256.0)))) + ssd.latency_ms
    added = on_ssd[0] - fused[0]
    assert added == pytest.approx(expected, rel=0.02)  # its classes of rows are a few less
    # Optimiser states are on the device.
    assert on_ssd[1] == pytest.approx(fused[1])
    # Two shards wait for one latency.
    both = task_of(TABLE, dataclasses.replace(TABLE, name="u"))
    more = compute(both, held(0.1), held(0.1, table="u"))[0] - compute(both, held(0.1), held(1.0, table="u"))[0]
    assert more == pytest.approx(added - ssd.latency_ms)


@pytest.mark.parametrize("cost", ["gpu", "roofline"])
def test_larger_caches_are_never_slower_and_full_ones_miss_nothing(cost):
    task = task_of()
    times = [compute(task, held(share), cost=cost).sum() for share in (0.001, 0.01, 0.1, 0.5, 1.0)]
    assert (np.diff(times) < 0).all()
    assert times[-1] == pytest.approx(compute(task, held(0.0, "fused"), cost=cost).sum())
    in_host = compute(task, held(0.1, "fused_uvm_caching"), cost=cost)
    assert compute(task, held(0.1), cost=cost).sum() > 2 * in_host.sum()


@pytest.mark.parametrize("cost", ["gpu", "roofline"])
def test_drives_differ_and_tasks_with_them_are_kept_apart(cost):
    """One cost that prices both tasks, whose shards are the same."""
    judge = make_cost(cost)
    slow = task_of(topology=dataclasses.replace(TOPOLOGY, ssd="intel-p4500-4tb"))
    times = [
        judge.evaluate(task, [ShardingPlan.of(task, [held(0.1)])])[0].total_ms for task in (task_of(), slow, task_of())
    ]
    assert times[0] == times[2] < times[1]


def test_roofline_counts_the_same_rows():
    task, ssd = task_of(), DRIVES[DEFAULT_SSD]
    added = compute(task, held(0.1), cost="roofline") - compute(task, held(0.0, "fused"), cost="roofline")
    bus = CARDS["a100"].host * 1e-3
    expected = missed_rows(0.1) * (256 / bus + float(ssd.row_ms(np.array(256.0)))) + ssd.latency_ms
    assert added == pytest.approx([expected, 0.0])


def test_plans_without_ssds_cost_what_they_did(monkeypatch):
    """Whatever the drive is."""
    task = task_of()
    before = compute(task, held(0.1, "fused_uvm_caching"))
    monkeypatch.setitem(DRIVES, DEFAULT_SSD, Drive(1.0, 1.0, 1.0, 1e3, "none"))
    assert (compute(task, held(0.1, "fused_uvm_caching")) == before).all()
