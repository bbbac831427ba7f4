"""The environments under Stable-Baselines3: its own check without a warning, and its algorithms on them."""

import warnings

import gymnasium
import numpy as np
import pytest
from env_toys import make_tasks

from shardgym.envs import ENV_IDS
from shardgym.envs.game import REWARDS

pytest.importorskip("stable_baselines3", reason="needs the extra 'rl'")


from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_checker import check_env

#: The least and the most that environments show.
OBSERVATIONS = ("compact", "full_timed")

SETTINGS = {
    PPO: {"n_steps": 64, "batch_size": 32, "n_epochs": 2},
    DQN: {"learning_starts": 50, "buffer_size": 200, "batch_size": 16},
}


@pytest.mark.parametrize("env_id", ENV_IDS)
@pytest.mark.parametrize(("observation", "reward"), [*zip(OBSERVATIONS, REWARDS, strict=True)])
def test_its_check_passes_without_a_warning(env_id, observation, reward):
    for arguments in ({"tasks": make_tasks()}, {"suite": "quick-v1"}):
        env = gymnasium.make(env_id, observation=observation, reward=reward, **arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(env.unwrapped)


#: Every algorithm on both environments, and on what both show: one pair of each.
LEARNING = [
    (algorithm, env_id, OBSERVATIONS[(place + number) % 2])
    for place, algorithm in enumerate(SETTINGS)
    for number, env_id in enumerate(ENV_IDS)
]


@pytest.mark.parametrize(("algorithm", "env_id", "observation"), LEARNING)
def test_its_algorithms_learn_for_a_few_hundred_steps(algorithm, env_id, observation):
    env = gymnasium.make(env_id, tasks=make_tasks(), reward="dense", penalty=-50.0, observation=observation)
    model = algorithm("MultiInputPolicy", env, seed=0, device="cpu", **SETTINGS[algorithm])
    before = [parameter.detach().clone() for parameter in model.policy.parameters()]
    model.learn(300)
    assert model.num_timesteps >= 300
    after = list(model.policy.parameters())
    assert all(np.isfinite(parameter.detach().numpy()).all() for parameter in after)
    assert any((one != other).any() for one, other in zip(before, after, strict=True))
