"""Additive prices are those of `evaluate`, for every cost that offers them and for one's own."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from shardgym import CostModel, PlanCost, Shard, ShardingPlan, load_suite, make_cost
from shardgym.costs.additive import AdditiveCosts
from shardgym.ties import QUANTUM

EXACT = 1e-9


class ColumnsCost(CostModel):
    """A cost of one's own: columns, and 10 ms for a device that holds any; exchanges by the link model."""

    name, version, deterministic, hardware = "columns", "1", True, "none"

    def additive(self):
        return Columns(num_latents=1)

    def score(self, task, plans):
        return [PlanCost(ms, self.name, self.version, self.hardware) for ms in self.additive().plans_ms(task, plans)]


class Columns(AdditiveCosts):
    def describe(self, task, keys):
        return {"latents": np.array([[float(columns)] for _, _, columns in keys])}

    def device_ms(self, sums, counts):
        forward = sums[..., 0] + 10.0 * (counts > 0)
        return np.stack([forward, 2 * forward], axis=-1)


class WholePlans(ColumnsCost):
    name = "whole_plans"

    def additive(self):
        return None


COSTS = {
    "roofline": lambda: make_cost("roofline"), "h100": lambda: make_cost("roofline", hardware="h100"),
    "gpu": lambda: make_cost("gpu", hardware="a100"),
    "simulator": lambda: make_cost("simulator"), "columns": ColumnsCost,
    "torchrec_rating": lambda: make_cost("torchrec_rating"),
}  # fmt: skip


@pytest.fixture(scope="module", params=COSTS)
def cost(request):
    return COSTS[request.param]()


@pytest.fixture
def task():
    return load_suite("tiny-v1")[0]


def random_plan(task, rng):
    """Cut some tables into halves of their columns, and place everything at random."""
    shards = []
    for table in task.tables:
        cuts = [0, table.embedding_dim]
        if table.embedding_dim >= 8 and rng.random() < 0.3:
            cuts.insert(1, 4 * (table.embedding_dim // 8))
        rows = (0, table.num_embeddings)
        devices = rng.integers(0, task.num_devices, len(cuts) - 1).tolist()
        shards += [Shard(table.name, rows, (*pair,), d) for *pair, d in zip(cuts[:-1], cuts[1:], devices, strict=True)]
    return ShardingPlan.of(task, shards)


@pytest.mark.parametrize("suite", ["tiny-v1", "quick-v1", "dlrm4-v1", "dlrm8-v1", "published-v1"])
def test_placements_of_several_tasks_in_one_call_cost_what_evaluate_says(cost, suite):
    """The last plan of a task leaves all devices but one empty."""
    rng, prices = np.random.default_rng(3), cost.additive()
    tasks = [load_suite(suite)[index] for index in (0, 2)]
    tasks = [task for task in tasks if task.num_devices == tasks[0].num_devices]
    numbers, sums, counts, widths, expected = [], [], [], [], []
    for task in tasks:
        plans = [random_plan(task, rng) for _ in range(3)]
        plans.append(ShardingPlan.of(task, [dataclasses.replace(shard, device=1) for shard in plans[0].shards]))
        expected += [found.per_device for found in cost.score(task, plans)]
        for plan in plans:
            encoded = prices.encode(task, plan.shards)
            held = np.array([shard.device for shard in plan.shards]) == np.arange(task.num_devices)[:, None]
            numbers.append(prices.add_task(task))
            sums.append(held @ prices.latents(encoded))
            widths.append(held @ prices.widths(encoded))
            counts.append(held.sum(axis=1))
    found = prices.per_device_ms(np.array(numbers), np.array(sums), np.array(counts), np.array(widths))
    np.testing.assert_allclose(found, expected, rtol=EXACT)
    compute = prices.device_ms(np.array(sums), np.array(counts)).sum(axis=2)
    slowest = prices.slowest_ms(np.array(numbers), compute, np.array(widths))
    np.testing.assert_allclose(slowest, np.sum(expected, axis=2).max(axis=1), rtol=0, atol=QUANTUM)


def test_shards_of_other_tasks_are_described_once_where_that_is_shared(cost):
    """Of the same tables on the same devices; another batch is another description."""
    first = load_suite("tiny-v1")[0]
    renamed = tuple(dataclasses.replace(table, name=f"other {table.name}") for table in first.tables[2:])
    mixed = dataclasses.replace(first, tables=(*first.tables[:2], *renamed))
    larger = dataclasses.replace(first, batch_size=2 * first.batch_size)
    shared, alone = cost.additive(), cost.additive()
    shared.share_descriptions()
    asked = []
    describe = shared.describe
    shared.describe = lambda task, keys: (asked.append(len(keys)), describe(task, keys))[1]
    for task in (first, mixed, larger, first):
        keys = [(table.name, table.num_embeddings, table.embedding_dim) for table in task.tables]
        mine, theirs = shared.encode_keys(task, keys), alone.encode_keys(task, keys)
        assert mine.tolist() == theirs.tolist()
        np.testing.assert_allclose(shared.latents(mine), alone.latents(theirs), rtol=EXACT)
    assert asked == [first.num_tables, mixed.num_tables - 2, first.num_tables]


def test_costs_that_score_whole_plans_are_not_additive():
    assert WholePlans().additive() is None
    assert make_cost("simulator", role="judge").additive() is None


def test_a_cost_that_scores_in_its_own_way_is_additive_only_when_it_says_so():
    class Twice(type(make_cost("roofline"))):
        def score(self, task, plans):
            costs = super().score(task, plans)
            return [dataclasses.replace(cost, per_device=2 * cost.per_device) for cost in costs]

    class Renamed(type(make_cost("roofline"))):
        name = "renamed"

    assert Twice().additive() is None
    assert Renamed().additive() is not None
    assert ColumnsCost().additive() is not None
