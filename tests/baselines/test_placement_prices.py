"""Changes of a placement: what they cost is what the changed plan costs, and what is allowed is feasible."""

import dataclasses

import numpy as np
import pytest
from baseline_tasks import VARIED, CountingRoofline, task_of

from baselines.greedy import LPTWhole
from baselines.lpt import halves
from baselines.placement_prices import Changes, Neighbourhood
from shardgym import ShardingPlan, make_cost
from shardgym.costs.ties import QUANTUM
from shardgym.plans.feasibility import plan_problems


def random_changes(placement, devices, count, rng):
    shards = len(placement.shards)
    given = rng.integers(shards, size=count)
    target = rng.integers(devices, size=count)
    halved = rng.random(count) < 0.3
    returned = np.where(rng.random(count) < 0.4, rng.integers(shards, size=count), -1)
    target = np.where(returned >= 0, placement.devices[returned], target)
    return Changes(given, target, returned, halved & (returned < 0))


def changed_shards(placement, given, target, returned, halved):
    shards = list(placement.shards)
    shard = shards[given]
    if halved:
        left, right = halves(shard)
        shards[given] = left
        shards.append(dataclasses.replace(right, devices=(int(target),)))
    else:
        shards[given] = dataclasses.replace(shard, devices=(int(target),))
    if returned >= 0:
        shards[returned] = dataclasses.replace(shards[returned], devices=(shard.devices[0],))
    return shards


@pytest.mark.parametrize("cost", [make_cost("roofline"), make_cost("simulator"), CountingRoofline()])
def test_prices_are_those_of_whole_plans_also_after_many_changes(cost):
    task = task_of(VARIED, (2**30,) * 3)
    placement = Neighbourhood(task, cost, ShardingPlan.table_wise(task, [0, 1, 2, 0, 1, 2, 0, 1]))
    rng = np.random.default_rng(0)
    for _ in range(12):
        changes = random_changes(placement, 3, 8, rng)
        changes = changes.take(placement.are_allowed(changes))
        if not len(changes.given):
            continue
        plans = [ShardingPlan.of(task, changed_shards(placement, *change)) for change in zip(*changes, strict=True)]
        expected = [answer.total_ms for answer in cost.evaluate(task, plans)]
        assert placement.costs_ms(changes) == pytest.approx(expected, rel=0, abs=2 * QUANTUM)
        placement.make(changes, len(plans) - 1)
        assert placement.plan_maker()() == plans[-1]


def test_what_is_allowed_is_what_is_feasible_with_one_shard_of_a_table_on_a_device():
    task = task_of(VARIED, [int(share * sum(n * d * 4 for n, d, _ in VARIED)) for share in (0.5, 0.35, 0.3)])
    cost = make_cost("roofline")
    placement = Neighbourhood(task, cost, LPTWhole().solve(task, cost))
    rng = np.random.default_rng(1)
    seen = set()
    for _ in range(20):
        changes = random_changes(placement, 3, 40, rng)
        allowed = placement.are_allowed(changes)
        for change, verdict in zip(zip(*changes, strict=True), allowed, strict=True):
            given, target, returned, halved = change
            shard = placement.shards[given]
            swaps_parts = returned >= 0 and placement.shards[returned].table == shard.table
            if shard.devices[0] == target or (halved and not halves(shard)) or swaps_parts:
                assert not verdict
                continue
            shards = changed_shards(placement, *change)
            places = {(shard.table, shard.devices[0]) for shard in shards}
            assert verdict == (len(places) == len(shards) and not plan_problems(task, shards))
            seen.add(bool(verdict))
        if allowed.any():
            placement.make(changes, int(allowed.argmax()))
    assert seen == {True, False}
