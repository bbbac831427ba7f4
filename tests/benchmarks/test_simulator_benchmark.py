"""benchmarks/simulator.py: the plans that it measures."""

from __future__ import annotations

import numpy as np
import pytest

from shardgym import load_suite, make_cost

pytestmark = pytest.mark.repository


def test_good_plans_are_of_searches_and_with_a_few_shards_moved(script):
    module = script("simulator")
    task, oracle = load_suite("dlrm4-v2")[1], make_cost("simulator")
    plans = module.good_plans(task, oracle, 8, np.random.default_rng(0))
    assert len({plan.digest for plan in plans}) == len(plans) == 8
    for plan in plans:
        plan.validate(task)
    # No search cuts as others do, so plans that differ in places alone were moved.
    cuts = [sorted((shard.table, shard.columns) for shard in plan.shards) for plan in plans]
    assert len({tuple(of_plan) for of_plan in cuts}) < len(plans)


def test_random_plans_are_of_whole_tables_that_fit(script):
    task = load_suite("dlrm4-v2")[0]
    plans = script("simulator").random_plans(task, 5, np.random.default_rng(0))
    assert len(plans) == 5
    for plan in plans:
        plan.validate(task)
        assert len(plan.shards) == task.num_tables
