"""Flat observations: the same numbers in one array, the mask at the end or under a name of its own."""

import gymnasium
import numpy as np
import pytest
from env_toys import make_tasks
from vector_play import COLUMN_WISE, TABLE_WISE, native, some_actions

from shardgym.envs.flat import FlatObservation, VectorFlatObservation
from shardgym.errors import InputError

NAMES = [(), ("obs", "mask"), ("observations", "action_mask")]


def assert_flat(flat, observation, names, outer_names):
    parts = np.concatenate([observation[name] for name in names], axis=-1, dtype=np.float32)
    mask = observation["action_mask"]
    if not outer_names:
        assert np.array_equal(flat, np.concatenate([parts, mask], axis=-1, dtype=np.float32))
    else:
        assert list(flat) == list(outer_names)
        assert np.array_equal(flat[outer_names[0]], parts)
        assert np.array_equal(flat[outer_names[1]], mask)


@pytest.mark.parametrize("outer_names", NAMES)
@pytest.mark.parametrize("env_id", [TABLE_WISE, COLUMN_WISE])
def test_single_environments(env_id, outer_names):
    settings = {"tasks": make_tasks(), "observation": "full_timed"}
    env = FlatObservation(gymnasium.make(env_id, **settings), *outer_names)
    assert set(env.names) | {"action_mask"} == set(env.unwrapped.observation_space)
    assert gymnasium.make(env.spec).observation_space == env.observation_space
    actions = np.random.default_rng(0)
    flat, _ = env.reset(seed=1)
    twin = gymnasium.make(env_id, **settings)
    observation, _ = twin.reset(seed=1)
    for _ in range(30):
        assert_flat(flat, observation, env.names, outer_names)
        assert flat in env.observation_space
        action = int(actions.choice(np.flatnonzero(env.get_wrapper_attr("action_masks")())))
        flat, _, ended, _, _ = env.step(action)
        observation, *_ = twin.step(action)
        if ended:
            flat, observation = env.reset()[0], twin.reset()[0]


@pytest.mark.parametrize("outer_names", NAMES)
@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_native_environments(mode, outer_names):
    settings = {"tasks": make_tasks(), "autoreset_mode": mode}
    envs, twins = VectorFlatObservation(native(TABLE_WISE, **settings), *outer_names), native(TABLE_WISE, **settings)
    assert envs.autoreset_mode.value == mode
    rng, ends = np.random.default_rng(0), 0
    (flat, _), (observations, _) = envs.reset(seed=1), twins.reset(seed=1)
    for _ in range(30):
        assert_flat(flat, observations, envs.names, outer_names)
        assert flat in envs.observation_space
        actions = some_actions(rng, envs.action_masks(), illegal=0)
        (flat, _, ended, _, infos), (observations, *_, others) = envs.step(actions), twins.step(actions)
        for row in np.flatnonzero(infos.get("_final_obs", [])):
            assert_flat(infos["final_obs"][row], others["final_obs"][row], envs.names, outer_names)
            ends += 1
        if mode == "Disabled" and ended.any():
            again = {"reset_mask": ended}
            flat, observations = envs.reset(options=dict(again))[0], twins.reset(options=dict(again))[0]
    assert ends > 3 or mode == "Disabled"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FlatObservation(gymnasium.make("CartPole-v1")), "for ShardGym's environments, got CartPoleEnv"),
        (lambda: FlatObservation(gymnasium.make(TABLE_WISE), "obs"), "expected two different names, or neither"),
        (lambda: VectorFlatObservation(3), "for native vector environments, got int 3"),
    ],
)
def test_bad_arguments_are_input_errors(make, message):
    with pytest.raises(InputError, match=message):
        make()
