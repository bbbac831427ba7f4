"""PPO of TorchRL with a masked categorical policy, on 16 native environments.

    pip install torchrl
    python examples/torchrl_ppo.py                       # about a minute on one core
    python examples/torchrl_ppo.py --steps 50000

TorchRL resets environments by itself, so they are made with `autoreset_mode="Disabled"`. Trains on tasks from the train
half of the table pool, then plays every task of dlrm4-v2 once.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import gymnasium
import numpy as np
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper
from torchrl.modules import MaskedCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import shardgym
from baselines.learning.policy_solver import PolicySolver
from shardgym.envs.wrappers import VectorFlatObservation, VectorRelativeReward
from shardgym.errors import NO_PLAN

NUM_ENVS, FRAMES, EPOCHS, MINIBATCH = 16, 1024, 4, 256
SETTINGS = {"suite": "dlrm4-v2", "cost": "simulator", "observation": "timed", "order": "lookup"}


def training_env(seed: int) -> GymWrapper:
    """Native environments as one batched environment of TorchRL."""
    envs = gymnasium.make_vec(
        "ShardGym/ColumnWise-v0", num_envs=NUM_ENVS, autoreset_mode="Disabled", pool="synthetic-2021",
        reward="dense", relative_penalty=-5.0, **SETTINGS,
    )  # fmt: skip
    env = GymWrapper(VectorFlatObservation(VectorRelativeReward(envs), "obs", "mask"), categorical_action_encoding=True)
    env.set_seed(seed)
    return env


def networks(observation: int, actions: int) -> tuple[ProbabilisticActor, ValueOperator]:
    """Return a policy that gives invalid actions no probability, and a value network."""

    def layers(outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(observation, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
        )

    class Valid(nn.Module):
        """The logits, and the mask as booleans."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = layers(actions)

        def forward(self, obs: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            # After the end nothing is valid, and nothing is chosen; a distribution needs some action all the same.
            return self.layers(obs), (mask > 0) | ~(mask > 0).any(dim=-1, keepdim=True)

    module = TensorDictModule(Valid(), in_keys=["obs", "mask"], out_keys=["logits", "valid"])
    policy = ProbabilisticActor(
        module,
        in_keys={"logits": "logits", "mask": "valid"},
        distribution_class=MaskedCategorical,
        return_log_prob=True,
    )
    return policy, ValueOperator(layers(1), in_keys=["obs"])


def train(steps: int, seed: int) -> ProbabilisticActor:
    """Return a trained policy; prints the mean reward of a step now and then."""
    torch.manual_seed(seed)
    env = training_env(seed)
    policy, value = networks(env.observation_spec["obs"].shape[-1], env.action_spec.space.n)
    loss = ClipPPOLoss(policy, value, clip_epsilon=0.2, entropy_coeff=0.001)
    advantage = GAE(gamma=1.0, lmbda=0.95, value_network=value)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    collector = Collector(env, policy, frames_per_batch=FRAMES, total_frames=max(1, steps // FRAMES) * FRAMES)
    for number, batch in enumerate(collector, 1):
        for _ in range(EPOCHS):
            advantage(batch)
            flat = batch.reshape(-1)
            for rows in torch.randperm(len(flat)).split(MINIBATCH):
                losses = loss(flat[rows])
                optimizer.zero_grad()
                sum(losses[name] for name in ("loss_objective", "loss_critic", "loss_entropy")).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
        ended = batch["next", "done"].sum().item()
        earned = batch["next", "reward"].sum().item()
        print(f"{number * FRAMES:>8} steps: episodes earn {earned / max(1, ended):.3f} reference costs", flush=True)
    collector.shutdown()
    return policy


def evaluate(policy: ProbabilisticActor) -> list[float]:
    """Return the cost of the policy's plan for every task of dlrm4-v2 in ms; infinity where it finds none."""
    settings = {name: SETTINGS[name] for name in ("observation", "order")}
    solver = PolicySolver(policy, "ShardGym/ColumnWise-v0", flat=("obs", "mask"), max_devices=4, **settings)
    cost = shardgym.make_cost(SETTINGS["cost"])
    costs = []
    for task in shardgym.load_suite(SETTINGS["suite"]):
        try:
            costs.append(cost.evaluate(task, [solver.solve(task, cost)])[0].total_ms)
        except NO_PLAN:
            costs.append(math.inf)
    return costs


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, play, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_480)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    costs = evaluate(train(options.steps, options.seed))
    print(f"dlrm4-v2: {np.mean(costs):.2f} ms on average, {', '.join(f'{cost:.1f}' for cost in costs)}")


if __name__ == "__main__":
    main()
