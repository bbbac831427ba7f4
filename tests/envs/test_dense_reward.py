"""Dense rewards: what a step adds to the cost of what is placed, and the same return as terminal ones."""

import dataclasses

import gymnasium
import numpy as np
import pytest
from env_toys import halvable_task, make_tasks, play, returns, with_reuse

from shardgym.costs.roofline import RooflineCost
from shardgym.envs import ENV_IDS
from shardgym.envs.env import ColumnWiseEnv, TableWiseEnv
from shardgym.errors import MeasurementError
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology


class Picky(RooflineCost):
    """Scores two tables and no more, or raises."""

    raising = False

    def score(self, task, plans):
        if len(plans[0].shards) <= 2:
            return super().score(task, plans)
        if self.raising:
            raise MeasurementError("too many tables")
        return [self.no_cost(task, "too many tables") for _ in plans]


class Raising(Picky):
    raising = True


@pytest.mark.parametrize("cost", ["roofline", "simulator"])
@pytest.mark.parametrize("env_id", ENV_IDS)
def test_dense_and_terminal_returns_are_equal(env_id, cost, request):
    cost = request.getfixturevalue("simulator") if cost == "simulator" else cost
    tasks = [with_reuse(task) for task in make_tasks()]
    terminal, dense = (
        [pair for seed in range(4)
         for pair in returns(gymnasium.make(env_id, tasks=tasks, cost=cost, reward=reward), seed, 150)]
        for reward in ("terminal", "dense")
    )  # fmt: skip
    assert [outcome for _, outcome in dense] == [outcome for _, outcome in terminal]
    assert {outcome for _, outcome in dense} == {"complete", "no_device_fits"}
    np.testing.assert_allclose([r for r, _ in dense], [r for r, _ in terminal], rtol=1e-12)


def test_every_step_earns_minus_what_it_adds():
    """Compared with tasks of the placed tables alone, a halved table's halves being tables of their own."""
    task = halvable_task([16, 8])
    steps = play(ColumnWiseEnv(tasks=[task], reward="dense"), [2, 0, 1, 0])
    left, right = (dataclasses.replace(task.tables[0], name=name, embedding_dim=8) for name in ("left", "right"))
    totals = [0.0]
    for placed in ([(left, 0)], [(left, 0), (right, 1)]):
        alone = dataclasses.replace(task, tables=tuple(table for table, _ in placed))
        plan = ShardingPlan.of(alone, (Shard.whole(table, device) for table, device in placed))
        totals.append(RooflineCost().evaluate(alone, [plan])[0].total_ms)
    totals.append(steps[-1][4]["cost"].total_ms)
    assert steps[0][1] == 0
    assert [step[1] for step in steps[1:]] == pytest.approx((-np.diff(totals)).tolist(), rel=1e-12)
    assert steps[1][1] < 0


@pytest.mark.parametrize("cost", [Picky(), Raising()])
def test_a_part_that_cannot_be_scored_ends_the_episode_with_the_penalty_in_all(cost):
    task = halvable_task([16, 8, 8, 4])
    steps = play(TableWiseEnv(tasks=[task], cost=cost, reward="dense", penalty=-50.0), [0, 1, 0])
    _, _, terminated, _, info = steps[-1]
    assert (terminated, info["outcome"], info["reason"]) == (True, "no_cost", "too many tables")
    assert "plan" not in info
    assert sum(step[1] for step in steps) == pytest.approx(-50.0, rel=1e-12)


def test_the_penalty_bounds_the_return_of_complete_plans_too():
    steps = play(TableWiseEnv(tasks=[halvable_task([16, 8])], reward="dense", penalty=-1e-6), [0, 0])
    assert steps[-1][4]["outcome"] == "complete"
    assert sum(step[1] for step in steps) == pytest.approx(-1e-6)


def test_names_of_made_up_tables_do_not_clash_with_real_ones():
    tables = (EmbeddingTable("columns 0 to 7 of 1", 64, 4), EmbeddingTable("wide", 64, 16))
    task = ShardingTask(tables, Topology(num_devices=1, memory_bytes=2**20), batch_size=64)
    steps = play(ColumnWiseEnv(tasks=[task], reward="dense", order="task"), [0, 1, 0, 0])
    assert steps[-1][4]["outcome"] == "complete"


def test_an_infeasible_width_is_noticed_when_it_is_placed():
    tables = (EmbeddingTable("odd", 100, 6), EmbeddingTable("even", 10, 8))
    task = ShardingTask(tables, Topology(num_devices=1, memory_bytes=2**20), batch_size=64)
    [(_, reward, terminated, _, info)] = play(TableWiseEnv(tasks=[task], reward="dense"), [0])
    assert (reward, terminated, info["outcome"]) == (-1000.0, True, "no_cost")
    assert "widths divisible by 4" in info["reason"]
