"""Random search, and what counts as a query."""

import math

import numpy as np
import pytest
from baseline_tasks import VARIED, CountingRoofline, devices_of, task_of

from baselines.local_search import RandomSearch, draw_placements
from baselines.queries import Queries, SearchRun
from shardgym import make_cost
from shardgym.errors import InputError
from shardgym.evaluation.incumbent import Budget, Incumbent
from shardgym.plans.plan import ShardingPlan


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


@pytest.mark.parametrize("queries", [1, 64, 100])
def test_queries_are_what_the_oracle_is_asked(queries):
    task = task_of(VARIED)
    cost = CountingRoofline()
    first = RandomSearch(queries=1).solve(task, cost)
    cost.plans = 0
    RandomSearch(queries=queries).solve(task, cost, initial_plan=first)
    assert cost.plans == queries


def test_the_default_number_of_queries():
    task, cost = task_of(VARIED), make_cost("roofline")

    def limit(queries, seconds):
        return Queries(queries, SearchRun(task, cost, 0, Budget(seconds), Incumbent(task, cost, None))).limit

    assert (limit(None, None), limit(None, 1.0), limit(7, 1.0)) == (50 * 8, math.inf, 7)
    with pytest.raises(InputError, match="queries 0 is not a whole number from 1 on"):
        RandomSearch(queries=0)
