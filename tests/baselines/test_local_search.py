"""Local search, simulated annealing and random search, and what counts as a query."""

import itertools
import math

import numpy as np
import pytest
from baseline_tasks import VARIED, CountingRoofline, devices_of, task_of

from baselines.greedy import LPTWhole
from baselines.local_search import Annealing, LocalSearch, RandomSearch, draw_placements
from baselines.queries import Queries, SearchRun
from shardgym import InputError, Shard, ShardingPlan, load_suite, make_cost
from shardgym.costs.ties import quantized
from shardgym.evaluation.solver import Budget, Incumbent


def test_no_move_and_no_swap_improves_on_the_result():
    task = task_of(VARIED, (2**30,) * 3)
    cost = make_cost("roofline")
    start = RandomSearch(queries=1).solve(task, cost)
    plan = LocalSearch(queries=100_000).solve(task, cost, initial_plan=start)
    assert len(plan.shards) == 8  # no halving pays
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


@pytest.mark.parametrize("search", [LocalSearch, Annealing])
@pytest.mark.parametrize("first", ["replicas", "rows"])
def test_a_given_plan_of_other_kinds_is_replaced_by_a_cheaper_one_alone(search, first):
    """One of several holders cannot move; the searches start elsewhere, and every plan costs what they say."""
    task, cost = task_of(VARIED, (2**30,) * 3), make_cost("roofline")
    table = task.tables[0]
    shards = [Shard.whole(table, number % 3) for number, table in enumerate(task.tables)]
    if first == "replicas":
        shards[:1] = [Shard.whole(table, 0, 1, 2)]
    else:
        columns = (0, table.embedding_dim)
        shards[:1] = [Shard(table.name, (0, 7), columns, 0), Shard(table.name, (7, table.num_embeddings), columns, 1)]
    given, found = ShardingPlan.of(task, shards), []
    plan = search(queries=200).solve(task, cost, initial_plan=given, observer=lambda *one: found.append(one))
    before, *costs = (answer.total_ms for answer in cost.evaluate(task, [given, *(made for made, _ in found)]))
    np.testing.assert_allclose(costs, [ms for _, ms in found], rtol=1e-6)
    assert found[-1][0] == plan
    assert costs[-1] <= before


def test_splits_help_where_one_table_is_costlier_than_all_others():
    task = task_of([(100_000, 64, 40.0), (1000, 8, 1.0)], (2**30,) * 4)
    cost = make_cost("roofline")
    plans = [solver.solve(task, cost) for solver in (LocalSearch(), LPTWhole())]
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


def test_it_is_ahead_of_random_search_at_equal_numbers_of_queries():
    cost = make_cost("roofline")
    ratios = []
    for task in load_suite("quick-v2")[:5]:
        plans = [solver(queries=400).solve(task, cost) for solver in (Annealing, RandomSearch)]
        ours, theirs = (answer.total_ms for answer in cost.evaluate(task, plans))
        ratios.append(ours / theirs)
    assert np.mean(ratios) < 0.99


def test_no_time_gives_the_plan_to_start_from():
    task = task_of(VARIED)
    cost = make_cost("roofline")
    assert Annealing().solve(task, cost, time_limit_s=0) == LPTWhole().solve(task, cost)
    worst = RandomSearch(queries=1).solve(task, cost)
    assert Annealing().solve(task, cost, time_limit_s=0, initial_plan=worst) == worst


def test_the_cheapest_of_what_was_drawn_comes_back():
    task = task_of(VARIED, (2**30,) * 3)
    cost = make_cost("roofline")
    plan = RandomSearch(queries=40).solve(task, cost, seed=3)
    drawn = draw_placements(task, 64, np.random.default_rng(3).random)[:40]
    costs = cost.evaluate(task, [ShardingPlan.table_wise(task, row) for row in drawn.tolist()])
    best = min(range(40), key=lambda n: costs[n].total_ms)
    assert devices_of(task, plan) == drawn[best].tolist()


def test_draws_are_uniform_and_respect_memory():
    task = task_of([(1, 4, 1.0), (2, 4, 1.0), (3, 4, 1.0)], (2 * 16, 5 * 16))
    drawn = draw_placements(task, 4000, np.random.default_rng(0).random)
    assert {tuple(row) for row in drawn.tolist()} == {(1, 0, 1), (0, 1, 1)}
    free = task_of([(1, 4, 1.0)], (2**20,) * 4)
    counts = np.bincount(draw_placements(free, 4000, np.random.default_rng(0).random)[:, 0])
    # 1,000 each with a standard deviation of 27.
    assert (abs(counts - 1000) < 150).all()


@pytest.mark.parametrize("queries", [1, 2, 64, 100])
def test_queries_are_what_the_oracle_is_asked(queries):
    """By annealing also about the plan to start from, in any case, and about single tables."""
    task = task_of(VARIED)
    first = RandomSearch(queries=1).solve(task, CountingRoofline())
    for search, initial, asked in ((Annealing, None, max(queries, 2)), (RandomSearch, first, queries)):
        cost = CountingRoofline()
        search(queries=queries).solve(task, cost, initial_plan=initial)
        assert cost.plans == asked


def test_the_default_number_of_queries():
    task, cost = task_of(VARIED), make_cost("roofline")

    def limit(queries, seconds):
        return Queries(queries, SearchRun(task, cost, 0, Budget(seconds), Incumbent(task, cost, None))).limit

    assert (limit(None, None), limit(None, 1.0), limit(7, 1.0)) == (50 * 8, math.inf, 7)
    with pytest.raises(InputError, match="queries: expected an integer >= 1, got 0"):
        RandomSearch(queries=0)
