"""PPO of TorchRL with a masked categorical policy, on 128 native environments.

    pip install torchrl
    python examples/torchrl_ppo.py                       # two minutes of processor time

TorchRL resets environments by itself, so they are made with `autoreset_mode="Disabled"`. Run with TorchRL 0.14.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from columnwise import Clock, Network, Trained, make_envs, run, sizes
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper
from torchrl.modules import MaskedCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

NUM_ENVS = 128
#: Steps of all environments between two updates.
FRAMES = 8192
EPOCHS = 3
MINIBATCH = 2048


class Valid(nn.Module):
    """Scores of actions, and the mask as booleans."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and valid actions, each of shape (N, actions)."""
        scores, _ = _apply(self.network, obs, mask)
        # After the end nothing is valid, and nothing is chosen; a distribution needs some action all the same.
        return scores, (mask > 0) | ~(mask > 0).any(dim=-1, keepdim=True)


class Value(nn.Module):
    """Expected returns by the same network."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Tensor, mask: Tensor) -> Tensor:
        """Return expected returns, shape (N, 1)."""
        return _apply(self.network, obs, mask)[1][..., None]


def _apply(network: Network, obs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Call the network with any number of leading dimensions."""
    leading = obs.shape[:-1]
    scores, values = network.scores_and_values({"obs": obs.flatten(0, -2), "mask": mask.flatten(0, -2)})
    return scores.reshape(*leading, -1), values.reshape(leading)


def train(seconds: float, seed: int) -> Trained:
    """Return a trained actor; prints what episodes earn, in reference costs."""
    envs = make_envs(NUM_ENVS, "Disabled")
    env = GymWrapper(envs, categorical_action_encoding=True)
    env.set_seed(seed)
    network = Network(sizes())
    policy = ProbabilisticActor(
        TensorDictModule(Valid(network), in_keys=["obs", "mask"], out_keys=["logits", "valid"]),
        in_keys={"logits": "logits", "mask": "valid"}, distribution_class=MaskedCategorical, return_log_prob=True,
    )  # fmt: skip
    value = ValueOperator(Value(network), in_keys=["obs", "mask"])
    loss = ClipPPOLoss(
        policy, value, clip_epsilon=0.2, entropy_coeff=0.0005, critic_coeff=0.5, normalize_advantage=True
    )
    advantage = GAE(gamma=1.0, lmbda=0.95, value_network=value)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    collector = Collector(env, policy, frames_per_batch=FRAMES, total_frames=-1, auto_register_policy_transforms=True)
    clock = Clock(seconds)
    steps = 0
    for batch in collector:
        with torch.no_grad():
            advantage(batch)
        flat = batch.reshape(-1)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(flat)).split(MINIBATCH):
                losses = loss(flat[rows])
                optimizer.zero_grad()
                sum(losses[name] for name in ("loss_objective", "loss_critic", "loss_entropy")).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
        steps += FRAMES
        ended = batch["next", "done"].sum().item()
        earned = batch["next", "reward"].sum().item()
        print(f"{steps:>8} steps: episodes earn {earned / max(1, ended):.3f} reference costs", flush=True)
        if not clock.left:
            break
    seconds_used = clock.seconds
    collector.shutdown()
    return Trained(policy, steps, seconds_used)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, solve the suite, print."""
    run("torchrl", train, arguments)


if __name__ == "__main__":
    main()
