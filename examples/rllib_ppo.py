"""PPO of RLlib with action masks, on eight environments.

    pip install 'ray[rllib]>=2.40'
    python examples/rllib_ppo.py
    python examples/rllib_ppo.py --steps 50000

RLlib's module for action masks takes observations with the entries `observations` and `action_mask`. Trains on tasks
from the train half of the table pool, then plays every task of dlrm4-v2 once. It was run with Ray 2.60.0.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch

import shardgym
from shardgym.envs.wrappers import FlatObservation, RelativeReward

NUM_ENVS = 8

#: Steps of the environments between two updates.
BATCH = 2048

TRAINING = {"pool": "synthetic-2021", "reward": "dense", "relative_penalty": -5.0}

Observation = Mapping[str, npt.NDArray[Any]]


def make_env(arguments: Mapping[str, Any]) -> gymnasium.Env:
    """Observations under the names of RLlib, rewards over the reference cost of the task."""
    settings = {"suite": "dlrm4-v2", "cost": "simulator", "observation": "timed", "order": "lookup", **arguments}
    env = RelativeReward(gymnasium.make("ShardGym/ColumnWise-v0", **settings))
    return FlatObservation(env, "observations", "action_mask")


def train(steps: int, seed: int) -> Callable[[Observation], int]:
    """Return the best action by a policy that RLlib trained; prints the mean return after every update."""
    # Imported here, so that the rest of this file can be used without it.
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.rllib.examples.rl_modules.classes.action_masking_rlm import ActionMaskingTorchRLModule
    from ray.tune.registry import register_env

    register_env("shardgym", make_env)
    layers = {"head_fcnet_hiddens": [64, 64], "head_fcnet_activation": "tanh"}
    config = (
        PPOConfig()
        .environment("shardgym", env_config=TRAINING)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS)
        .training(
            lr=1e-3, gamma=1.0, lambda_=0.95, train_batch_size_per_learner=BATCH, minibatch_size=256, num_epochs=5
        )
        .rl_module(rl_module_spec=RLModuleSpec(module_class=ActionMaskingTorchRLModule, model_config=layers))
        .debugging(seed=seed)
    )
    algorithm = config.build_algo()
    for update in range(max(1, steps // BATCH)):
        found = algorithm.train()["env_runners"].get("episode_return_mean", float("nan"))
        print(f"{(update + 1) * BATCH} steps: mean return {found:.3f}")
    module = algorithm.get_module()

    def choose(observation: Observation) -> int:
        batch = {"obs": {name: torch.as_tensor(values)[None] for name, values in observation.items()}}
        with torch.no_grad():
            return int(module.forward_inference(batch)["action_dist_inputs"].argmax())

    return choose


def evaluate(choose: Callable[[Observation], int]) -> list[float]:
    """Return the cost of the plan for every task of dlrm4-v2 in ms; infinity where an episode ends without one."""
    env = make_env({"sampling": "cycle"})
    costs = []
    for _ in shardgym.load_suite("dlrm4-v2"):
        observation, info = env.reset()
        while "outcome" not in info:
            observation, _, _, _, info = env.step(choose(observation))
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
