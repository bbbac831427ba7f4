"""Largest differencing on instances from the literature, and the repair of memory."""

import numpy as np
import pytest
from baseline_tasks import VARIED, devices_of, task_of

from baselines.greedy import whole_table_ms
from baselines.karmarkar_karp import KarmarkarKarp, difference, repair_memory
from shardgym import make_cost
from shardgym.errors import NoFeasiblePlanError


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


def test_repair_leaves_alone_what_fits():
    devices = np.array([0, 1, 0])
    memory = np.array([10, 10])
    assert repair_memory(devices, np.ones(3), np.array([5, 10, 5]), memory).tolist() == [0, 1, 0]


def test_repair_moves_the_table_that_adds_least():
    # 12 of 10 bytes on device 0: t1 costs less than t0 and goes.
    repaired = repair_memory(np.array([0, 0, 1]), np.array([5.0, 1.0, 3.0]), np.array([6, 6, 1]), np.array([10, 10]))
    assert repaired.tolist() == [0, 1, 1]


def test_repair_swaps_where_no_move_fits():
    # 11 of 10 bytes on device 0, 9 of 10 on device 1: only t0 (6) against t2 (5) helps.
    repaired = repair_memory(np.array([0, 0, 1, 1]), np.ones(4), np.array([6, 5, 5, 4]), np.array([10, 10]))
    assert repaired.tolist() == [1, 0, 0, 1]
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
