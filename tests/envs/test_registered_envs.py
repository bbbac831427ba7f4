"""Every registered environment behaves as Gymnasium asks, without a warning."""

import json
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env, data_equivalence

import shardgym  # noqa: F401
from shardgym.costs.roofline import RooflineCost
from shardgym.envs.registration import ENV_IDS
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask
from shardgym.topology import Topology

SEEDS = range(3)


def make_tasks():
    """Tasks with 1 to 4 devices. Memory binds in the second and third; in the second, play can reach a dead end."""
    def task(name, units, memory_units):
        tables = tuple(EmbeddingTable(f"t{i}", 100 * size, 8, 1.0 + i) for i, size in enumerate(units))
        memory = tuple(3200 * size for size in memory_units)
        return ShardingTask(tables, Topology(num_devices=len(memory), memory_bytes=memory), batch_size=64, name=name)

    return [
        task("roomy", [5, 4, 3, 2, 1, 1], [100] * 4), task("tight", [3, 3, 2, 2, 2], [6, 6]),
        task("uneven", [4, 3, 2, 1, 1], [6, 4, 1]), task("single", [1, 2], [3]),
    ]  # fmt: skip


@pytest.fixture(params=ENV_IDS)
def env_id(request):
    return request.param


def masked_rollout(env, seed, steps=40):
    """Yield what every reset and step returned, choosing among unmasked actions."""
    rng = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    yield observation, 0.0, False, False, info
    for _ in range(steps):
        action = int(rng.choice(np.flatnonzero(observation["action_mask"])))
        observation, reward, terminated, truncated, info = env.step(action)
        yield observation, reward, terminated, truncated, info
        if terminated:
            observation, info = env.reset()
            yield observation, 0.0, False, False, info


def test_check_env_passes_without_a_warning(env_id):
    for task in (*make_tasks(), None):
        tasks = [task] if task else make_tasks()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(gymnasium.make(env_id, tasks=tasks).unwrapped)


def test_check_env_passes_for_an_environment_made_by_name(env_id):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(env_id, suite="quick-v1").unwrapped)


@pytest.mark.parametrize("seed", SEEDS)
def test_twins_with_the_same_seed_see_and_say_the_same(env_id, seed):
    twins = [gymnasium.make(env_id, tasks=make_tasks()) for _ in range(2)]
    for one, other in zip(*(masked_rollout(env, seed) for env in twins), strict=True):
        assert data_equivalence(one, other, exact=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_masked_play_stays_in_the_spaces_and_never_lacks_an_action(env_id, seed):
    env = gymnasium.make(env_id, tasks=make_tasks())
    outcomes = set()
    for observation, reward, terminated, truncated, info in masked_rollout(env, seed, steps=200):
        assert env.observation_space.contains(observation)
        assert np.isfinite(reward)
        assert not truncated
        assert terminated or observation["action_mask"].any()
        assert np.array_equal(env.get_wrapper_attr("action_masks")(), observation["action_mask"].astype(bool))
        outcomes.add(info.get("outcome"))
    assert outcomes == {None, "complete", "no_device_fits"}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_cost_in_info_is_what_the_cost_model_says_of_the_plan_in_info(env_id, seed):
    env, cost, tasks, ends = gymnasium.make(env_id, tasks=make_tasks()), RooflineCost(), make_tasks(), 0
    for _, reward, _, _, info in masked_rollout(env, seed, steps=100):
        if info.get("outcome") == "complete":
            ends += 1
            assert info["cost"] == cost.evaluate(tasks[info["task_index"]], [info["plan"]])[0]
            assert reward == -info["cost"].total_ms
    assert ends > 5


def test_unmasked_play_ends_instead_of_raising(env_id):
    env = gymnasium.make(env_id, tasks=make_tasks())
    env.action_space.seed(0)
    outcomes = set()
    for seed in range(60):
        env.reset(seed=seed)
        terminated = False
        while not terminated:
            _, reward, terminated, _, info = env.step(env.action_space.sample())
        outcomes.add(info["outcome"])
        assert (reward == -1000.0) == (info["outcome"] != "complete")
    assert outcomes >= {"complete", "invalid_action"}


def test_the_spec_survives_json_when_arguments_are_names(env_id):
    env = gymnasium.make(env_id, suite="quick-v1", cost="roofline", cost_settings={"hardware": "a100"}, order="lookup")
    text = env.spec.to_json()
    again = gymnasium.make(EnvSpec.from_json(text))
    assert json.loads(text)["kwargs"]["suite"] == "quick-v1"
    for one, other in zip(masked_rollout(env, 0), masked_rollout(again, 0), strict=True):
        assert data_equivalence(one, other, exact=True)


def test_a_pickled_environment_goes_on_where_it_was(env_id):
    env = gymnasium.make(env_id, tasks=make_tasks())
    env.reset(seed=1, options={"task_index": 0})
    env.step(2)
    again = pickle.loads(pickle.dumps(env))
    for action in (0, 1, 3, 2, 1):
        assert data_equivalence(env.step(action), again.step(action), exact=True)
    assert data_equivalence(env.reset(), again.reset(), exact=True)



@pytest.mark.parametrize("vectorization_mode", ["sync", "async"])
def test_vector_environments_batch_observations_and_infos(env_id, vectorization_mode):
    options = {"context": "spawn"} if vectorization_mode == "async" else {}
    envs = gymnasium.make_vec(
        env_id, num_envs=2, vectorization_mode=vectorization_mode, vector_kwargs=options, tasks=make_tasks()
    )
    rng = np.random.default_rng(0)
    observation, _ = envs.reset(seed=5)
    done, complete = np.zeros(2, dtype=bool), 0
    for _ in range(40):
        masks = observation["action_mask"]
        assert masks.shape == (2, 4)
        assert masks.dtype == np.int8
        assert (masks.any(axis=1) | done).all()
        actions = [int(rng.choice(np.flatnonzero(mask))) if mask.any() else 0 for mask in masks]
        observation, rewards, done, truncated, infos = envs.step(np.array(actions))
        assert not truncated.any()
        for i in np.flatnonzero(done):
            if infos["outcome"][i] == "complete":
                complete += 1
                assert rewards[i] == -infos["cost"][i].total_ms
                assert infos["plan"][i].task_hash == infos["task_hash"][i]
    envs.close()
    assert complete > 5


def test_rendering_to_text_needs_no_extra(env_id):
    env = gymnasium.make(env_id, tasks=make_tasks(), render_mode="ansi")
    env.reset(seed=0, options={"task_index": 1})
    assert "0 of 5 tables placed" in env.render()
