"""Every search starts by itself and from the learned plan, and is held against neuroshard_plus by itself."""

from __future__ import annotations

import pytest

from shardgym import load_suite, make_cost, make_solver
from shardgym.errors import InputError, NoFeasiblePlanError

pytestmark = pytest.mark.repository


@pytest.fixture
def warm_start(script):
    return script("warm_start")


class Late:
    """Stands for a policy."""

    def solve(self, task, cost, seed=0):
        return make_solver("size_greedy").solve(task, cost)


class Stuck:
    """Stands for one that finds no plan."""

    def solve(self, task, cost, seed=0):
        raise NoFeasiblePlanError("a table fits nowhere")


def test_searches_start_from_the_learned_plan(warm_start):
    task, cost = load_suite("tiny-v1")[0], make_cost("roofline")
    searches = {name: make_solver("local_search", queries=1) for name in warm_start.SEARCHES}
    scores = warm_start.score(task, Late(), searches, cost, cost)
    start = cost.evaluate(task, [Late().solve(task, cost)])[0].total_ms
    assert scores[None, True][0] == start
    for name in warm_start.SEARCHES:
        assert scores[name, True][0] == start  # one query is spent on the plan that it starts from
        assert scores[name, False][0] < start
        assert scores[name, True][2] > scores[None, True][2]
    assert warm_start.score(task, Stuck(), searches, cost, cost) is None


def test_ratios_are_to_the_reference_by_itself(warm_start):
    scores = dict.fromkeys(warm_start.WAYS, (8.0, 5.0, 1.0))
    scores |= {(warm_start.REFERENCE, False): (10.0, 4.0, 3.0), (None, True): (20.0, 8.0, 2.0)}
    rows = {(row["search"], row["start"]): row for row in warm_start.table("ppo", [scores] * 6)}
    assert rows["none", "ppo"]["oracle ratio"] == pytest.approx(2.0)
    assert rows["local_search", "ppo"]["judge ratio"] == pytest.approx(1.25)
    assert rows["neuroshard_plus", "its own"]["oracle ratio"] == pytest.approx(1.0)
    assert rows["neuroshard_plus", "its own"]["ms per plan"] == 3.0
    with pytest.raises(InputError, match="no task that 'ppo' and all searches found a plan for"):
        warm_start.table("ppo", [])
