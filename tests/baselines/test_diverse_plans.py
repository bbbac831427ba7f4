"""Which plans count as different."""

import dataclasses

import pytest
from baseline_tasks import task_of

from baselines import measured_rerank
from baselines.measured_rerank import diverse_best, held_work, placement_distance
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard

#: Work 4 x 10, 8 x 5, 12 x 10 and 40 x 1: 40, 40, 120 and 40 of 240.
TASK = task_of([(10, 4, 9.0), (20, 8, 4.0), (30, 12, 9.0), (5, 40, 0.0)], (2**20,) * 3)


def plan(*devices):
    return ShardingPlan.table_wise(TASK, devices)


def distance(one, other):
    return placement_distance(held_work(TASK, one), held_work(TASK, other))


def test_work_is_values_read_and_sent():
    held = held_work(TASK, plan(0, 1, 1, 2))
    assert held.sum() == pytest.approx(1)
    assert held.tolist() == [[40 / 240, 0, 0, 0], [0, 40 / 240, 120 / 240, 0], [0, 0, 0, 40 / 240]]


def test_distance_is_the_work_that_moves():
    assert distance(plan(0, 1, 1, 2), plan(0, 1, 1, 2)) == pytest.approx(0)
    assert distance(plan(0, 1, 1, 2), plan(1, 1, 1, 2)) == pytest.approx(40 / 240)
    assert distance(plan(0, 0, 0, 0), plan(0, 1, 2, 2)) == pytest.approx(80 / 240)
    # The device with most work in common keeps its name, though it is another one.
    assert distance(plan(2, 2, 0, 0), plan(0, 1, 2, 2)) == pytest.approx(40 / 240)


def test_parts_of_a_table_count_by_their_cells():
    whole = plan(0, 1, 2, 2)
    shards = [s for s in whole.shards if s.table != "t2"]
    columns = [Shard("t2", (0, 30), (0, 4), 2), Shard("t2", (0, 30), (4, 12), 1)]
    rows = [Shard("t2", (0, 10), (0, 12), 2), Shard("t2", (10, 30), (0, 12), 1)]
    for parts in (columns, rows):
        cut = ShardingPlan.of(TASK, [*shards, *parts])
        # The larger part is renamed to where the whole was: the part that is not there is a third.
        assert distance(whole, cut) == pytest.approx((40 + 40) / 240)
        other_columns = [dataclasses.replace(part, devices=(3 - part.devices[0],)) for part in parts]
        assert distance(cut, ShardingPlan.of(TASK, [*shards, *other_columns])) == pytest.approx(40 / 240)


@pytest.mark.parametrize(("share", "least"), [(0.1, 3), (0.2, 1), (0.0, 4)])
def test_the_cheapest_that_differ_are_taken_in_order(monkeypatch, share, least):
    monkeypatch.setattr(measured_rerank, "_DISTANCE", share)
    found = {plan(0, 1, 1, 2): 2.0, plan(1, 1, 1, 2): 1.0, plan(2, 2, 2, 1): 1.0, plan(0, 0, 0, 0): 3.0}
    best = diverse_best(TASK, found, 9)
    # The third is the second with devices renamed.
    assert len(best) == least
    assert share == 0.0 or best == [plan(1, 1, 1, 2), plan(0, 1, 1, 2), plan(0, 0, 0, 0)][:least]
    assert diverse_best(TASK, found, 2) == best[:2]
