"""PPO of Tianshou with action masks, on 128 native environments.

    pip install 'tianshou>=2'
    python examples/tianshou_ppo.py                      # two minutes of processor time

Tianshou's vector environments are lists of workers with an environment each. The class below has their interface over
native environments, which step together. Tianshou hands observations on as they are, dictionaries with `obs` and
`mask`, and the network gives invalid actions no probability. It was run with Tianshou 2.0.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from columnwise import Clock, Network, Trained, make_envs, run, sizes
from gymnasium import spaces
from tianshou.algorithm import PPO
from tianshou.algorithm.algorithm_base import policy_within_training_step
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import BaseVectorEnv
from torch import Tensor, nn

NUM_ENVS = 128

#: Steps of every environment between two updates.
ROLLOUT = 64


class NativeVectorEnv(BaseVectorEnv):
    """Native environments where Tianshou expects one worker for each; it resets them by their numbers.

    Args:
        num_envs: how many.
    """

    def __init__(self, num_envs: int) -> None:
        self.envs = make_envs(num_envs, "Disabled")
        self.env_num = num_envs
        self.is_async = False
        self.is_closed = False

    def get_env_attr(self, key: str, id: Any = None) -> list[Any]:  # noqa: A002 (Tianshou's names)
        """Return an attribute of the environments, one for each, which share it."""
        value = self.envs.single_action_space if key == "action_space" else getattr(self.envs.unwrapped, key)
        return [value for _ in self._wrap_id(id)]

    def reset(self, env_id: Any = None, **arguments: Any) -> tuple[Batch, np.ndarray]:
        """Start episodes, and return their observations."""
        rows = np.asarray(self._wrap_id(env_id))
        mask = np.zeros(self.env_num, dtype=np.bool_)
        mask[rows] = True
        observations, _ = self.envs.reset(options={"reset_mask": mask}, **arguments)
        return Batch(observations)[rows], _no_infos(len(rows))

    def step(self, action: Any, id: Any = None) -> tuple[Batch, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # noqa: A002
        """Do one action in every environment."""
        rows = np.asarray(self._wrap_id(id))
        actions = np.full(self.env_num, -1)
        actions[rows] = action
        observations, rewards, terminated, truncated, _ = self.envs.step(actions)
        return Batch(observations)[rows], rewards[rows], terminated[rows], truncated[rows], _no_infos(len(rows))

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()
        self.is_closed = True


def _no_infos(count: int) -> np.ndarray:
    """Return empty infos: Tianshou's buffer takes entries that are there at the end alone for errors."""
    return np.array([{} for _ in range(count)], dtype=object)


class Actor(nn.Module):
    """The network with the arguments that Tianshou gives an actor."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Mapping[str, Any], state: Any = None, info: Any = None) -> tuple[Tensor, Any]:  # noqa: ARG002
        """Return scores of actions, invalid ones far below the others."""
        return self.network(_tensors(obs)), state


class Critic(nn.Module):
    """Expected returns by the same network."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Mapping[str, Any]) -> Tensor:
        """Return expected returns, shape (N, 1)."""
        return self.network.scores_and_values(_tensors(obs))[1][:, None]


def _tensors(obs: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(obs[name]) for name in ("obs", "mask")}


def train(seconds: float, seed: int) -> Trained:
    """Return a trained network; prints returns, in reference costs."""
    envs = NativeVectorEnv(NUM_ENVS)
    network = Network(sizes())
    action_space = envs.envs.single_action_space
    assert isinstance(action_space, spaces.Discrete)
    policy = DiscreteActorPolicy(actor=Actor(network), action_space=action_space)
    algorithm = PPO(
        policy=policy, critic=Critic(network), optim=AdamOptimizerFactory(lr=1e-3), ent_coef=0.0005, max_grad_norm=0.5,
        gamma=1.0, max_batchsize=NUM_ENVS * ROLLOUT,
    )  # fmt: skip
    collector = Collector(algorithm, envs, VectorReplayBuffer(NUM_ENVS * ROLLOUT, NUM_ENVS))
    collector.reset(gym_reset_kwargs={"seed": seed})
    clock = Clock(seconds)
    steps = 0
    while clock.left:
        with policy_within_training_step(policy):
            found = collector.collect(n_step=NUM_ENVS * ROLLOUT)
            algorithm.update(buffer=collector.buffer, batch_size=2048, repeat=3)
        collector.reset_buffer(keep_statistics=True)
        steps += found.n_collected_steps
        earned = "none" if found.returns_stat is None else f"{found.returns_stat.mean:.3f}"
        print(f"{steps:>8} steps: mean return {earned}", flush=True)
    return Trained(network, steps, clock.seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, solve the suite, print."""
    run("tianshou", train, arguments)


if __name__ == "__main__":
    main()
