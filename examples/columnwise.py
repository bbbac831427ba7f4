"""What the examples of libraries share: problem, network, clock, and the comparison with lookahead. Not a script.

The problem is ColumnWise on tasks like those of dlrm4-v2, drawn from the train half of the table pool: timed
observations, dense rewards by the simulator, relative to the reference cost of each task. Every example trains for two
minutes of processor time, then solves dlrm4-v2 and is compared with `lookahead_columns`, which learns nothing.
"""

import argparse
import contextlib
import importlib.metadata
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical

import shardgym
from baselines.learning.policy_solver import PolicySolver
from baselines.ppo.set_network import SetNetwork
from shardgym.errors import NO_PLAN

ENV_ID = "ShardGym/ColumnWise-v0"
LOOKAHEAD = "lookahead_columns"
SUITE = "dlrm4-v2"
#: What observations depend on, in training and in solving.
PLAYED_WITH = {"order": "lookup", "observation": "timed"}
#: Names of the numbers and of the mask in flat observations.
FLAT = ("obs", "mask")
#: Episodes of which `PolicySolver` takes the best plan.
SAMPLES = 16


class Trained(NamedTuple):
    """What training ended with."""

    policy: Any  #: what `PolicySolver` takes
    steps: int  #: of the environments
    seconds: float  #: of processor time


class Clock:
    """Processor time of this process since the clock was made, and how much of it training may take."""

    def __init__(self, limit_s: float) -> None:
        self._started_s = time.process_time()
        self.limit_s = limit_s

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return time.process_time() - self._started_s

    @property
    def left(self) -> float:
        """Share of the limit that is left, 0 where it is over."""
        return max(0.0, 1 - self.seconds / self.limit_s)


def make_envs(num_envs: int, autoreset_mode: str, flat: tuple[str, str] | None = FLAT) -> VectorEnv:
    """Native environments that play tasks of the pool; observations are an array of numbers, and the mask beside it."""
    return gymnasium.make_vec(
        ENV_ID, num_envs=num_envs, autoreset_mode=autoreset_mode, suite=SUITE, pool="synthetic-2021", cost="simulator",
        reward="relative", flat=flat, **PLAYED_WITH,
    )  # fmt: skip


def sizes() -> dict[str, int]:
    """Return how many numbers of a flat observation each entry has, in their order."""
    space = make_envs(1, "SameStep", flat=None).single_observation_space
    assert isinstance(space, spaces.Dict)
    return {name: spaces.flatdim(part) for name, part in space.items() if name != "action_mask"}


class Network(nn.Module):
    """`SetNetwork` for flat observations: every device is scored by the same layers. Invalid actions never win."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self._sizes = dict(sizes)
        self.layers = SetNetwork()

    def forward(self, observations: Mapping[str, Tensor]) -> Tensor:
        """Return the scores of all actions, shape (N, actions)."""
        return self.scores_and_values(observations)[0]

    def scores_and_values(self, observations: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return scores, shape (N, actions), and expected returns, shape (N,)."""
        parts = observations["obs"].split(list(self._sizes.values()), dim=1)
        scores, values = self.layers(dict(zip(self._sizes, parts, strict=True)))
        return scores.masked_fill(observations["mask"] == 0, -1e9), values[:, 0]


class Rollout(NamedTuple):
    """Steps of all environments, one behind the other; tensors have the shape (N * steps, ...)."""

    observations: dict[str, Tensor]  #: by entry of flat observations
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    targets: Tensor  #: of values
    ratios: list[float]  #: costs of complete plans over their references, by episodes that ended


