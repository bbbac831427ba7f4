"""PPO in one file, in the style of CleanRL, on 32 native environments; needs torch alone.

    python examples/cleanrl_ppo.py                       # about a minute on one core
    python examples/cleanrl_ppo.py --steps 100000

Trains on tasks from the train half of the table pool, then plays every task of dlrm4-v2 once. Invalid actions get no
probability: the network sees the mask behind the flat observation.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import shardgym
from shardgym.envs.wrappers import VectorFlatObservation, VectorRelativeReward

NUM_ENVS = 32
ROLLOUT = 64
EPOCHS = 4
MINIBATCHES = 8
CLIP = 0.2
LAMBDA = 0.95


def make_envs(num_envs: int, **arguments: object) -> VectorFlatObservation:
    """Flat float observations, rewards over the reference cost of the task."""
    settings = {"suite": "dlrm4-v2", "cost": "simulator", "observation": "timed", "order": "lookup"} | arguments
    envs = gymnasium.make_vec("ShardGym/ColumnWise-v0", num_envs=num_envs, autoreset_mode="SameStep", **settings)
    return VectorFlatObservation(VectorRelativeReward(envs))


def with_mask(observations: dict[str, np.ndarray]) -> Tensor:
    """Return numbers and mask as one array, shape (N, numbers + actions)."""
    return torch.as_tensor(np.concatenate([observations["obs"], observations["mask"]], axis=1, dtype=np.float32))


class Agent(nn.Module):
    """A small policy and a small value network."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.actions = actions
        self.policy = nn.Sequential(
            nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, actions)
        )
        self.value = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, observations: Tensor) -> tuple[Categorical, Tensor]:
        """Return distributions over valid actions, and values."""
        valid = observations[:, -self.actions :] > 0
        logits = self.policy(observations).masked_fill(~valid, -1e9)
        return Categorical(logits=logits), self.value(observations).squeeze(1)


def train(steps: int, seed: int) -> Agent:
    """Return a trained agent; prints the mean cost of finished episodes now and then."""
    torch.manual_seed(seed)
    envs = make_envs(NUM_ENVS, pool="synthetic-2021", reward="dense", relative_penalty=-5.0)
    observation = with_mask(envs.reset(seed=seed)[0])
    agent = Agent(observation.shape[1], envs.single_action_space.n)
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3, eps=1e-5)
    done = torch.zeros(NUM_ENVS)
    updates = max(1, steps // (NUM_ENVS * ROLLOUT))
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 - update / updates)
        seen = torch.zeros(ROLLOUT, *observation.shape)
        actions, log_probs, rewards, dones, values = torch.zeros(5, ROLLOUT, NUM_ENVS)
        costs = []
        for t in range(ROLLOUT):
            with torch.no_grad():
                distribution, values[t] = agent(observation)
                action = distribution.sample()
                log_probs[t] = distribution.log_prob(action)
            seen[t] = observation
            actions[t] = action
            dones[t] = done
            following, reward, terminated, _, infos = envs.step(action.numpy())
            observation = with_mask(following)
            done = torch.as_tensor(terminated, dtype=torch.float32)
            rewards[t] = torch.as_tensor(reward)
            if terminated.any():
                costs += infos["final_info"]["cost_ms"][terminated].tolist()
        advantages = torch.zeros_like(rewards)
        with torch.no_grad():
            value = agent(observation)[1]
            ahead = torch.zeros(NUM_ENVS)
            going = 1 - done
            for t in reversed(range(ROLLOUT)):
                ahead = rewards[t] + value * going - values[t] + LAMBDA * going * ahead
                advantages[t], value, going = ahead, values[t], 1 - dones[t]
        targets = (advantages + values).flatten()
        flat = seen.flatten(0, 1), actions.flatten(), log_probs.flatten(), advantages.flatten()
        for _ in range(EPOCHS):
            for rows in torch.randperm(NUM_ENVS * ROLLOUT).chunk(MINIBATCHES):
                batch, taken, old, gain = (values_of[rows] for values_of in flat)
                distribution, value = agent(batch)
                ratio = (distribution.log_prob(taken) - old).exp()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                policy_loss = -torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
                loss = policy_loss + 0.5 * (value - targets[rows]).pow(2).mean() - 0.001 * distribution.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        if update % max(1, updates // 10) == 0:
            placed = [cost for cost in costs if np.isfinite(cost)]
            print(
                f"{(update + 1) * NUM_ENVS * ROLLOUT:>8} steps: {len(placed)} of {len(costs)} plans, "
                f"{np.mean(placed):.2f} ms on average", flush=True,
            )  # fmt: skip
    envs.close()
    return agent


def evaluate(agent: Agent) -> list[float]:
    """Return the cost of the agent's plan for every task of dlrm4-v2 in ms; infinity where it finds none."""
    envs = make_envs(1, sampling="cycle")
    count = len(shardgym.load_suite("dlrm4-v2"))
    costs: list[float] = []
    observation, _ = envs.reset(seed=0)
    while len(costs) < count:
        with torch.no_grad():
            action = agent(with_mask(observation))[0].probs.argmax(dim=1)
        observation, _, terminated, _, infos = envs.step(action.numpy())
        if terminated[0]:
            costs.append(float(infos["final_info"]["cost_ms"][0]))
    return costs


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, play, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40_960)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    costs = evaluate(train(options.steps, options.seed))
    print(f"dlrm4-v2: {np.mean(costs):.2f} ms on average, {', '.join(f'{cost:.1f}' for cost in costs)}")


if __name__ == "__main__":
    main()
