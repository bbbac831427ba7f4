"""Rows of a native vector environment are independent, and in the form of Gymnasium's wrappers of single ones."""

from collections import Counter

import numpy as np
import pytest
from env_toys import awkward_tasks, make_tasks
from golden_rollouts import Failing
from simulator_toys import random_task
from vector_play import (
    ANY_WISE,
    COLUMN_WISE,
    TABLE_WISE,
    assert_same,
    native,
    play_together,
    some_actions,
    wrapped,
)

ENV_IDS = (TABLE_WISE, COLUMN_WISE, ANY_WISE)
MODES = ("NextStep", "SameStep")


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_native_sync_and_async_agree(env_id):
    settings = {"tasks": make_tasks(), "num_envs": 2}
    envs = [wrapped(env_id, **settings), wrapped(env_id, kind="async", **settings), native(env_id, **settings)]
    try:
        outcomes = play_together(envs, seed=2, steps=120)
    finally:
        envs[1].close()
    assert outcomes["complete"] > 5


@pytest.mark.parametrize(("env_id", "reward"), [(TABLE_WISE, "dense"), (COLUMN_WISE, "terminal"), (ANY_WISE, "dense")])
@pytest.mark.parametrize("mode", MODES)
def test_they_agree_on_every_end(env_id, reward, mode):
    """Tasks that cannot be placed or scored among them, in full observations."""
    settings = {"tasks": awkward_tasks(), "penalty": -3.0, "autoreset_mode": mode, "max_devices": 5, "reward": reward}
    settings |= {"observation": "full", "max_tables": 8} | ({} if env_id == TABLE_WISE else {"max_splits": 1})
    envs = [make(env_id, cost=Failing(), **settings) for make in (wrapped, native)]
    outcomes = play_together(envs, seed=5, steps=250)
    ends = {"complete", "invalid_action", "no_device_fits", "no_cost"}
    assert {name for name, count in outcomes.items() if count > 5} == ends


@pytest.mark.parametrize("env_id", [COLUMN_WISE, ANY_WISE])
@pytest.mark.parametrize("limits", [(0, None), (6, 1), (6, 2)])
def test_they_agree_on_limits_of_halving(env_id, limits):
    splits, of_table = limits
    settings = {"tasks": awkward_tasks(), "max_splits": splits, "max_table_splits": of_table}
    envs = [wrapped(env_id, **settings), native(env_id, **settings)]
    assert play_together(envs, seed=4, steps=150)["complete"] > 5


@pytest.mark.parametrize("reward", ["terminal", "dense"])
@pytest.mark.parametrize("env_id", ENV_IDS)
def test_they_agree_on_simulated_costs(simulator, env_id, reward):
    rng = np.random.default_rng(6)
    tasks = [random_task(rng, tables, devices) for tables, devices in ((5, 2), (7, 3), (2, 8), (4, 1), (6, 2))]
    settings = {"tasks": tasks, "autoreset_mode": "SameStep", "cost": simulator, "reward": reward}
    envs = [make(env_id, **settings) for make in (wrapped, native)]
    assert play_together(envs, seed=6, steps=150)["complete"] > 10


@pytest.mark.parametrize("observation", ["timed", "full"])
def test_they_agree_on_holders_in_fast_domains(observation):
    """Tasks of one domain and of several, also of some that do not divide the devices; memory binds in some."""
    rng = np.random.default_rng(9)
    sizes = ((4, 2, 2**30), (8, 2, 2**17), (4, 4, 2**18), (3, 2, 2**30), (8, 4, 2**30), (1, 1, 2**30))
    tasks = [
        random_task(rng, 6, devices, fast_domain_size=domain, memory_bytes=memory) for devices, domain, memory in sizes
    ]
    settings = {"tasks": tasks, "reward": "dense", "observation": observation, "autoreset_mode": "SameStep"}
    envs = [make(ANY_WISE, num_envs=6, **settings) for make in (wrapped, native)]
    outcomes = play_together(envs, seed=7, steps=200, illegal=0.03)
    assert outcomes["complete"] > 40
    assert outcomes["no_device_fits"] > 5


@pytest.mark.parametrize(
    ("env_id", "reward", "observation"),
    [(TABLE_WISE, "terminal", "compact"), (COLUMN_WISE, "dense", "timed"), (ANY_WISE, "terminal", "timed")],
)
@pytest.mark.parametrize("cost", ["simulator", "roofline", "failing"])
def test_without_plans_in_infos_all_else_is_the_same(simulator, env_id, reward, observation, cost):
    """Costs of complete plans then come from running sums where these are kept, and from the cost model elsewhere."""
    if cost == "failing":
        observation = "compact"
    rng = np.random.default_rng(3)
    tasks = awkward_tasks()
    if cost == "simulator":
        tasks = [random_task(rng, tables, devices) for tables, devices in ((5, 2), (3, 3), (4, 1))]
    model = {"simulator": simulator, "roofline": "roofline", "failing": Failing()}[cost]
    settings = {"tasks": tasks, "cost": model, "reward": reward, "observation": observation, "penalty": -3.0}
    envs = native(env_id, **settings), native(env_id, plans=False, **settings)
    masks = envs[0].reset(seed=1)[0]["action_mask"]
    envs[1].reset(seed=1)
    ends = Counter()
    for _ in range(80):
        actions = some_actions(rng, masks, 0.05)
        full, lean = (env.step(actions) for env in envs)
        masks = full[0]["action_mask"]
        ends.update(full[-1].get("outcome", ()))
        left_out = {name for name in full[-1] if name.removeprefix("_") in {"plan", "cost"}}
        assert full[-1].keys() - lean[-1].keys() == left_out
        assert_same((*full[:-1], {name: full[-1][name] for name in lean[-1]}), lean)
    assert ends["complete"] > 3
    assert (ends["no_cost"] > 0) == (cost != "simulator")
