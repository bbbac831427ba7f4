"""Every registered environment behaves as Gymnasium asks, without a warning; specs, pickles and copies of them."""

import copy
import json
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from env_toys import make_tasks, masked_rollout, random_task
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode

import shardgym.envs
from shardgym.costs.roofline import RooflineCost
from shardgym.envs import ENV_IDS
from shardgym.envs.vector_env import PlacementVectorEnv


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
    for env_id in ENV_IDS:
        envs = gymnasium.make_vec(env_id, num_envs=2, suite="tiny-v1", autoreset_mode="SameStep")
        assert isinstance(envs, PlacementVectorEnv)
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


@pytest.mark.parametrize("arguments", [{}, {"suite": "quick-v2", "pool": "synthetic-2021"}], ids=["toys", "pool"])
def test_check_env_passes_without_a_warning(env_id, option_set, arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make_env(env_id, option_set, **arguments).unwrapped)


def test_masked_play_stays_in_the_spaces_and_never_lacks_an_action(env_id, option_set):
    env, outcomes, tasks = make_env(env_id, option_set), set(), make_tasks()
    for observation, reward, terminated, truncated, info in masked_rollout(env, seed=3, steps=150):
        assert env.observation_space.contains(observation)
        assert np.isfinite(reward)
        assert not truncated
        assert terminated or observation["action_mask"].any()
        assert np.array_equal(env.get_wrapper_attr("action_masks")(), observation["action_mask"].astype(bool))
        outcomes.add(info.get("outcome"))
        if info.get("outcome") == "complete":
            assert info["cost"] == RooflineCost().evaluate(tasks[info["task_index"]], [info["plan"]])[0]
            assert info["cost_ms"] == info["cost"].total_ms
    assert outcomes == {None, "complete", "no_device_fits"}


def test_the_spec_survives_json_when_arguments_are_names(env_id, option_set):
    env = make_env(
        env_id, option_set, suite="quick-v2", pool="synthetic-2021", cost="roofline", order="lookup",
        cost_settings={"hardware": "a100"},
    )  # fmt: skip
    text = env.spec.to_json()
    again = gymnasium.make(EnvSpec.from_json(text))
    assert json.loads(text)["kwargs"]["suite"] == "quick-v2"
    assert again.get_wrapper_attr("cost").hardware == "roofline-a100"
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


class Closing(RooflineCost):
    closed = 0

    def close(self):
        type(self).closed += 1


@pytest.mark.parametrize(("make", "arguments"), [(gymnasium.make, {}), (gymnasium.make_vec, {"num_envs": 2})])
def test_only_a_cost_model_made_here_is_closed_and_not_by_a_copy(make, arguments):
    """Copies share tasks and the cost model."""
    Closing.closed = 0
    make("ShardGym/TableWise-v0", tasks=make_tasks(), cost=Closing(), **arguments).close()
    assert Closing.closed == 0
    env = make("ShardGym/TableWise-v0", tasks=make_tasks(), cost=f"{__name__}:Closing", **arguments).unwrapped
    env.reset(seed=0)
    copied = copy.deepcopy(env)
    assert copied._game.catalog is env._game.catalog
    assert copied._game.cost is env._game.cost
    assert getattr(copied, "_single", copied)._sampler is getattr(env, "_single", env)._sampler
    copied.close()
    assert Closing.closed == 0
    env.close()
    assert Closing.closed == 1
