"""Double DQN of Tianshou with action masks, on eight environments.

    pip install 'tianshou>=2'
    python examples/tianshou_dqn.py                      # about a minute on one core
    python examples/tianshou_dqn.py --steps 50000

Tianshou masks actions where observations are dictionaries with `obs` and `mask`. Trains on tasks from the train half of
the table pool, then plays every task of dlrm4-v2 once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import gymnasium
import numpy as np
import torch
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

import shardgym
from shardgym.envs.wrappers import FlatObservation, RelativeReward

NUM_ENVS = 8


class WithoutInfo(gymnasium.Wrapper):
    """Tianshou keeps infos in its buffer, and takes entries that are there at the end alone for errors."""

    def step(self, action: np.int64) -> tuple[dict, float, bool, bool, dict]:
        """Step, and forget the info."""
        *result, _ = self.env.step(action)
        return *result, {}

    def reset(self, **arguments: object) -> tuple[dict, dict]:
        """Reset, and forget the info."""
        return self.env.reset(**arguments)[0], {}


def make_env(**arguments: object) -> gymnasium.Env:
    """Observations under the names of Tianshou, rewards over the reference cost of the task."""
    settings = {"suite": "dlrm4-v2", "cost": "simulator", "observation": "timed", "order": "lookup"} | arguments
    return FlatObservation(RelativeReward(gymnasium.make("ShardGym/ColumnWise-v0", **settings)), "obs", "mask")


def train(steps: int, seed: int) -> DiscreteQLearningPolicy:
    """Return a trained policy; Tianshou shows the progress."""
    np.random.seed(seed)
    torch.manual_seed(seed)
    training = {"pool": "synthetic-2021", "reward": "dense", "relative_penalty": -5.0}
    envs = DummyVectorEnv([lambda: WithoutInfo(make_env(**training)) for _ in range(NUM_ENVS)])
    envs.seed(seed)
    env = make_env()
    shape = env.observation_space["obs"].shape
    net = Net(state_shape=shape, action_shape=env.action_space.n, hidden_sizes=[64, 64])
    policy = DiscreteQLearningPolicy(model=net, action_space=env.action_space, eps_training=0.1)
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=1.0, target_update_freq=250)
    collector = Collector(algorithm, envs, VectorReplayBuffer(20_000, NUM_ENVS), exploration_noise=True)
    collector.reset()
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            test_collector=None,
            max_epochs=4,
            epoch_num_steps=max(NUM_ENVS, steps // 4),
            collection_step_num_env_steps=NUM_ENVS,
            update_step_num_gradient_steps_per_sample=0.25,
            batch_size=64,
        )
    )
    return policy


def evaluate(policy: DiscreteQLearningPolicy) -> list[float]:
    """Return the cost of the policy's plan for every task of dlrm4-v2 in ms; infinity where it finds none."""
    env, costs = make_env(sampling="cycle"), []
    for _ in shardgym.load_suite("dlrm4-v2"):
        observation, info = env.reset()
        while "outcome" not in info:
            batch = Batch(obs=Batch(obs=observation["obs"][None], mask=observation["mask"][None]), info=Batch())
            with torch.no_grad():
                action = int(policy(batch).act[0])
            observation, _, _, _, info = env.step(action)
        costs.append(info["cost_ms"])
    return costs


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, play, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    costs = evaluate(train(options.steps, options.seed))
    print(f"dlrm4-v2: {np.mean(costs):.2f} ms on average, {', '.join(f'{cost:.1f}' for cost in costs)}")


if __name__ == "__main__":
    main()
