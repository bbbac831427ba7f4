"""Longest processing time first."""

import dataclasses

import pytest
from baseline_tasks import VARIED, CountingRoofline, devices_of, task_of

from baselines.lpt import LPT, alone_ms, whole_table_ms
from shardgym import make_cost, make_solver
from shardgym.errors import NoFeasiblePlanError
from shardgym.plan import Shard, ShardingPlan
from shardgym.suites import load_suite


def test_a_plain_loop_finds_the_same_plan():
    task = task_of(VARIED, (2**30,) * 3)
    cost = make_cost("roofline")
    times = whole_table_ms(task, cost)
    load = [0.0] * 3
    expected = [0] * len(times)
    for n in sorted(range(len(times)), key=lambda n: -times[n]):
        expected[n] = load.index(min(load))
        load[expected[n]] += times[n]
    assert devices_of(task, LPT().solve(task, cost)) == expected


@pytest.mark.parametrize("name", ["roofline", "simulator"])
def test_prices_of_single_shards_are_compute_of_plans_with_that_shard_alone(name):
    task = load_suite("tiny-v1")[0]
    cost = make_cost(name)
    table = task.tables[2]
    shards = [Shard.whole(table, 0), Shard(table.name, (0, table.num_embeddings), (0, 4), 0)]
    prices = alone_ms(task, cost, shards)
    for shard, price in zip(shards, prices, strict=True):
        alone = dataclasses.replace(table, embedding_dim=shard.num_columns)
        single = task.__class__((alone,), task.topology, task.batch_size, task.precision, task.optimizer)
        phases = cost.evaluate(single, [ShardingPlan.table_wise(single, [0])])[0].per_device[0]
        assert price == pytest.approx(phases[1] + phases[4])


def test_all_tables_are_priced_in_one_query():
    cost = CountingRoofline()
    make_solver("lpt").solve(task_of(VARIED), cost)
    assert (cost.calls, cost.plans) == (1, 1)


def test_a_table_that_fits_nowhere_and_a_width_that_cannot_be_fused_are_named():
    cost = make_cost("roofline")
    with pytest.raises(NoFeasiblePlanError, match="'t0' of 160 bytes fits on no device"):
        LPT().solve(task_of([(10, 4, 1.0)], (100, 100)), cost)
    with pytest.raises(NoFeasiblePlanError, match="'t0' has 6 columns"):
        LPT().solve(task_of([(10, 6, 1.0)]), cost)
