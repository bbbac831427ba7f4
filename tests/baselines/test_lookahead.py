"""One step of lookahead: each action is the one after which the plan so far costs least."""

import dataclasses
import itertools

import numpy as np
import pytest
from baseline_tasks import VARIED, CountingRoofline, devices_of, task_of

from baselines.lookahead import Lookahead, LookaheadAny, LookaheadColumns
from shardgym import InputError, NoFeasiblePlanError, ShardingPlan, load_suite, make_cost

COSTS = ["roofline", "simulator"]


def partial_ms(task, cost, devices):
    """What the slowest device takes with the tables whose devices are given, the others left out."""
    tables = tuple(table for table in task.tables if table.name in devices)
    part = dataclasses.replace(task, tables=tables)
    [answer] = cost.evaluate(part, [ShardingPlan.table_wise(part, [devices[table.name] for table in tables])])
    return answer.total_ms, answer.compute_ms


@pytest.mark.parametrize("name", COSTS)
def test_each_table_goes_where_the_plan_so_far_costs_least(name):
    cost = make_cost(name)
    task = load_suite("tiny-v1")[0]
    found = dict(zip((t.name for t in task.tables), devices_of(task, Lookahead().solve(task, cost)), strict=True))
    placed = {}
    for table in sorted(task.tables, key=lambda t: t.embedding_dim * t.pooling_factor, reverse=True):
        costs = [partial_ms(task, cost, placed | {table.name: device}) for device in range(task.num_devices)]
        totals = [round(total, 6) for total, _ in costs]
        mine = found[table.name]
        assert totals[mine] == min(totals)
        ties = [d for d, total in enumerate(totals) if total == min(totals)]
        assert mine == min(ties, key=lambda d: (round(costs[d][1][d], 6), d))
        placed[table.name] = mine


def test_full_devices_are_passed_over_and_what_fits_nowhere_is_named():
    cost = make_cost("roofline")
    task = task_of([(10, 4, 90.0), (10, 4, 2.0), (10, 4, 1.0)], (2**20, 160))
    assert devices_of(task, Lookahead().solve(task, cost)) == [0, 1, 0]
    with pytest.raises(NoFeasiblePlanError, match="fits on no device"):
        Lookahead().solve(task_of([(10, 32, 1.0)], (1000, 1000)), cost)


def test_a_table_that_fits_nowhere_or_is_too_long_is_halved():
    cost = make_cost("roofline")
    wide = task_of([(10, 32, 1.0)], (1000, 1000))
    plan = LookaheadColumns().solve(wide, cost)
    plan.validate(wide)
    assert {shard.devices for shard in plan.shards} == {(0,), (1,)}
    long = task_of([(10**6, 128, 60.0), (1000, 8, 1.0), (1000, 8, 1.0)], batch_size=65536)
    plan = LookaheadColumns().solve(long, cost)
    assert {shard.devices for shard in plan.shards if shard.table == "t0"} == {(0,), (1,)}
    [cut, whole] = (cost.evaluate(long, [of.solve(long, cost)])[0].total_ms for of in (LookaheadColumns(), Lookahead()))
    assert cut < 0.8 * whole


def test_nothing_is_halved_as_long_as_devices_take_less_than_an_even_share():
    """Though the plan so far would cost less: the first tables alone are always on the slowest devices."""
    cost = make_cost("roofline")
    task = task_of(VARIED, (2**30,) * 3, batch_size=65536)
    first = sorted(task.tables, key=lambda t: t.embedding_dim * t.pooling_factor, reverse=True)[:4]
    widths = {table.name: table.embedding_dim for table in first}
    plan = LookaheadColumns().solve(task, cost)
    assert {shard.table: shard.num_columns for shard in plan.shards if shard.table in widths} == widths


def test_where_long_tables_first_gets_stuck_large_ones_come_first():
    """Small tables that are looked up often would take the room of the large one, which cannot be halved."""
    cost = make_cost("roofline")
    task = task_of([(100, 4, 1.0), (40, 4, 90.0), (40, 4, 80.0)], (1700, 1700))
    with pytest.raises(NoFeasiblePlanError):
        Lookahead().solve(task, cost)
    devices = devices_of(task, LookaheadColumns().solve(task, cost))
    assert devices[1] == devices[2] != devices[0]


def test_a_long_table_of_few_columns_is_cut_by_rows_where_that_costs_less():
    cost = make_cost("roofline")
    task = task_of([(10**6, 4, 400.0), (1000, 4, 1.0)], (2**30,) * 4, batch_size=65536)
    plan = LookaheadAny().solve(task, cost)
    plan.validate(task)
    assert plan.kind_of("t0", task) == "row_wise"
    [cut, whole] = (
        cost.evaluate(task, [of.solve(task, cost)])[0].total_ms for of in (LookaheadAny(), LookaheadColumns())
    )
    assert cut < 0.8 * whole


def test_small_tables_that_are_looked_up_often_are_replicated():
    cost = make_cost("roofline")
    task = task_of([(100, 64, 30.0), (10**5, 4, 1.0)], (2**30,) * 4, batch_size=65536)
    plan = LookaheadAny().solve(task, cost)
    plan.validate(task)
    assert plan.kind_of("t0", task) == "data_parallel"


@pytest.mark.parametrize(("solver", "name"), [(LookaheadColumns(), "simulator"), (LookaheadAny(), "roofline")])
def test_no_plan_of_suites_is_infeasible_and_halvings_are_limited(solver, name):
    cost = make_cost(name)
    for task in itertools.islice(load_suite("dlrm4-v2"), 2):
        try:
            plan = solver.solve(task, cost)
        except NoFeasiblePlanError:
            continue
        plan.validate(task)
        blocks = {(shard.table, shard.columns) for shard in plan.shards}
        assert len(blocks) <= task.num_tables + 10 * (solver.name != Lookahead.name)
        assert np.isfinite(cost.evaluate(task, [plan])[0].total_ms)


@pytest.mark.parametrize("solver", [Lookahead(), LookaheadColumns(), LookaheadAny()])
def test_costs_of_whole_plans_are_refused(solver):
    with pytest.raises(InputError, match=f"{solver.name} needs an additive cost"):
        solver.solve(task_of(VARIED), CountingRoofline())
