"""What moves from one plan to another, by hand."""

import dataclasses

import pytest

from shardgym import EmbeddingTable, InputError, Shard, ShardingPlan, ShardingTask, Topology
from shardgym.plans.migration import migration, rebound

#: Rows of 8 columns take 32 bytes, and 4 for the state of row-wise Adagrad.
TASK = ShardingTask(
    (EmbeddingTable("a", 100, 8), EmbeddingTable("b", 50, 16)),
    Topology(num_devices=4, memory_bytes=2**20, fast_domain_size=2, intra_bandwidth=1e6, inter_bandwidth=1e5),
    64,
    optimizer="rowwise_adagrad",
)
B = Shard("b", (0, 50), (0, 16), 0)


def plan(*shards):
    return ShardingPlan.of(TASK, shards)


def moved(old, new):
    return [(m.rows, m.columns, m.source, m.destination, m.bytes, m.link) for m in migration(TASK, old, new).moves]


def a(device, rows=(0, 100), columns=(0, 8), **fields):
    return Shard("a", rows, columns, device, **fields)


def test_nothing_moves_between_equal_plans_and_rows_to_hosts_cross_no_link():
    found = migration(TASK, plan(a(1), B), plan(a(1), B))
    assert (found.moves, found.bytes, found.transfer_ms(TASK.topology)) == ((), 0, 0.0)
    found = migration(TASK, plan(a(1), B), plan(a(1, compute_kernel="fused_uvm"), B))
    assert found.bytes_by_link == {"intra": 0, "inter": 0, "host": 3600}
    assert found.sentence(TASK.topology).endswith("through the memory of hosts")
    hosts = [plan(a(device, compute_kernel="fused_uvm"), B) for device in (0, 1)]
    assert moved(hosts[1], hosts[0]) == moved(hosts[1], plan(a(0), B)) == [((0, 100), (0, 8), 1, 0, 3600, "host")]


def test_a_table_moves_inside_of_a_domain_or_between_domains():
    assert moved(plan(a(1), B), plan(a(0), B)) == [((0, 100), (0, 8), 1, 0, 3600, "intra")]
    found = migration(TASK, plan(a(1), B), plan(a(2), B))
    assert found.bytes_by_link == {"intra": 0, "inter": 3600, "host": 0}
    assert found.transfer_ms(TASK.topology) == 36.0


def test_of_a_shard_that_is_cut_otherwise_a_device_keeps_what_it_has():
    halves = a(0, columns=(0, 4)), a(1, columns=(4, 8))
    # 100 rows of four columns and their states: device 1 keeps its half.
    assert moved(plan(*halves, B), plan(a(1), B)) == [((0, 100), (0, 4), 0, 1, 2000, "intra")]
    rows = a(0, rows=(0, 60)), a(2, rows=(60, 100))
    assert moved(plan(*halves, B), plan(*rows, B)) == [
        ((0, 60), (4, 8), 1, 0, 1200, "intra"),
        ((60, 100), (0, 4), 0, 2, 800, "inter"),
        ((60, 100), (4, 8), 1, 2, 800, "inter"),
    ]


def test_replicas_get_rows_from_the_nearest_holder_that_has_sent_least():
    everywhere = Shard("a", (0, 100), (0, 8), (0, 1, 2, 3))
    assert moved(plan(a(0), B), plan(everywhere, B)) == [
        ((0, 100), (0, 8), 0, 1, 3600, "intra"),
        ((0, 100), (0, 8), 0, 2, 3600, "inter"),
        ((0, 100), (0, 8), 0, 3, 3600, "inter"),
    ]
    assert moved(plan(everywhere, B), plan(a(3), B)) == []
    two = Shard("a", (0, 100), (0, 8), (0, 2))
    assert [source for _, _, source, _, _, _ in moved(plan(two, B), plan(everywhere, B))] == [0, 2]
    far = Shard("a", (0, 100), (0, 8), (2, 3))
    assert [source for _, _, source, _, _, _ in moved(plan(a((0, 1)), B), plan(far, B))] == [0, 1]


def test_plans_for_other_statistics_are_compared():
    other = dataclasses.replace(TASK, tables=(dataclasses.replace(TASK.tables[0], pooling_factor=9.0), TASK.tables[1]))
    old = plan(a(1), B)
    rebound(old, other).validate(other)
    assert migration(other, old, ShardingPlan.of(other, [a(0), B])).bytes == 3600


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ((B,), (a(0), B), r"the old plan lacks part of rows \[.*\], columns \[.*\] of table 'a'"),
        ((a(0, rows=(0, 99)), B), (a(1), B), "the old plan lacks part of rows .* of table 'a'"),
        ((a(9), B), (a(1), B), "table 'a' is on device 9, the task has 4 devices: expected plans for the same devices"),
        ((Shard("c", (0, 1), (0, 4), 0),), (a(1), B), "table 'c' is not in the task: expected plans for its tables"),
    ],
)
def test_plans_for_something_else(old, new, message):
    with pytest.raises(InputError, match=message):
        migration(TASK, plan(*old), plan(*new))
