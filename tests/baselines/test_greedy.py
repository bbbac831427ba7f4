"""The greedy heuristics on cases placed by hand."""

import pytest

from baselines.greedy import DimGreedy, LookupGreedy, SizeGreedy, SizeLookupGreedy
from shardgym.errors import NoFeasiblePlanError
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology


def make_task(tables, memory_bytes=(2**30, 2**30), **options):
    """Tables as (rows, dim, pooling), named t0, t1, ..."""
    topology = Topology(num_devices=len(memory_bytes), memory_bytes=memory_bytes)
    tables = tuple(EmbeddingTable(f"t{i}", *values) for i, values in enumerate(tables))
    return ShardingTask(tables=tables, topology=topology, batch_size=64, **options)


def devices(solver, task):
    plan = solver.solve(task, None)
    plan.validate(task)
    placed = {shard.table: shard.devices[0] for shard in plan.shards}
    return [placed[table.name] for table in task.tables]


#: What each heuristic balances, worked out below:  size         dim  dim*pooling  dim*pooling*log10(rows)
TABLES = [
    (1000, 4, 10.0),  #                               16,000 B      4    40          120
    (100, 16, 2.0),  #                                 6,400 B     16    32           64
    (10, 64, 1.0),  #                                  2,560 B     64    64           64
    (10_000, 8, 3.0),  #                             320,000 B      8    24           96
]


@pytest.mark.parametrize(
    ("solver", "expected"),
    [
        # t3 -> 0; t0, t1, t2 all -> 1, which stays far lighter.
        (SizeGreedy(), [1, 1, 1, 0]),
        # t2 (64) -> 0; t1, t3, t0 -> 1.
        (DimGreedy(), [1, 1, 0, 1]),
        # t2 (64) -> 0; t0 (40) -> 1; t1 (32) -> 1 (40 < 64) -> 72; t3 (24) -> 0.
        (LookupGreedy(), [1, 1, 0, 0]),
        # t0 (120) -> 0; t3 (96) -> 1; then t1 and t2 tie at 64, t1 is larger and goes to 1 (160), t2 to 0.
        (SizeLookupGreedy(), [0, 1, 0, 1]),
    ],
)
def test_each_heuristic_balances_its_figure(solver, expected):
    assert devices(solver, make_task(TABLES)) == expected


def test_a_table_that_fits_nowhere_is_named_with_its_bytes_and_the_largest_room():
    # t1 (320 bytes) -> 0, which leaves 80 there and 100 on device 1 for t0's 160 bytes.
    task = make_task([(10, 4, 1.0), (20, 4, 1.0)], memory_bytes=(400, 100))
    message = "'t0' of 160 bytes fits on no device: the largest room left is 100 bytes on device 1"
    with pytest.raises(NoFeasiblePlanError, match=message):
        SizeGreedy().solve(task, None)


def test_a_width_that_fbgemm_cannot_fuse_is_reported():
    with pytest.raises(NoFeasiblePlanError, match=r"'t0' has 6 columns.*divisible by 4"):
        DimGreedy().solve(make_task([(10, 6, 1.0)]), None)


def reference_greedy(task, costs):
    """The published loop, transcribed plainly: linear scan, lowest (cost, size, id) among devices with room."""
    sizes = [task.table_bytes(table) for table in task.tables]
    loads, used, placed = [0.0] * task.num_devices, [0] * task.num_devices, [None] * len(costs)
    for cost, size, index in sorted(zip(costs, sizes, range(len(costs)), strict=True), reverse=True):
        room = [d for d in range(task.num_devices) if used[d] + size <= task.topology.memory_bytes[d]]
        best = min(room, key=lambda d: (loads[d], used[d], d))
        loads[best], used[best], placed[index] = loads[best] + cost, used[best] + size, best
    return placed


def test_the_shared_routine_agrees_with_a_plain_loop():
    tables = [(100 * (1 + i * 7 % 11), 4 * (1 + i % 4), 1.0 + i * 5 % 3) for i in range(80)]
    task = make_task(tables, memory_bytes=(400_000, 200_000, 900_000, 700_000))
    costs = [table.embedding_dim * table.pooling_factor for table in task.tables]
    assert devices(LookupGreedy(), task) == reference_greedy(task, costs)
