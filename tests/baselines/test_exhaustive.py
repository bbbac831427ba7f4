"""Exhaustive search: what it tries, and that no solver finds better plans for tiny-v1."""

import contextlib
import itertools
import math

import pytest
from baseline_tasks import VARIED, task_of

from baselines.exhaustive import Exhaustive, enumerate_allocations
from baselines.lpt import merged
from shardgym import InputError, NoFeasiblePlanError, load_suite, make_cost, make_solver
from shardgym.costs.ties import QUANTUM
from shardgym.errors import NO_PLAN

#: Of the tables of tiny-v1, which have at most 16 columns, every cut.
EVERY_CUT = 4


def test_every_placement_is_tried_up_to_the_order_of_equal_devices():
    task = task_of(VARIED[:5], (2**30,) * 3)
    tried = [tuple(map(tuple, allocation.tolist())) for allocation in enumerate_allocations(task, [1] * 5)]
    # Partitions of 5 tables into at most 3 sets: 1 + 15 + 25.
    assert len(tried) == len(set(tried)) == 41
    orbits = {frozenset(allocation) if len(set(allocation)) == 3 else tuple(sorted(allocation)) for allocation in tried}
    assert len(orbits) == 41


def test_devices_of_different_memory_are_not_interchanged_and_overflows_are_left_out():
    # Sizes 16, 32 and 48 bytes, on devices of 48 and 48 and 96 in another order.
    task = task_of([(1, 4, 1.0), (2, 4, 1.0), (3, 4, 1.0)], (48, 96, 48))
    tried = enumerate_allocations(task, [1] * 3)
    where = {tuple(int(row[:, table].argmax()) for table in range(3)) for row in tried}
    sizes = (16, 32, 48)
    feasible = {
        devices
        for devices in itertools.product(range(3), repeat=3)
        if all(sum(s for s, d in zip(sizes, devices, strict=True) if d == e) <= (48, 96, 48)[e] for e in range(3))
    }
    swap = {0: 2, 1: 1, 2: 0}
    orbits = {min(devices, tuple(swap[d] for d in devices)) for devices in feasible}
    assert {min(devices, tuple(swap[d] for d in devices)) for devices in where} == orbits
    assert len(tried) == len(orbits)


def test_parts_of_a_table_are_spread_in_every_way():
    task = task_of([(10, 16, 1.0), (10, 12, 1.0)], (2**30,) * 2)
    # Two parts of 8 columns each; 12 columns have no halves. 3 x 2 allocations, every two of which mirror each other.
    assert len(enumerate_allocations(task, [2, 1])) == 3
    assert Exhaustive(parts=2)._parts_of(12) == 1
    assert Exhaustive(parts=4)._parts_of(12) == 3


@pytest.mark.parametrize("cost_name", ["roofline", "simulator"])
def test_no_search_is_better_than_the_optima_of_tiny_v1(cost_name):
    """Of plans without row cuts and replicas, one shard of a table on a device; oracles may like needless cuts."""
    cost = make_cost(cost_name)
    solvers = [make_solver(name) for name in ("random_search", "karmarkar_karp", "local_search", "column_greedy")]
    for task in load_suite("tiny-v1"):
        plans = [Exhaustive(parts=EVERY_CUT).solve(task, cost)]
        for solver in solvers:
            with contextlib.suppress(*NO_PLAN, InputError):
                plan = merged(task, solver.solve(task, cost))
                whole = all(shard.num_rows == task.table(shard.table).num_embeddings for shard in plan.shards)
                if whole and not plan.has_replicas:
                    plans.append(plan)
        least, *others = (answer.total_ms for answer in cost.evaluate(task, plans))
        assert least <= min(others, default=math.inf) + 2 * QUANTUM, task.name


def test_larger_tasks_are_refused_with_the_count_and_the_limit():
    cost = make_cost("roofline")
    with pytest.raises(
        InputError, match=r"8 tables on 4 devices have 65,536 placements, more than the limit of 1,000:"
    ):
        Exhaustive(limit=1000).solve(task_of(VARIED, (2**30,) * 4), cost)
    with pytest.raises(InputError, match=r"have about 10\^150 placements, more than the limit of 1,000,000"):
        Exhaustive().solve(task_of([(10, 4, 1.0)] * 250, (2**30,) * 4), cost)


def test_a_task_that_only_cuts_make_feasible():
    task = task_of([(10, 8, 1.0)], (160, 160))
    with pytest.raises(NoFeasiblePlanError, match="no placement of whole tables fits into the memory of 2 devices"):
        Exhaustive().solve(task, make_cost("roofline"))
    Exhaustive(parts=2).solve(task, make_cost("roofline")).validate(task)