class Player:
    """Plays environments of `make_envs`, with "SameStep", by a network, and goes on where it stopped."""

    def __init__(self, envs: VectorEnv, network: Network, seed: int | None) -> None:
        self._envs = envs
        self._network = network
        self._seen = _tensors(envs.reset(seed=seed)[0])

    @torch.no_grad()
    def play(self, steps: int) -> Rollout:
        """Return so many steps of every environment."""
        kept: dict[str, list[Tensor]] = {name: [] for name in (*FLAT, "actions", "log_probs", "values")}
        rewards, going = torch.zeros(2, steps, self._envs.num_envs)
        ratios: list[float] = []
        for step in range(steps):
            scores, values = self._network.scores_and_values(self._seen)
            drawn = Categorical(logits=scores)
            actions = drawn.sample()
            of_step = *self._seen.values(), actions, drawn.log_prob(actions), values
            for name, tensor in zip(kept, of_step, strict=True):
                kept[name].append(tensor)
            seen, earned, ended, _, infos = self._envs.step(actions.numpy())
            self._seen = _tensors(seen)
            rewards[step] = torch.as_tensor(earned)
            going[step] = torch.as_tensor(~ended)
            if ended.any():
                ratios += [ratio for ratio in infos["final_info"]["ratio"][ended].tolist() if math.isfinite(ratio)]
        values = torch.stack([*kept.pop("values"), self._network.scores_and_values(self._seen)[1]])
        gains = advantages(rewards, going, values)
        flat = {name: torch.cat(tensors) for name, tensors in kept.items()}
        observations = {name: flat.pop(name) for name in FLAT}
        targets = (gains + values[:-1]).flatten()
        return Rollout(observations, **flat, advantages=gains.flatten(), targets=targets, ratios=ratios)


def advantages(rewards: Tensor, going: Tensor, values: Tensor, discount: float = 0.95) -> Tensor:
    """Return generalised advantages (Schulman et al., 2016) of returns without discount, shape (T, N).

    Args:
        rewards: of T steps in N environments, shape (T, N).
        going: 1 where the episode goes on after the step, 0 where it ends, shape (T, N).
        values: expected returns before each step, and after the last one, shape (T + 1, N).
        discount: lambda, of what later steps add.
    """
    found = torch.zeros_like(rewards)
    ahead = torch.zeros_like(rewards[0])
    for step in reversed(range(len(rewards))):
        ahead = rewards[step] + going[step] * (values[step + 1] + discount * ahead) - values[step]
        found[step] = ahead
    return found


def _tensors(observations: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(observations[name]) for name in FLAT}


def run(
    library: str, train: Callable[[float, int], Trained], arguments: Sequence[str] | None, *, flat: bool = True
) -> None:
    """Train, solve the suite, and print costs over those of lookahead, by one episode and by the best of many.

    `train` gets seconds of processor time and a seed; `flat` says whether its policy takes flat observations.
    """
    parser = argparse.ArgumentParser(description=f"ColumnWise by {library}.")
    parser.add_argument("--seconds", type=float, default=120.0, help="of processor time to train for (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write what was found to this JSON file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    np.random.seed(options.seed)
    trained = train(options.seconds, options.seed)
    print(
        f"{trained.steps} steps in {trained.seconds:.0f} s of processor time: {trained.steps / trained.seconds:,.0f}/s"
    )
    record: dict[str, Any] = {"library": library, "version": importlib.metadata.version(library)}
    record |= {"steps": trained.steps, "seconds": trained.seconds, "over_lookahead": {}}
    suite = shardgym.load_suite(SUITE)
    settings = PLAYED_WITH | {"max_devices": max(task.num_devices for task in suite)}
    for samples in (1, SAMPLES):
        solver = PolicySolver(trained.policy, ENV_ID, samples, flat=FLAT if flat else None, **settings)
        record["over_lookahead"][samples] = found = _over_lookahead(solver, suite)
        print(
            f"{SUITE}, best of {samples} episodes: {found['ratio']:.3f} of the cost of {LOOKAHEAD}, "
            f"{found['failed']} of {len(suite)} tasks failed"
        )
    if options.out:
        options.out.write_text(json.dumps(record))


def _over_lookahead(solver: PolicySolver, suite: shardgym.Suite) -> dict[str, Any]:
    """Return the geometric mean of costs over those of lookahead, and how many tasks failed, which are left out."""
    track = suite.track("simulator")
    oracle, judge = (shardgym.make_cost(choice.cost, **choice.settings) for choice in (track.oracle, track.judge))
    lookahead = shardgym.make_solver(LOOKAHEAD)
    logs = []
    for task in suite:
        with contextlib.suppress(NO_PLAN):
            plans = [solver.solve(task, oracle), lookahead.solve(task, oracle)]
            ms, lookahead_ms = (cost.total_ms for cost in judge.evaluate(task, plans))
            logs.append(math.log(ms / lookahead_ms))
    return {"ratio": float(np.exp(np.mean(logs))), "failed": len(suite) - len(logs)}
