"""Longest processing time first, whole and with cuts."""

import dataclasses

import pytest
from baseline_tasks import CountingRoofline, devices_of, task_of

from baselines.greedy import LPTWhole, alone_ms
from baselines.local_search import ColumnGreedy
from baselines.lpt import balanced_pieces, halves, merged, whole_tables
from shardgym import NoFeasiblePlanError, Shard, ShardingPlan, load_suite, make_cost, make_solver


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


def test_with_tables_that_fit_and_balance_nothing_is_cut_and_nothing_more_asked():
    task = task_of([(1000, 16, 2.0)] * 6, (2**30,) * 2)
    cost = CountingRoofline()
    assert make_solver("lpt").solve(task, cost) == LPTWhole().solve(task, make_cost("roofline"))
    assert (cost.calls, cost.plans) == (1, 1)


def test_where_times_leave_no_room_the_largest_go_first():
    """By time the first two take a half of each device, so that the third one has no room on either."""
    task = task_of([(30, 4, 90.0), (30, 4, 80.0), (50, 4, 1.0), (10, 4, 0.5)], (960, 960))
    with pytest.raises(NoFeasiblePlanError):
        LPTWhole().solve(task, make_cost("roofline"))
    assert devices_of(task, make_solver("lpt").solve(task, make_cost("roofline"))) == [1, 1, 0, 0]


def test_a_table_of_which_nothing_fits_on_a_device_is_cut_by_rows_and_the_others_by_columns():
    task = task_of([(1000, 4, 1.0), (100, 8, 1.0), (10, 4, 1.0)], (6000,) * 4)
    plan = make_solver("lpt").solve(task, make_cost("roofline"))
    plan.validate(task)
    assert [plan.kind_of(name, task) for name in ("t0", "t1", "t2")] == ["row_wise", "column_wise", "table_wise"]
    alone = task_of([(1000, 4, 1.0)], (6000,) * 4)
    assert len(make_solver("lpt").solve(alone, make_cost("roofline")).shards) == 4


@pytest.mark.parametrize(("suite", "index"), [("tight8-v2", 29), ("rows8-v1", 28)])
def test_tasks_of_suites_that_halving_by_time_does_not_solve_have_plans(suite, index):
    """In the first memory is nearly full, in the second tables have too many rows; `column_greedy` solves the first."""
    task = load_suite(suite)[index]
    make_solver("lpt").solve(task, make_cost("roofline")).validate(task)
    if suite == "tight8-v2":
        make_solver("column_greedy").solve(task, make_cost("roofline")).validate(task)


def test_a_table_longer_than_an_even_share_is_halved_where_that_is_cheaper():
    task = task_of([(100_000, 128, 50.0), (100, 4, 1.0), (100, 4, 1.0)], (2**30,) * 4)
    cost = make_cost("roofline")
    whole = whole_tables(task, cost)
    cut = balanced_pieces(task, cost, whole)
    assert len(whole.shards) == 3 < len(cut.shards)
    share = sum(whole.alone_ms) / 4
    assert all(ms <= share or not halves(shard) for shard, ms in zip(cut.shards, cut.alone_ms, strict=True))
    plan = make_solver("lpt").solve(task, cost)
    halved, uncut = cost.evaluate(task, [plan, LPTWhole().solve(task, cost)])
    assert halved.total_ms < uncut.total_ms
    assert len(plan.shards) > 3


class UpToFour(CountingRoofline):
    """Prices tasks of four devices or fewer, as a cost that runs a process for each."""

    max_devices = 4

    def score(self, task, plans):
        assert task.num_devices <= 4
        return super().score(task, plans)


@pytest.mark.parametrize("name", ["lpt", "column_greedy", "neuroshard"])
def test_a_query_has_no_more_devices_than_the_cost_prices(name):
    task = task_of([(1000 + n, 16, 2.0 + n) for n in range(7)], (2**20,) * 2)
    plans = [make_solver(name).solve(task, cost) for cost in (UpToFour(), CountingRoofline())]
    assert plans[0] == plans[1]


@pytest.mark.parametrize(("columns", "expected"), [(16, [8, 8]), (12, [4, 8]), (8, [4, 4]), (4, [])])
def test_halves_are_of_widths_that_can_be_fused(columns, expected):
    parts = halves(Shard("t", (0, 10), (4, 4 + columns), 0))
    assert [part.num_columns for part in parts] == expected
    assert not parts or (parts[0].columns[0], parts[1].columns) == (4, (parts[0].columns[1], 4 + columns))


def test_one_large_table_is_cut_as_long_as_that_helps():
    task = task_of([(100_000, 64, 40.0), (1000, 8, 1.0)], (2**30,) * 4)
    cost = make_cost("roofline")
    found = []
    plan = ColumnGreedy().solve(task, cost, observer=lambda plan, ms: found.append((plan, ms)))
    lpt = cost.evaluate(task, [LPTWhole().solve(task, cost)])[0].total_ms
    assert found[0][1] == lpt
    assert found[-1][0] == plan
    assert [ms for _, ms in found] == sorted({ms for _, ms in found}, reverse=True)
    assert found[-1][1] < 0.7 * lpt
    assert len({shard.devices[0] for shard in plan.shards if shard.table == "t0"}) > 2


def test_pieces_on_one_device_become_one_shard():
    task = task_of([(10, 16, 1.0), (10, 4, 1.0)])
    pieces = [Shard("t0", (0, 10), columns, device) for columns, device in (((0, 4), 0), ((4, 12), 1), ((12, 16), 0))]
    rows = [Shard("t1", (0, 5), (0, 4), 0), Shard("t1", (5, 10), (0, 4), 0)]
    after = merged(task, ShardingPlan.of(task, [*pieces, *rows]))
    after.validate(task)
    assert [(s.columns, s.devices[0]) for s in after.of_table("t0")] == [((0, 8), 0), ((8, 16), 1)]
    assert len(after.shards) == 3  # rows that follow each other on a device are joined by every plan
