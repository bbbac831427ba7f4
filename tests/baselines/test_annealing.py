"""Simulated annealing."""

import numpy as np
import pytest
from baseline_tasks import VARIED, CountingRoofline, task_of

from baselines import local_search
from baselines.greedy import LPTWhole
from baselines.local_search import Annealing
from baselines.random_search import RandomSearch
from shardgym import load_suite, make_cost


@pytest.mark.parametrize("queries", [1, 2, 100])
def test_queries_are_what_the_oracle_is_asked(queries):
    """The plan to start from is asked about in any case, and so are single tables."""
    cost = CountingRoofline()
    task = task_of(VARIED)
    Annealing(queries=queries).solve(task, cost)
    assert cost.plans == max(queries, 2)


def test_it_is_ahead_of_random_search_at_equal_numbers_of_queries():
    cost = make_cost("roofline")
    ratios = []
    for task in load_suite("quick-v1")[:5]:
        plans = [solver(queries=400).solve(task, cost) for solver in (Annealing, RandomSearch)]
        ours, theirs = (answer.total_ms for answer in cost.evaluate(task, plans))
        ratios.append(ours / theirs)
    assert np.mean(ratios) < 0.99


def test_a_hot_walk_accepts_what_a_cold_one_does_not(monkeypatch):
    """The best plan is kept in any case."""
    task = task_of(VARIED, (2**30,) * 3)
    cost = make_cost("roofline")
    first = cost.evaluate(task, [LPTWhole().solve(task, cost)])[0].total_ms
    for hot in (1e-9, 1e3):
        found = []
        monkeypatch.setattr(local_search, "START_TEMPERATURE", hot)
        monkeypatch.setattr(local_search, "END_TEMPERATURE", hot)
        plan = Annealing(queries=300).solve(task, cost, observer=lambda plan, ms, found=found: found.append(ms))
        assert found == sorted(set(found), reverse=True)
        assert cost.evaluate(task, [plan])[0].total_ms == pytest.approx(found[-1])
        assert found[-1] <= first


def test_no_time_gives_the_plan_to_start_from():
    task = task_of(VARIED)
    cost = make_cost("roofline")
    assert Annealing().solve(task, cost, time_limit_s=0) == LPTWhole().solve(task, cost)
    worst = RandomSearch(queries=1).solve(task, cost)
    assert Annealing().solve(task, cost, time_limit_s=0, initial_plan=worst) == worst
