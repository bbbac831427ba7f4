"""`neuroshard_plus` as a solver: against every plan there is, memory, limits, and what it asks of cost models."""

import dataclasses
import itertools

import numpy as np
import pytest
from random_tasks import random_task
from sums import WholePlans
from test_neuroshard_solver import crowded

from neuroshard.plus.solver import NeuroShardPlus, RowWise
from neuroshard.solver import NeuroShard
from shardgym import EmbeddingTable, InputError, NoFeasiblePlanError, Shard, ShardingPlan, ShardingTask, make_cost
from shardgym.tasks.topology import Topology


def total_ms(task, cost, plan) -> float:
    return cost.evaluate(task, [plan])[0].total_ms


def needs_row_cuts() -> ShardingTask:
    """One table of four columns: only half of its rows fit on a device."""
    topology = Topology(num_devices=2, memory_bytes=900)
    return ShardingTask((EmbeddingTable("t0", 100, 4),), topology, batch_size=64)


def test_plus_refuses_what_cannot_be_packed(simulator):
    for cost in (simulator, make_cost("roofline")):
        with pytest.raises(NoFeasiblePlanError, match="'t0', has 1600 bytes, and the largest device 900"):
            NeuroShardPlus(sharding_types=[]).solve(needs_row_cuts(), cost)
        NeuroShardPlus().solve(needs_row_cuts(), cost).validate(needs_row_cuts())


def test_plus_cuts_anywhere_where_halves_cannot_be_packed(simulator):
    """Three units of columns on devices with room for two and one."""
    task = crowded([12], [2, 1])
    for cost in (simulator, make_cost("roofline")):
        with pytest.raises(NoFeasiblePlanError):
            NeuroShard().solve(task, cost)
        plan = NeuroShardPlus().solve(task, cost)
        assert [(shard.num_columns, shard.devices[0]) for shard in plan.shards] == [(8, 0), (4, 1)]


def test_an_initial_plan_is_kept_where_no_packing_is_found(simulator):
    task = needs_row_cuts()
    halves = [Shard("t0", (0, 50), (0, 4), 0), Shard("t0", (50, 100), (0, 4), 1)]
    initial = ShardingPlan.of(task, halves)
    for cost in (simulator, make_cost("roofline")):
        assert NeuroShardPlus().solve(task, cost, initial_plan=initial) == initial


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spare", [1.03, 4.0])
def test_plus_is_better_than_the_published_search(simulator, compute_simulator, seed, spare):
    """Where memory is tight it is no worse; nor is it by a cost that models exchanges, from the plan of the other."""
    task = random_task(seed, 14, 4, spare)
    for cost in (simulator, compute_simulator):
        try:
            first = NeuroShard().solve(task, cost)
        except NoFeasiblePlanError:
            NeuroShardPlus().solve(task, cost).validate(task)
            continue
        plan = NeuroShardPlus().solve(task, cost, initial_plan=first if cost is compute_simulator else None)
        gained = total_ms(task, cost, first) - total_ms(task, cost, plan)
        assert gained > 0 if (spare, cost) == (4.0, simulator) else gained > -1e-9


@pytest.mark.parametrize("model", ["simulator", "roofline"])
@pytest.mark.parametrize("seed", range(2))
def test_a_search_with_fewer_kicks_is_the_beginning_of_one_with_more(simulator, model, seed):
    """From one start, what observers see is the same up to where the shorter search ends; by default it ends, too."""
    cost, task = simulator if model == "simulator" else make_cost("roofline"), random_task(1 + seed, 24, 4)
    seen = []
    for kicks in (0, 1, 7, 40, None, 500):
        found = []
        solver = NeuroShardPlus(kicks=kicks, sharding_types=())
        solver.solve(task, cost, observer=lambda *best, found=found: found.append(best))
        seen.append(found)
    for found in seen:
        assert found == seen[-1][: len(found)]
    assert len(seen[-1]) > len(seen[0]) or model == "roofline"


