"""Native vector environments say what Gymnasium's wrappers of single ones say, row by row."""

import dataclasses

import numpy as np
import pytest
from env_toys import make_tasks
from simulator_toys import random_oracle, random_task
from vector_play import COLUMN_WISE, TABLE_WISE, native, play_together, some_actions, wrapped

from shardgym.costs.roofline import RooflineCost
from shardgym.errors import MeasurementError
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask
from shardgym.topology import Topology

ENV_IDS = (TABLE_WISE, COLUMN_WISE)
MODES = ("NextStep", "SameStep")
#: In 300 steps of three environments each of these happens several times.
OUTCOMES = {"complete", "invalid_action", "no_device_fits"}


class Failing(RooflineCost):
    """Has no time for plans that leave device 0 empty, and no worker for tasks of five tables."""

    def score(self, task, plans):
        if task.num_tables == 5:
            raise MeasurementError("no worker could be started")
        costs = super().score(task, plans)
        return [c if p.on(0) else self.no_cost(task, "worker died") for c, p in zip(costs, plans, strict=True)]


def few_splits(env_id):
    """Settings with which play comes to dead ends often enough."""
    return {"max_splits": 1} if env_id == COLUMN_WISE else {}


def hard_tasks():
    """Toy tasks, one with a width that no kernel takes, and two whose first table fits nowhere."""
    odd = ShardingTask((EmbeddingTable("odd", 10, 6),), Topology(num_devices=2, memory_bytes=2**20), batch_size=64)
    full = ShardingTask((EmbeddingTable("big", 99, 4),), Topology(num_devices=2, memory_bytes=100), batch_size=64)
    wide = ShardingTask((EmbeddingTable("wide", 99, 8),), Topology(num_devices=1, memory_bytes=2000), batch_size=64)
    return [*make_tasks(), odd, full, wide]


def uneven_tasks():
    """Tasks where halves take more than half of the memory, and with figures that do not add up exactly."""
    return [
        dataclasses.replace(task, optimizer="rowwise_adagrad", tables=tuple(
            dataclasses.replace(table, pooling_factor=table.pooling_factor / 7) for table in task.tables
        ))
        for task in make_tasks()
    ]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", ENV_IDS)
def test_native_and_sync_agree(env_id, mode):
    settings = {"autoreset_mode": mode, "tasks": make_tasks(), **few_splits(env_id)}
    outcomes = play_together([wrapped(env_id, **settings), native(env_id, **settings)], seed=1, steps=300)
    assert {name for name, count in outcomes.items() if count > 5} >= OUTCOMES


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_native_sync_and_async_agree(env_id):
    settings = {"tasks": make_tasks(), "num_envs": 2}
    envs = [wrapped(env_id, **settings), wrapped(env_id, kind="async", **settings), native(env_id, **settings)]
    try:
        outcomes = play_together(envs, seed=2, steps=120)
    finally:
        envs[1].close()
    assert outcomes["complete"] > 5


@pytest.mark.parametrize("env_id", ENV_IDS)
@pytest.mark.parametrize("order", ["lookup", "dim", "task"])
def test_they_agree_in_every_order(env_id, order):
    settings = {"tasks": make_tasks(), "order": order}
    assert play_together([wrapped(env_id, **settings), native(env_id, **settings)], seed=3, steps=150)["complete"] > 5


@pytest.mark.parametrize("limits", [(0, None), (2, None), (6, 1), (6, 2)])
@pytest.mark.parametrize("tasks", [make_tasks, uneven_tasks])
def test_they_agree_on_limits_of_halving(limits, tasks):
    splits, of_table = limits
    settings = {"tasks": tasks(), "max_splits": splits, "max_table_splits": of_table}
    envs = [wrapped(COLUMN_WISE, **settings), native(COLUMN_WISE, **settings)]
    assert play_together(envs, seed=4, steps=200)["complete"] > 5


@pytest.mark.parametrize("env_id", ENV_IDS)
@pytest.mark.parametrize("mode", MODES)
def test_they_agree_on_what_cannot_be_scored_or_placed(env_id, mode):
    settings = {"tasks": hard_tasks(), "penalty": -3.0, "autoreset_mode": mode, "max_devices": 5, **few_splits(env_id)}
    envs = [make(env_id, cost=Failing(), **settings) for make in (wrapped, native)]
    outcomes = play_together(envs, seed=5, steps=300)
    assert {name for name, count in outcomes.items() if count > 5} == {*OUTCOMES, "no_cost"}


