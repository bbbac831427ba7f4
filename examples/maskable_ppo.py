"""MaskablePPO of sb3-contrib on 128 native environments, by `NativeVecEnv`.

    pip install 'shardgym[rl]'
    python examples/maskable_ppo.py                      # two minutes of processor time

The solver `ppo_columns` is the same policy with a training loop that survives a kill, and files of weights:
`shardgym fit ppo_columns --suite dlrm4-v2`.
"""

import sys
from collections.abc import Sequence

from columnwise import Clock, Trained, make_envs, run
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback

from baselines.ppo.policies import SetPolicy
from shardgym.envs.sb3 import NativeVecEnv

NUM_ENVS = 128


class UntilTheEnd(BaseCallback):
    """Stops when the clock of the training is over, and prints returns, in reference costs."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def _on_step(self) -> bool:
        return self._clock.left > 0

    def _on_rollout_end(self) -> None:
        earned = sum(episode["r"] for episode in self.model.ep_info_buffer) / max(1, len(self.model.ep_info_buffer))
        print(f"{self.num_timesteps:>8} steps: mean return {earned:.3f}", flush=True)


def train(seconds: float, seed: int) -> Trained:
    """Return a trained model. Episodes are short and end by themselves, so rewards are not discounted."""
    clock: Clock | None = None
    envs = NativeVecEnv(make_envs(NUM_ENVS, "SameStep", flat=None))
    model = MaskablePPO(
        SetPolicy, envs, n_steps=64, batch_size=2048, n_epochs=3, gamma=1.0,
        gae_lambda=0.95, ent_coef=0.0005, learning_rate=lambda _: 1e-3 * (1.0 if clock is None else clock.left),
        seed=seed, device="cpu",
    )  # fmt: skip
    clock = Clock(seconds)
    model.learn(sys.maxsize, callback=UntilTheEnd(clock))
    return Trained(model, model.num_timesteps, clock.seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, solve the suite, print."""
    run("sb3-contrib", train, arguments, flat=False)


if __name__ == "__main__":
    main()
