"""Timed observations: what devices compute now and with the next shard, as the cost itself adds it up."""

import gymnasium
import numpy as np
import pytest
from env_toys import halvable_task, make_tasks, with_reuse
from golden_rollouts import Failing
from simulator_toys import random_task
from sums import compute_ms, even_share_ms
from vector_play import ANY_WISE, COLUMN_WISE, TABLE_WISE, native, play_together, wrapped

import shardgym
from shardgym.envs.env import ColumnWiseEnv, TableWiseEnv
from shardgym.errors import InputError
from shardgym.plans.shard import Shard


@pytest.fixture(params=["roofline", "simulator"])
def cost(request, simulator):
    return simulator if request.param == "simulator" else shardgym.make_cost("roofline")


def expected(cost, task, placed, waiting, max_devices):
    """Return the times by the interface for searches; `placed` are pairs of a shard and a device."""
    held = [[shard for shard, device in placed if device == number] for number in range(task.num_devices)]
    times = np.zeros((max_devices, 2))
    times[: task.num_devices] = compute_ms(cost, task, held).sum(axis=1)[:, None]
    if waiting is not None:
        times[: task.num_devices, 1] = compute_ms(cost, task, [[*shards, waiting] for shards in held]).sum(axis=1)
    return (times / even_share_ms(cost, task)).ravel()


def test_times_of_whole_tables(cost):
    task = random_task(np.random.default_rng(3), 5, 3)
    env = TableWiseEnv(tasks=[task], cost=cost, observation="timed", order="task", max_devices=4)
    observation, _ = env.reset(seed=0)
    placed = []
    for table, device in zip((*task.tables, None), (2, 0, 2, 1, 0, 0), strict=True):
        waiting = None if table is None else Shard.whole(table, 0)
        np.testing.assert_allclose(observation["times"], expected(cost, task, placed, waiting, 4), rtol=1e-5)
        if waiting is not None:
            observation, *_ = env.step(device)
            placed.append((waiting, device))


def test_times_of_halves(cost):
    task = with_reuse(halvable_task([16, 8]))
    env = ColumnWiseEnv(tasks=[task], cost=cost, observation="full_timed", order="task")
    env.reset(seed=0)
    halves = [Shard("t0", (0, 64), columns, 0) for columns in ((0, 8), (8, 16))]
    seen = [env.step(action)[0]["times"] for action in (2, 1)]
    np.testing.assert_allclose(seen[0], expected(cost, task, [], halves[0], 2), rtol=1e-5)
    np.testing.assert_allclose(seen[1], expected(cost, task, [(halves[0], 1)], halves[1], 2), rtol=1e-5)


@pytest.mark.parametrize(
    ("env_id", "observation"), [(TABLE_WISE, "full_timed"), (COLUMN_WISE, "timed"), (ANY_WISE, "timed")]
)
def test_native_environments_see_the_same(env_id, observation, cost):
    rng = np.random.default_rng(6)
    tasks = [random_task(rng, tables, devices) for tables, devices in ((5, 2), (7, 3), (2, 4), (4, 1))]
    settings = {"tasks": tasks, "cost": cost, "observation": observation, "autoreset_mode": "SameStep"}
    envs = [make(env_id, **settings) for make in (wrapped, native)]
    assert play_together(envs, seed=6, steps=60)["complete"] > 5


@pytest.mark.parametrize("env_id", [TABLE_WISE, COLUMN_WISE, ANY_WISE])
def test_a_device_is_priced_once_with_each_shard(env_id, cost, monkeypatch):
    """Not again when it gets the shard, nor for dense rewards; only replicas come as nobody has seen them."""
    priced = []
    additive = type(cost.additive())
    exact_compute_ms = additive.exact_compute_ms
    monkeypatch.setattr(
        additive, "exact_compute_ms", lambda self, sums: (priced.append(sums), exact_compute_ms(self, sums))[1]
    )
    task = random_task(np.random.default_rng(4), 6, 3)
    env = gymnasium.make(env_id, tasks=[task], cost=cost, observation="timed", reward="dense").unwrapped
    env.reset(seed=0)
    for device in (1, 0, 1, 2, 0):
        before = env.snapshot()
        priced.clear()
        observation, *_ = env.step(device)
        assert [sums.shape[:-1] for sums in priced] == [(1, 3)]
        env.restore(before)
        priced.clear()
        np.testing.assert_array_equal(env.step(device)[0]["times"], observation["times"])
        assert [sums.shape[:-1] for sums in priced] == [(1, 3)]


@pytest.mark.parametrize("env_id", [TABLE_WISE, COLUMN_WISE, ANY_WISE])
@pytest.mark.parametrize("cost", [Failing(), "fbgemm"])
def test_costs_that_score_whole_plans_only_are_an_input_error(env_id, cost):
    """A subclass of an additive cost that scores otherwise is one of them."""
    pytest.importorskip("fbgemm_gpu", reason="needs the extra 'cpu'")
    with pytest.raises(InputError, match=r"observation='timed' needs a cost .* scores whole plans only; train with"):
        gymnasium.make(env_id, tasks=make_tasks(), cost=cost, observation="timed")
