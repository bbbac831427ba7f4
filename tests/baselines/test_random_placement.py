"""Random placement: uniform where there is room."""

from collections import Counter

from baselines.greedy import RandomSolver
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology


def make_task(sizes, memory_bytes):
    """Tables of 16 bytes times `sizes`."""
    tables = tuple(EmbeddingTable(f"t{i}", size, 4) for i, size in enumerate(sizes))
    return ShardingTask(tables, Topology(num_devices=len(memory_bytes), memory_bytes=memory_bytes), batch_size=64)


def devices(task, seed):
    plan = RandomSolver().solve(task, None, seed=seed)
    plan.validate(task)
    return tuple(shard.devices[0] for shard in plan.shards)


def test_all_plans_are_equally_likely_where_memory_does_not_bind():
    task = make_task([3, 2, 1], (2**20, 2**20))
    counts = Counter(devices(task, seed) for seed in range(800))
    # 8 plans, 100 each on average with a standard deviation of 9.4.
    assert len(counts) == 8
    assert all(60 < count < 140 for count in counts.values())


def test_only_devices_with_room_are_drawn():
    # Largest first: t2 (3 units) fits device 1 only and leaves 2 units on both. t1 (2) goes to either, t0 to the other.
    task = make_task([1, 2, 3], (2 * 16, 5 * 16))
    assert {devices(task, seed) for seed in range(60)} == {(1, 0, 1), (0, 1, 1)}
