"""Train MaskablePPO (sb3-contrib) to place tables, then compare it with heuristics on quick-v1.

    pip install 'shardgym[rl]'
    python examples/maskable_ppo.py                            # about two minutes on one core
    python examples/maskable_ppo.py --env ShardGym/ColumnWise-v0 --cost simulator

Trains on random tasks from the train half of the table pool, so no table of quick-v1 is seen before the comparison.
All plans are scored by the cost model that the policy was trained with.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
from collections.abc import Sequence
from pathlib import Path

import gymnasium
import torch
from sb3_contrib import MaskablePPO
from set_policy import SetPolicy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from tabulate import tabulate

import shardgym
from shardgym.envs.relative_reward import RelativeReward
from shardgym.errors import NO_PLAN

SUITE, POOL = "quick-v1", "synthetic-2021"
HEURISTICS = ("random", "dim_greedy")
NUM_ENVS = 8


def make_env(env_id: str, cost: shardgym.CostModel, **arguments: object) -> gymnasium.Env:
    """Tables that take longest come up first, so that the last ones can even out what is left."""
    settings = {"order": "lookup", "observation": "full", "max_tables": 30} | arguments
    return gymnasium.make(env_id, suite=SUITE, cost=cost, **settings)


def make_training_env(env_id: str, cost: shardgym.CostModel) -> gymnasium.Env:
    """Random tasks, a reward for every step, rewards of one size; a dead end costs more than a bad plan."""
    return Monitor(RelativeReward(make_env(env_id, cost, pool=POOL, reward="dense", penalty=-100.0)))


def train(options: argparse.Namespace, cost: shardgym.CostModel) -> MaskablePPO:
    """Return a trained policy. Episodes are short and end by themselves, so rewards are not discounted."""
    envs = DummyVecEnv([lambda: make_training_env(options.env, cost)] * NUM_ENVS)
    model = MaskablePPO(
        SetPolicy, envs, n_steps=256, batch_size=256, n_epochs=10, gamma=1.0, gae_lambda=0.95,
        learning_rate=lambda left: 1e-3 * left, seed=options.seed, device="cpu", tensorboard_log=options.logdir,
    )  # fmt: skip
    return model.learn(options.steps)


def costs_of_policy(model: MaskablePPO, env: gymnasium.Env, tasks: int) -> list[float]:
    """Return what the policy's plans cost in ms; infinity where it finds none."""
    costs = []
    for index in range(tasks):
        observation, info = env.reset(options={"task_index": index})
        while "outcome" not in info:
            masks = env.get_wrapper_attr("action_masks")()
            action, _ = model.predict(observation, action_masks=masks, deterministic=True)
            observation, _, _, _, info = env.step(action)
        costs.append(info["cost"].total_ms if info["outcome"] == "complete" else math.inf)
    return costs


def costs_of_solver(name: str, cost: shardgym.CostModel, seed: int) -> list[float]:
    """Return what a solver's plans cost in ms; infinity where it finds none."""
    solver, costs = shardgym.make_solver(name), []
    for task in shardgym.load_suite(SUITE):
        try:
            costs.append(cost.evaluate(task, [solver.solve(task, cost, seed=seed)])[0].total_ms)
        except NO_PLAN:
            costs.append(math.inf)
    return costs


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, compare, print."""
    options = parse(arguments)
    torch.set_num_threads(1)
    cost = shardgym.make_cost(options.cost, **({"weights": options.weights} if options.weights else {}))
    model = train(options, cost)
    table = {name: costs_of_solver(name, cost, options.seed) for name in HEURISTICS}
    table["maskable_ppo"] = costs_of_policy(model, make_env(options.env, cost), len(shardgym.load_suite(SUITE)))
    rows = [[index, *costs] for index, costs in enumerate(zip(*table.values(), strict=True))]
    rows.append(["mean", *(sum(costs) / len(costs) for costs in table.values())])
    print(f"{SUITE}, cost '{options.cost}' in ms, {model.num_timesteps} steps on {options.env}")
    print(tabulate(rows, headers=("task", *table), floatfmt=".2f"))
    if options.out:
        options.out.write_text(json.dumps(table))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="ShardGym/TableWise-v0")
    parser.add_argument("--cost", default="roofline", choices=("roofline", "simulator"))
    parser.add_argument("--weights", help="folder of simulator weights; those that ship with the package by default")
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logdir", help="TensorBoard logs go here")
    parser.add_argument("--out", type=Path, help="write the costs of all plans to this JSON file")
    options = parser.parse_args(arguments)
    if options.weights and options.cost != "simulator":
        parser.error("--weights is for --cost simulator")
    if options.logdir and importlib.util.find_spec("tensorboard") is None:
        parser.error("--logdir needs TensorBoard: pip install tensorboard")
    return options


if __name__ == "__main__":
    main()
