"""Every registered environment behaves as Gymnasium asks, without a warning, whatever its options."""

import itertools
import json
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from env_toys import make_tasks, masked_rollout
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env, data_equivalence

from shardgym.costs.roofline import RooflineCost
from shardgym.envs import ENV_IDS

SEEDS = range(3)


def make_env(env_id, option_set, **arguments):
    """The environment with an observation and a reward of the sweep, on small tasks unless told otherwise."""
    if "suite" not in arguments:
        arguments = {"tasks": make_tasks()} | arguments
    return gymnasium.make(env_id, **option_set, **arguments)


@pytest.fixture(params=ENV_IDS)
def env_id(request):
    return request.param


@pytest.fixture(params=[("compact", "terminal"), ("full_timed", "dense")], ids="-".join)
def option_set(request):
    return dict(zip(("observation", "reward"), request.param, strict=True))


def test_the_sweep_covers_every_environment_of_the_package():
    registered = {env_id for env_id in gymnasium.registry if env_id.startswith("ShardGym/")}
    assert registered == set(ENV_IDS)


def test_check_env_passes_without_a_warning(env_id, option_set):
    for tasks in (make_tasks(), make_tasks()[3:]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(make_env(env_id, option_set, tasks=tasks).unwrapped)


@pytest.mark.parametrize("arguments", [{"suite": "quick-v1"}, {"suite": "quick-v1", "pool": "synthetic-2021"}])
def test_check_env_passes_for_an_environment_made_by_name(env_id, option_set, arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make_env(env_id, option_set, **arguments).unwrapped)


def test_masked_play_stays_in_the_spaces_and_never_lacks_an_action(env_id, option_set):
    env = make_env(env_id, option_set)
    outcomes, rollouts = set(), (masked_rollout(env, seed, steps=250) for seed in SEEDS)
    for observation, reward, terminated, truncated, info in itertools.chain.from_iterable(rollouts):
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
    assert ends > 4


def test_unmasked_play_ends_instead_of_raising(env_id, option_set):
    env = make_env(env_id, option_set)
    env.action_space.seed(0)
    outcomes = set()
    for seed in range(60):
        env.reset(seed=seed)
        terminated, earned = False, 0.0
        while not terminated:
            _, reward, terminated, _, info = env.step(env.action_space.sample())
            earned += reward
        outcomes.add(info["outcome"])
        assert (earned == pytest.approx(-1000.0)) == (info["outcome"] != "complete")
    assert outcomes >= {"complete", "invalid_action"}


def test_the_spec_survives_json_when_arguments_are_names(env_id, option_set):
    env = make_env(
        env_id, option_set, suite="quick-v1", pool="synthetic-2021", cost="roofline", order="lookup",
        cost_settings={"hardware": "a100"},
    )  # fmt: skip
    text = env.spec.to_json()
    again = gymnasium.make(EnvSpec.from_json(text))
    assert json.loads(text)["kwargs"]["suite"] == "quick-v1"
    for one, other in zip(masked_rollout(env, 0), masked_rollout(again, 0), strict=True):
        assert data_equivalence(one, other, exact=True)


def test_a_pickled_environment_goes_on_where_it_was(env_id, option_set):
    env = make_env(env_id, option_set)
    env.reset(seed=1, options={"task_index": 0})
    env.step(2)
    again = pickle.loads(pickle.dumps(env))
    for action in (0, 1, 3, 2, 1):
        assert data_equivalence(env.step(action), again.step(action), exact=True)
    assert data_equivalence(env.reset(), again.reset(), exact=True)
