"""PPO written out in plain PyTorch, in the style of CleanRL, on 128 native environments; needs torch alone.

python examples/cleanrl_ppo.py                       # two minutes of processor time
"""

from collections.abc import Sequence

import torch
from columnwise import Clock, Network, Player, Trained, make_envs, run, sizes
from torch import nn
from torch.distributions import Categorical

NUM_ENVS = 128
#: Steps of every environment between two updates.
ROLLOUT = 64
EPOCHS = 3
MINIBATCH = 2048
CLIP = 0.2
LEARNING_RATE = 1e-3


def train(seconds: float, seed: int) -> Trained:
    """Return a trained network; prints what complete plans cost over their references."""
    envs = make_envs(NUM_ENVS, "SameStep")
    network = Network(sizes())
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, eps=1e-5)
    player = Player(envs, network, seed)
    clock = Clock(seconds)
    steps = 0
    while clock.left:
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * clock.left
        rollout = player.play(ROLLOUT)
        gains = (rollout.advantages - rollout.advantages.mean()) / (rollout.advantages.std() + 1e-8)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(gains)).split(MINIBATCH):
                scores, values = network.scores_and_values({n: t[rows] for n, t in rollout.observations.items()})
                distribution = Categorical(logits=scores)
                ratio = (distribution.log_prob(rollout.actions[rows]) - rollout.log_probs[rows]).exp()
                clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
                policy_loss = -torch.min(ratio * gains[rows], clipped * gains[rows]).mean()
                value_loss = (values - rollout.targets[rows]).pow(2).mean()
                loss = policy_loss + 0.5 * value_loss - 0.0005 * distribution.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), 0.5)
                optimizer.step()
        steps += NUM_ENVS * ROLLOUT
        ratio_mean = sum(rollout.ratios) / max(1, len(rollout.ratios))
        print(f"{steps:>8} steps: plans cost {ratio_mean:.3f} of their references", flush=True)
    envs.close()
    return Trained(network, steps, clock.seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, solve the suite, print."""
    run("torch", train, arguments)


if __name__ == "__main__":
    main()
