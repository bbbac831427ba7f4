"""Local search."""

import itertools

import numpy as np
from baseline_tasks import VARIED, CountingRoofline, devices_of, task_of

from baselines.local_search import LocalSearch
from baselines.random_search import RandomSearch
from shardgym import make_cost
from shardgym.costs.ties import quantized
from shardgym.plans.plan import ShardingPlan


def test_no_move_and_no_swap_improves_on_the_result():
    task = task_of(VARIED, (2**30,) * 3)
    cost = make_cost("roofline")
    start = RandomSearch(queries=1).solve(task, cost)
    plan = LocalSearch(splits=False, queries=100_000).solve(task, cost, initial_plan=start)
    devices = devices_of(task, plan)
    neighbours = []
    for table, device in itertools.product(range(8), range(3)):
        neighbours.append([device if n == table else d for n, d in enumerate(devices)])
    for a, b in itertools.combinations(range(8), 2):
        swapped = devices.copy()
        swapped[a], swapped[b] = devices[b], devices[a]
        neighbours.append(swapped)
    before, after, *others = (
        answer.total_ms
        for answer in cost.evaluate(task, [start, plan, *(ShardingPlan.table_wise(task, d) for d in neighbours)])
    )
    assert after < before
    assert after <= min(others) * (1 + 1e-8)


def test_splits_help_where_one_table_is_costlier_than_all_others():
    task = task_of([(100_000, 64, 40.0), (1000, 8, 1.0)], (2**30,) * 4)
    cost = make_cost("roofline")
    plans = [LocalSearch(splits=splits).solve(task, cost) for splits in (True, False)]
    cut, whole = (answer.total_ms for answer in cost.evaluate(task, plans))
    assert cut < 0.8 * whole
    places = [(shard.table, shard.devices[0]) for shard in plans[0].shards]
    assert len(places) == len(set(places)) > 2


def test_costs_that_are_not_additive_are_asked_so_often_and_no_more():
    cost = CountingRoofline()
    task = task_of(VARIED)
    found = []
    plan = LocalSearch(queries=100).solve(task, cost, observer=lambda plan, ms: found.append(ms))
    assert 2 < cost.plans <= 100
    assert quantized(cost.evaluate(task, [plan])[0].total_ms) == found[-1] < found[0]
    assert np.all(np.diff(found) < 0)
