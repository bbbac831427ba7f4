"""`neuroshard_plus` on many devices: groups of 2D parallelism, and tasks that are too large to look at everything."""

import dataclasses

import numpy as np
import pytest
from random_tasks import random_task

from neuroshard.plus import kinds, local_search, placement
from neuroshard.plus.groups import GroupCosts, group_sizes, plan_of_groups, task_of_group
from neuroshard.plus.local_search import Allocation
from neuroshard.plus.nodes import node_prices
from neuroshard.plus.pricing import Pricing
from neuroshard.plus.sharing import SHARED_TYPES, Place, forms_of
from neuroshard.plus.solver import NeuroShardPlus
from neuroshard.shard_table import ShardTable
from shardgym import EmbeddingTable, ShardingTask, Topology, make_cost

COSTS = {name: make_cost(name) for name in ("roofline", "torchrec_rating")} | {"gpu": make_cost("gpu")}


def task_in_nodes(devices: int = 16, interval: int | None = 1, tables: int = 12) -> ShardingTask:
    drawn = random_task(3, tables, 2, 8.0).tables
    return ShardingTask(
        drawn, Topology.preset("dgx-h100", devices), batch_size=512 * devices, group_sync_interval=interval
    )


@pytest.mark.parametrize("name", COSTS)
def test_an_allocation_in_groups_costs_what_its_plan_does(name):
    """Tables in every form and by columns, on the devices of one group, against the plan of all."""
    task, costs = task_in_nodes(32, interval=3), COSTS[name].additive()
    group = task_of_group(task, 16)
    shards = ShardTable(group)
    prices = GroupCosts(costs, task, 16)
    pricing = Pricing(shards, prices)
    forms = forms_of(group, prices, SHARED_TYPES)
    chosen = []
    for kind in SHARED_TYPES:
        taken = {form.table for form in chosen}
        chosen.append(next(form for of in forms for form in of if form.kind == kind and form.table not in taken))
    shared = pricing.shared.changed([], [Place(form, 0) for form in chosen])
    units = np.zeros((16, task.num_tables), dtype=np.int64)
    for table in set(range(task.num_tables)) - set(shared.places):
        units[table % 16, table] = shards.units[table]
    allocation = Allocation(pricing.beside(shared), units)
    plan = plan_of_groups(task, allocation.pricing.plan(allocation.units).shards, 16)
    plan.validate(task)
    assert plan.group_size == 16
    assert allocation.total_ms == pytest.approx(COSTS[name].evaluate(task, [plan])[0].total_ms, rel=1e-6, abs=1e-5)


def test_groups_are_whole_nodes_that_hold_all_tables_where_the_task_allows_them():
    task = task_in_nodes(32)
    assert group_sizes(task) == [16, 8]
    assert group_sizes(dataclasses.replace(task, group_sync_interval=None)) == []
    topology = task.topology
    tight = dataclasses.replace(topology, memory_bytes=(task.total_bytes // 12,) * 32)
    assert group_sizes(dataclasses.replace(task, topology=tight)) == [16]
    uneven = dataclasses.replace(topology, memory_bytes=(*topology.memory_bytes[1:], topology.memory_bytes[0] - 1))
    assert group_sizes(dataclasses.replace(task, topology=uneven)) == []
    # One device holds no model by itself in a group: that is data parallel.
    apart = dataclasses.replace(topology, num_devices=4, memory_bytes=topology.memory_bytes[:4], fast_domain_size=1)
    assert group_sizes(dataclasses.replace(task, topology=apart)) == [2]


def test_a_group_of_nodes_has_the_links_of_the_cost():
    """Half as many bytes of outputs between its nodes, where these go as FP16."""
    task = task_in_nodes(32)
    group = task_of_group(task, 16)
    full, half = (
        node_prices(group, GroupCosts(make_cost("gpu", **wire).additive(), task, 16)) for wire in ({}, {"wire": "fp16"})
    )
    assert half.sent_ms == pytest.approx(full.sent_ms / 2, rel=1e-3)


def test_the_size_of_groups_is_chosen_by_what_exchanging_weights_costs():
    """Nodes with slow links between them: rare exchanges are worth groups, one in each step is not."""
    tables = tuple(EmbeddingTable(f"t{n}", 200_000, 64, 20.0) for n in range(16))
    topology = dataclasses.replace(Topology.preset("dgx-h100", 16), inter_bandwidth=1e9)
    task = ShardingTask(tables, topology, batch_size=16384)
    found = {}
    for interval in (None, 1, 10_000):
        allowed = dataclasses.replace(task, group_sync_interval=interval)
        plan = NeuroShardPlus(kicks=1).solve(allowed, COSTS["gpu"])
        plan.validate(allowed)
        found[interval] = plan.group_size, COSTS["gpu"].evaluate(allowed, [plan])[0].total_ms
    assert [size for size, _ in found.values()] == [None, None, 8]
    assert found[10_000][1] < 0.5 * found[1][1]


def test_plans_of_large_tasks_are_nearly_as_good(monkeypatch):
    task, cost = task_in_nodes(16, interval=None, tables=12), COSTS["roofline"]
    solver = NeuroShardPlus(kicks=4)
    ms = cost.evaluate(task, [solver.solve(task, cost)])[0].total_ms
    for module in (kinds, local_search, placement):
        monkeypatch.setattr(module, "LARGE", 0)
    plan = solver.solve(task, cost)
    plan.validate(task)
    assert cost.evaluate(task, [plan])[0].total_ms <= 1.05 * ms
