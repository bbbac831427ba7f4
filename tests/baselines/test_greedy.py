"""Rules for whole tables: placed by hand, at random, and by differencing, on instances of the literature."""

from collections import Counter

import numpy as np
import pytest
from baseline_tasks import VARIED, devices_of, task_of

from baselines.greedy import (
    DimGreedy,
    KarmarkarKarp,
    LookupGreedy,
    LPTWhole,
    RandomSolver,
    SizeGreedy,
    SizeLookupGreedy,
    difference,
    repair_memory,
    whole_table_ms,
)
from shardgym import NoFeasiblePlanError, make_cost

#: What each heuristic balances, worked out below:  size         dim  dim*pooling  dim*pooling*log10(rows)
TABLES = [
    (1000, 4, 10.0),  #                               16,000 B      4    40          120
    (100, 16, 2.0),  #                                 6,400 B     16    32           64
    (10, 64, 1.0),  #                                  2,560 B     64    64           64
    (10_000, 8, 3.0),  #                             320,000 B      8    24           96
]
TASK = task_of(TABLES)


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
    assert devices_of(TASK, solver.solve(TASK, None)) == expected


def test_a_table_that_fits_nowhere_is_named_with_its_bytes_and_the_largest_room():
    # t1 (320 bytes) -> 0, which leaves 80 there and 100 on device 1 for t0's 160 bytes.
    task = task_of([(10, 4, 1.0), (20, 4, 1.0)], memory_bytes=(400, 100))
    message = "'t0' of 160 bytes fits on no device: the largest room left is 100 bytes on device 1"
    with pytest.raises(NoFeasiblePlanError, match=message):
        SizeGreedy().solve(task, None)


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
    task = task_of(tables, memory_bytes=(400_000, 200_000, 900_000, 700_000))
    costs = [table.embedding_dim * table.pooling_factor for table in task.tables]
    assert devices_of(task, LookupGreedy().solve(task, None)) == reference_greedy(task, costs)
    roofline = make_cost("roofline")
    expected = reference_greedy(task, whole_table_ms(task, roofline).tolist())
    assert devices_of(task, LPTWhole().solve(task, roofline)) == expected


def loads(costs, sets):
    return [sum(costs[n] for n in items) for items in sets]


@pytest.mark.parametrize(
    ("costs", "count", "expected"),
    [
        # Korf, "A complete anytime algorithm for number partitioning" (1998): ends with 2, the optimum is 0.
        ([8, 7, 6, 5, 4], 2, [14, 16]),
        # By hand: 8 and 7 -> (0,7,8), with 6 -> (6,7,8); 5 and 4 -> (0,4,5); joined (6+5, 7+4, 8+0).
        ([8, 7, 6, 5, 4], 3, [8, 11, 11]),
        ([3, 3, 2, 2, 2], 2, [5, 7]),
        ([5.0], 3, [0, 0, 5]),
        ([1, 2, 3], 1, [6]),
        ([0, 0, 0], 2, [0, 0]),
    ],
)
def test_known_instances(costs, count, expected):
    sets = difference(costs, count)
    assert loads(costs, sets) == expected
    assert sorted(n for items in sets for n in items) == list(range(len(costs)))


@pytest.mark.parametrize(
    ("devices", "costs", "sizes", "repaired"),
    [
        ([0, 1, 0], [1, 1, 1], [5, 10, 5], [0, 1, 0]),  # all fits
        ([0, 0, 1], [5, 1, 3], [6, 6, 1], [0, 1, 1]),  # 12 bytes on device 0: t1 costs less than t0 and goes
        ([0, 0, 1, 1], [1, 1, 1, 1], [6, 5, 5, 4], [1, 0, 0, 1]),  # 11 on device 0, 9 on 1: t0 against t2 alone helps
    ],
)
def test_repair_moves_what_adds_least_and_swaps_where_no_move_fits(devices, costs, sizes, repaired):
    memory = np.array([10, 10])
    found = repair_memory(np.array(devices), np.array(costs, dtype=float), np.array(sizes), memory)
    assert found.tolist() == repaired
    assert repair_memory(np.array([0, 0]), np.ones(2), np.array([6, 5]), np.array([10, 4])) is None


def test_plans_are_the_partition_where_memory_is_ample_and_feasible_where_not():
    cost = make_cost("roofline")
    ample = task_of(VARIED, (2**30,) * 3)
    devices = devices_of(ample, KarmarkarKarp().solve(ample, cost))
    assert set(devices) == {0, 1, 2}
    times = whole_table_ms(ample, cost).tolist()
    placed = np.bincount(devices, weights=times)
    assert sorted(placed) == pytest.approx(loads(times, difference(times, 3)))
    size = ample.total_bytes
    tight = task_of(VARIED, (size // 2, size // 3, size // 4))
    assert devices_of(tight, KarmarkarKarp().solve(tight, cost))
    with pytest.raises(NoFeasiblePlanError):
        KarmarkarKarp().solve(task_of([(100, 4, 1.0)], (1000,) * 2), cost)


def drawn(task, seed):
    return tuple(devices_of(task, RandomSolver().solve(task, None, seed=seed)))


def test_all_random_plans_are_equally_likely_where_memory_does_not_bind():
    task = task_of([(3, 4, 1.0), (2, 4, 1.0), (1, 4, 1.0)], (2**20, 2**20))
    counts = Counter(drawn(task, seed) for seed in range(800))
    # 8 plans, 100 each on average with a standard deviation of 9.4.
    assert len(counts) == 8
    assert all(60 < count < 140 for count in counts.values())


def test_only_devices_with_room_are_drawn():
    # Largest first: t2 (3 units) fits device 1 only and leaves 2 units on both. t1 (2) goes to either, t0 to the other.
    task = task_of([(1, 4, 1.0), (2, 4, 1.0), (3, 4, 1.0)], (2 * 16, 5 * 16))
    assert {drawn(task, seed) for seed in range(60)} == {(1, 0, 1), (0, 1, 1)}