def test_with_a_time_limit_kicks_go_on_until_they_bring_nothing(simulator, monkeypatch):
    monkeypatch.setattr("neuroshard.plus.local_search.PATIENCE", 8)
    gains = []
    for seed in (3, 4, 5):
        task = random_task(seed, 14, 4)
        plans = [
            NeuroShardPlus(kicks=0).solve(task, simulator),
            NeuroShardPlus().solve(task, simulator),
            NeuroShardPlus().solve(task, simulator, time_limit_s=1e6),
        ]
        none, default, long = (total_ms(task, simulator, plan) for plan in plans)
        assert long <= default <= none
        gains.append(none - long)
    assert max(gains) > 0


def test_plus_refuses_a_cost_that_does_not_add_up():
    with pytest.raises(InputError, match="neuroshard_plus needs an additive cost"):
        NeuroShardPlus().solve(random_task(1, 8, 3), WholePlans())
    with pytest.raises(InputError, match=r"^row_wise needs an additive cost"):
        RowWise().check_ready(WholePlans())


@pytest.mark.parametrize("kicks", [-1, 1.0])
def test_kicks_out_of_range_are_refused(kicks):
    with pytest.raises(InputError, match=r"kicks: expected an integer >= 0, got "):
        NeuroShardPlus(kicks)


UNIT = 4


def shares(units: int, devices: int) -> list[tuple[int, ...]]:
    """All ways to give units of a table to devices."""
    return [shares for shares in itertools.product(range(units + 1), repeat=devices) if sum(shares) == units]


def every_plan(task: ShardingTask) -> list[ShardingPlan]:
    """All feasible plans in which a device holds at most one shard of a table and no rows are cut."""
    ways = [shares(table.embedding_dim // UNIT, task.num_devices) for table in task.tables]
    plans = [plan_of(task, shares) for shares in itertools.product(*ways)]
    limits = task.topology.memory_bytes
    return [p for p in plans if all(a <= b for a, b in zip(p.bytes_per_device(task), limits, strict=True))]


def plan_of(task: ShardingTask, shares: tuple[tuple[int, ...], ...]) -> ShardingPlan:
    shards = []
    for table, per_device in zip(task.tables, shares, strict=True):
        ends = UNIT * np.cumsum(per_device)
        shards += [
            Shard(table.name, (0, table.num_embeddings), (int(end) - UNIT * units, int(end)), device)
            for device, (end, units) in enumerate(zip(ends, per_device, strict=True))
            if units
        ]
    return ShardingPlan.of(task, shards)


def narrow_task(seed: int, tables: int, devices: int, spare: float) -> ShardingTask:
    """The first tables of at most 16 columns of a large random task, memory in proportion."""
    drawn = [table for table in random_task(seed, 60, devices).tables if table.embedding_dim <= 16][:tables]
    task = dataclasses.replace(random_task(seed, 1, devices), tables=tuple(drawn))
    memory = (int(spare * task.total_bytes / devices),) * devices
    return dataclasses.replace(task, topology=dataclasses.replace(task.topology, memory_bytes=memory))


CASES = [(seed, *size, spare) for seed in range(3) for size in ((5, 2), (3, 3)) for spare in (4.0, 1.25)]


@pytest.mark.parametrize(("seed", "tables", "devices", "spare"), CASES)
@pytest.mark.parametrize("model", ["simulator", "cpu-core", "rtx-2080-ti"])
def test_plans_are_within_a_percent_of_the_optimum(simulator, model, seed, tables, devices, spare):
    cost = simulator if model == "simulator" else make_cost("roofline", hardware=model)
    task = narrow_task(seed, tables, devices, spare)
    costs = [answer.total_ms for answer in cost.evaluate(task, every_plan(task))]
    assert len(costs) > 10, "a task that tells nothing"
    (found,) = cost.evaluate(task, [NeuroShardPlus().solve(task, cost)])
    assert min(costs) * (1 - 1e-9) <= found.total_ms <= 1.01 * min(costs)
