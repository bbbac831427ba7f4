"""`neuroshard_plus` as a solver: how good its plans are, memory, limits, and what it asks of cost models."""

import pytest
from random_tasks import random_task
from sums import WholePlans
from test_neuroshard_solver import crowded

from neuroshard.plus.solver import NeuroShardPlus
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
        with pytest.raises(NoFeasiblePlanError, match="'t0', has 1600 bytes, the largest device 900"):
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


def test_the_same_seed_gives_the_same_plan_and_seeds_matter(simulator):
    task = random_task(9, 24, 4)
    solver = NeuroShardPlus(kicks=5)
    plans = [solver.solve(task, simulator, seed=seed) for seed in (0, 0, 1, 2, 3)]
    assert plans[0] == plans[1]
    assert len({plan.digest for plan in plans}) > 1


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
    with pytest.raises(InputError, match="neuroshard_plus needs a cost that adds up over shards"):
        NeuroShardPlus().solve(random_task(1, 8, 3), WholePlans())


@pytest.mark.parametrize("kicks", [-1, 1.0])
def test_kicks_out_of_range_are_refused(kicks):
    with pytest.raises(InputError, match=r"kicks .* is not a whole number from 0 on"):
        NeuroShardPlus(kicks)
