"""Flat observations: the same numbers in one array, and the mask, under two names."""

import gymnasium
import numpy as np
import pytest
from env_toys import make_tasks
from vector_play import COLUMN_WISE, TABLE_WISE, native, some_actions

from shardgym.envs.wrappers import FlatObservation, VectorFlatObservation
from shardgym.errors import InputError

NAMES = [("obs", "mask"), ("observations", "action_mask")]


def assert_flat(flat, observation, names):
    parts = [observation[name] for name in sorted(observation) if name != "action_mask"]
    assert list(flat) == list(names)
    assert flat[names[0]].dtype == np.float32
    assert np.array_equal(flat[names[0]], np.concatenate(parts, axis=-1))
    assert np.array_equal(flat[names[1]], observation["action_mask"])


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("env_id", [TABLE_WISE, COLUMN_WISE])
def test_single_environments(env_id, names):
    settings = {"tasks": make_tasks(), "observation": "full_timed"}
    env = FlatObservation(gymnasium.make(env_id, **settings), *names)
    assert gymnasium.make(env.spec).observation_space == env.observation_space
    actions = np.random.default_rng(0)
    flat, _ = env.reset(seed=1)
    twin = gymnasium.make(env_id, **settings)
    observation, _ = twin.reset(seed=1)
    for _ in range(30):
        assert_flat(flat, observation, names)
        assert flat in env.observation_space
        action = int(actions.choice(np.flatnonzero(env.get_wrapper_attr("action_masks")())))
        flat, _, ended, _, _ = env.step(action)
        observation, *_ = twin.step(action)
        if ended:
            flat, observation = env.reset()[0], twin.reset()[0]


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_native_environments(mode, names):
    settings = {"tasks": make_tasks(), "autoreset_mode": mode}
    envs, twins = VectorFlatObservation(native(TABLE_WISE, **settings), *names), native(TABLE_WISE, **settings)
    assert envs.autoreset_mode.value == mode
    rng, ends = np.random.default_rng(0), 0
    (flat, _), (observations, _) = envs.reset(seed=1), twins.reset(seed=1)
    for _ in range(30):
        assert_flat(flat, observations, names)
        assert flat in envs.observation_space
        actions = some_actions(rng, envs.action_masks(), illegal=0)
        (flat, _, ended, _, infos), (observations, *_, others) = envs.step(actions), twins.step(actions)
        for row in np.flatnonzero(infos.get("_final_obs", [])):
            assert_flat(infos["final_obs"][row], others["final_obs"][row], names)
            ends += 1
        if mode == "Disabled" and ended.any():
            again = {"reset_mask": ended}
            flat, observations = envs.reset(options=dict(again))[0], twins.reset(options=dict(again))[0]
    assert ends > 3 or mode == "Disabled"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FlatObservation(gymnasium.make("CartPole-v1")), "for ShardGym's environments, got CartPoleEnv"),
        (lambda: FlatObservation(gymnasium.make(TABLE_WISE), "obs", "obs"), "are both 'obs': expected two names"),
        (lambda: VectorFlatObservation(3), "for native vector environments, got int 3"),
    ],
)
def test_bad_arguments_are_input_errors(make, message):
    with pytest.raises(InputError, match=message):
        make()
