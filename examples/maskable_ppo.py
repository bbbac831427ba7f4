"""Train MaskablePPO (sb3-contrib) to place tables, then compare it with heuristics on dlrm4-v2.

    pip install 'shardgym[rl]'
    python examples/maskable_ppo.py                            # about a minute on one core
    python examples/maskable_ppo.py --env ShardGym/TableWise-v0 --cost simulator

Trains on random tasks from the train half of the table pool, so no table of dlrm4-v2 is seen before the comparison.
All plans are scored by the cost model that the policy was trained with. The solver `ppo` is the same policy with a
training loop that survives a kill, and files of weights: `shardgym fit ppo_columns --suite dlrm4-v2`.
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
from tabulate import tabulate

import shardgym
from baselines.learning.policy_solver import PolicySolver
from baselines.ppo.policies import SetPolicy
from shardgym.envs.sb3 import NativeVecEnv, RatioLog
from shardgym.envs.wrappers import VectorRelativeReward
from shardgym.errors import NO_PLAN

SUITE = "dlrm4-v2"
POOL = "synthetic-2021"
HEURISTICS = ("lpt", "lookahead_columns")
NUM_ENVS = 32

#: Observations have what each device computes now and with the next shard. Tables that take longest come up first, so
#: that the last ones can even out what is left.
PLAYED_WITH = {"order": "lookup", "observation": "timed"}


def make_training_envs(env_id: str, cost: shardgym.CostModel) -> NativeVecEnv:
    """Random tasks, a reward for every step, rewards of one size; a dead end costs more than a bad plan."""
    envs = gymnasium.make_vec(
        env_id, num_envs=NUM_ENVS, suite=SUITE, pool=POOL, cost=cost, reward="dense", relative_penalty=-5,
        autoreset_mode="SameStep", **PLAYED_WITH,
    )  # fmt: skip
    return NativeVecEnv(VectorRelativeReward(envs))


def train(options: argparse.Namespace, cost: shardgym.CostModel) -> MaskablePPO:
    """Return a trained policy. Episodes are short and end by themselves, so rewards are not discounted."""
    model = MaskablePPO(
        SetPolicy, make_training_envs(options.env, cost), n_steps=64, batch_size=256, n_epochs=5, gamma=1.0,
        gae_lambda=0.95, learning_rate=lambda left: 1e-3 * left, seed=options.seed, device="cpu",
        tensorboard_log=options.logdir,
    )  # fmt: skip
    return model.learn(options.steps, callback=RatioLog())


def costs_of(solver: shardgym.Solver, cost: shardgym.CostModel, seed: int) -> list[float]:
    """Return what a solver's plans cost in ms; infinity where it finds none."""
    costs = []
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
    devices = max(task.num_devices for task in shardgym.load_suite(SUITE))
    solvers = {name: shardgym.make_solver(name) for name in HEURISTICS}
    for name, samples in (("maskable_ppo", 1), ("best of 16", 16)):
        solvers[name] = PolicySolver(model, options.env, samples, max_devices=devices, **PLAYED_WITH)
    table = {name: costs_of(solver, cost, options.seed) for name, solver in solvers.items()}
    rows = [[index, *costs] for index, costs in enumerate(zip(*table.values(), strict=True))]
    rows.append(["mean", *(sum(costs) / len(costs) for costs in table.values())])
    print(f"{SUITE}, cost '{options.cost}' in ms, {model.num_timesteps} steps on {options.env}")
    print(tabulate(rows, headers=("task", *table), floatfmt=".2f"))
    if options.out:
        options.out.write_text(json.dumps(table))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    env_ids = "ShardGym/ColumnWise-v0", "ShardGym/TableWise-v0"  # whose actions the network scores
    parser.add_argument("--env", default=env_ids[0], choices=env_ids)
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