@pytest.mark.parametrize("mode", MODES)
def test_they_agree_on_simulated_costs(simulator, mode):
    rng = np.random.default_rng(6)
    tasks = [random_task(rng, tables, devices) for tables, devices in ((5, 2), (7, 3), (2, 8), (4, 1), (6, 2))]
    settings = {"tasks": tasks, "autoreset_mode": mode, "cost": "simulator"}
    settings["cost_settings"] = simulator.settings()
    outcomes = play_together([wrapped(TABLE_WISE, **settings), native(TABLE_WISE, **settings)], seed=6, steps=200)
    assert outcomes["complete"] > 20


def test_they_agree_on_simulated_costs_of_halves(simulator):
    """With one cost model for all, that encodes each shard once."""
    rng = np.random.default_rng(7)
    settings = {"tasks": [random_task(rng, 4, 3), random_task(rng, 5, 2)], "cost": simulator}
    assert play_together([wrapped(COLUMN_WISE, **settings), native(COLUMN_WISE, **settings)], 7, 200)["complete"] > 10


def test_odd_widths_cost_the_simulator_nothing(simulator):
    settings = {"tasks": hard_tasks()[4:5], "cost": simulator}
    assert play_together([wrapped(TABLE_WISE, **settings), native(TABLE_WISE, **settings)], 8, 20)["no_cost"] > 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", ENV_IDS)
def test_they_agree_on_full_observations(env_id, mode):
    settings = {"tasks": hard_tasks(), "observation": "full", "max_tables": 8, "autoreset_mode": mode}
    envs = [make(env_id, **settings, **few_splits(env_id)) for make in (wrapped, native)]
    assert play_together(envs, seed=9, steps=200)["complete"] > 20


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_they_agree_on_dense_rewards_of_any_cost_model(env_id):
    settings = {"tasks": hard_tasks(), "reward": "dense", "cost": Failing(), **few_splits(env_id)}
    outcomes = play_together([make(env_id, **settings) for make in (wrapped, native)], seed=10, steps=250)
    assert {name for name, count in outcomes.items() if count > 5} == {*OUTCOMES, "no_cost"}


@pytest.mark.parametrize("mode", MODES)
def test_they_agree_on_dense_simulated_rewards(simulator, mode):
    rng = np.random.default_rng(11)
    tasks = [random_task(rng, tables, devices) for tables, devices in ((5, 2), (7, 3), (9, 8), (4, 1), (6, 2))]
    settings = {"tasks": tasks, "autoreset_mode": mode, "cost": "simulator", "reward": "dense"}
    settings["cost_settings"] = simulator.settings()
    envs = [make(TABLE_WISE, **settings) for make in (wrapped, native)]
    assert play_together(envs, seed=11, steps=200)["complete"] > 20


def test_they_agree_on_dense_simulated_rewards_of_halves(simulator):
    rng = np.random.default_rng(12)
    settings = {"tasks": [random_task(rng, 4, 3), random_task(rng, 5, 2)], "cost": simulator, "reward": "dense"}
    envs = [make(COLUMN_WISE, **settings) for make in (wrapped, native)]
    assert play_together(envs, seed=12, steps=200)["complete"] > 10


def agree_to_rounding(pair, seed):
    """Play with the same actions and compare rewards; return how many episodes were completed."""
    rng, complete = np.random.default_rng(seed), 0
    returned = [envs.reset(seed=0) for envs in pair]
    for _ in range(200):
        actions = some_actions(rng, returned[0][0]["action_mask"], 0.0)
        returned = [envs.step(actions) for envs in pair]
        np.testing.assert_allclose(returned[0][1], returned[1][1], rtol=1e-12)
        complete += int(returned[0][2].sum())
    return complete


def test_simulated_costs_of_halves_agree_to_rounding_when_encoded_apart(simulator):
    rng = np.random.default_rng(13)
    settings = {"tasks": [random_task(rng, 5, 3)], "cost": "simulator", "cost_settings": simulator.settings()}
    assert agree_to_rounding([make(COLUMN_WISE, **settings) for make in (wrapped, native)], 13) > 10


@pytest.mark.parametrize("reward", ["terminal", "dense"])
@pytest.mark.parametrize("env_id", ENV_IDS)
def test_simulated_compute_with_modelled_communication_agrees_to_rounding(tmp_path, env_id, reward):
    cost, rng = random_oracle(tmp_path / "oracle.safetensors", exchanges=False), np.random.default_rng(14)
    settings = {"tasks": [random_task(rng, 5, 3), random_task(rng, 4, 2)], "cost": cost, "reward": reward}
    assert agree_to_rounding([make(env_id, **settings) for make in (wrapped, native)], 14) > 10
