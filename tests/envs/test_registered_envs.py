"""Every registered environment behaves as Gymnasium asks, without a warning; specs, pickles and copies of them."""

import copy
import json
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from env_toys import make_tasks, masked_rollout
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env, data_equivalence
from simulator_toys import random_task

import shardgym.envs
from shardgym.costs.roofline import RooflineCost
from shardgym.envs import ENV_IDS


def make_env(env_id, option_set, **arguments):
    """The environment with an observation and a reward of the sweep, on small tasks unless told otherwise."""
    if "suite" not in arguments:
        arguments = {"tasks": make_tasks()} | arguments
    return gymnasium.make(env_id, **option_set, **arguments)


@pytest.fixture(params=ENV_IDS)
def env_id(request):
    return request.param


@pytest.fixture(params=[("compact", "terminal"), ("full_timed", "relative")], ids="-".join)
def option_set(request):
    return dict(zip(("observation", "reward"), request.param, strict=True))


def test_the_sweep_covers_every_environment_of_the_package():
    assert {env_id for env_id in gymnasium.registry if env_id.startswith("ShardGym/")} == set(ENV_IDS)
    assert shardgym.envs.ColumnWiseVectorEnv.__name__ == "ColumnWiseVectorEnv"
    assert not hasattr(shardgym.envs, "RowWiseEnv")


@pytest.mark.parametrize("arguments", [{}, {"suite": "quick-v1", "pool": "synthetic-2021"}], ids=["toys", "pool"])
def test_check_env_passes_without_a_warning(env_id, option_set, arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make_env(env_id, option_set, **arguments).unwrapped)


def test_masked_play_stays_in_the_spaces_and_never_lacks_an_action(env_id, option_set):
    env = make_env(env_id, option_set)
    outcomes = set()
    for observation, reward, terminated, truncated, info in masked_rollout(env, seed=3, steps=150):
        assert env.observation_space.contains(observation)
        assert np.isfinite(reward)
        assert not truncated
        assert terminated or observation["action_mask"].any()
        assert np.array_equal(env.get_wrapper_attr("action_masks")(), observation["action_mask"].astype(bool))
        outcomes.add(info.get("outcome"))
    assert outcomes == {None, "complete", "no_device_fits"}


def test_the_cost_in_info_is_what_the_cost_model_says_of_the_plan_in_info(env_id):
    env, cost, tasks, ends = gymnasium.make(env_id, tasks=make_tasks()), RooflineCost(), make_tasks(), 0
    for _, reward, _, _, info in masked_rollout(env, seed=0, steps=100):
        if info.get("outcome") == "complete":
            ends += 1
            assert info["cost"] == cost.evaluate(tasks[info["task_index"]], [info["plan"]])[0]
            assert reward == -info["cost"].total_ms
    assert ends > 4


def test_unmasked_play_ends_with_the_penalty_instead_of_raising(env_id):
    env = gymnasium.make(env_id, tasks=make_tasks(), reward="dense")
    env.action_space.seed(0)
    outcomes = set()
    for seed in range(40):
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


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("cost", ["roofline", "simulator"])
def test_a_copy_in_the_middle_of_an_episode_goes_on_alike_and_leaves_the_other_alone(
    env_id, option_set, duplicate, cost, request
):
    if cost == "simulator":
        option_set = option_set | {"cost": request.getfixturevalue("simulator")}
    rng = np.random.default_rng(0)
    env = make_env(env_id, option_set, tasks=[random_task(rng, 8, 3), random_task(rng, 5, 2)])
    env.reset(seed=1, options={"task_index": 0})
    for action in (0, 2, 1):
        env.step(action)
    again, other = duplicate(env), duplicate(env)
    for _ in masked_rollout(other, seed=5, steps=20):
        pass
    ended = False
    while not ended:
        action = rng.choice(np.flatnonzero(env.get_wrapper_attr("action_masks")()))
        one, two = env.step(action), again.step(action)
        assert data_equivalence(one, two, exact=True)
        ended = one[2]
    with pytest.raises(gymnasium.error.ResetNeeded):
        again.step(0)
    # The generator goes on from the same point, too.
    assert [env.reset()[1]["task"] for _ in range(9)] == [again.reset()[1]["task"] for _ in range(9)]


def test_a_copy_shares_tasks_and_cost_and_does_not_close_it():
    class Closing(RooflineCost):
        closed = 0

        def close(self):
            type(self).closed += 1

    env = gymnasium.make("ShardGym/TableWise-v0", tasks=make_tasks(), cost=Closing()).unwrapped
    env._owns_cost = True
    env.reset(seed=0)
    forked = copy.deepcopy(env)
    assert forked.task is env.task
    assert forked.cost is env.cost
    forked.close()
    assert Closing.closed == 0
    env.close()
    assert Closing.closed == 1
