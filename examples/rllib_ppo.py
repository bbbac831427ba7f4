"""PPO of RLlib with action masks, on 128 native environments in one process.

    pip install 'ray[rllib]>=2.40'
    python examples/rllib_ppo.py                         # two minutes of processor time, and Ray's own start

RLlib's own runner keeps an episode for each environment, step by step, and its learner takes them apart again, which
takes several times as long as the steps of native environments. The two classes below stand where RLlib has places for
them: a runner that steps all environments at once, and a connector that hands the learner what came out of it. It was
run with Ray 2.60.0.
"""

from collections.abc import Sequence
from typing import Any

import ray
import torch
from columnwise import Clock, Network, Player, Rollout, Trained, make_envs, run, sizes
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

NUM_ENVS = 128

#: Steps of every environment between two updates.
ROLLOUT = 64


class Module(TorchRLModule, ValueFunctionAPI):
    """The network of all examples as a module of RLlib; invalid actions have no probability."""

    def setup(self) -> None:
        """Make the network."""
        self.network = Network(self.model_config["sizes"])

    def _forward(self, batch: dict[str, Any], **_: object) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.network(batch[Columns.OBS])}

    def _forward_train(self, batch: dict[str, Any], **_: object) -> dict[str, Any]:
        scores, values = self.network.scores_and_values(batch[Columns.OBS])
        return {Columns.ACTION_DIST_INPUTS: scores, Columns.EMBEDDINGS: values}

    def compute_values(self, batch: dict[str, Any], embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return expected returns, shape (N,), which training has already."""
        return self.network.scores_and_values(batch[Columns.OBS])[1] if embeddings is None else embeddings


class Steps:
    """What the runner returns in place of episodes: a rollout, which RLlib asks how long it is."""

    def __init__(self, rollout: Rollout) -> None:
        self.rollout = rollout

    def __len__(self) -> int:
        return len(self.rollout.actions)

    def env_steps(self) -> int:
        """Return the steps of all environments together."""
        return len(self)


class NativeRunner(SingleAgentEnvRunner):
    """Steps native environments, all at once."""

    def make_env(self) -> None:
        """Make the environments, which reset themselves in the step that ends an episode."""
        self.env = make_envs(self.config.num_envs_per_env_runner, "SameStep")
        self.num_envs = self.env.num_envs
        self._player: Player | None = None

    def sample(self, **_: object) -> list[Steps]:
        """Return the next steps of all environments."""
        if self._player is None:
            self._player = Player(self.env, self.module.network, self._seed)
        rollout = self._player.play(self.config.get_rollout_fragment_length(self.worker_index))
        self._increase_sampled_metrics(len(rollout.actions), len(rollout.ratios))
        if rollout.ratios:
            self.metrics.log_value("ratio_mean", sum(rollout.ratios) / len(rollout.ratios), window=10)
        return [Steps(rollout)]


class ToBatch(ConnectorV2):
    """Makes the batch that the learner of PPO takes."""

    def __call__(self, *, batch: dict[str, Any], episodes: list[Steps], **_: object) -> dict[str, Any]:
        """Return the columns of the batch; advantages are standardised."""
        [steps] = episodes
        rollout = steps.rollout
        gains = rollout.advantages
        columns = {
            Columns.OBS: rollout.observations,
            Columns.ACTIONS: rollout.actions,
            Columns.ACTION_LOGP: rollout.log_probs,
            Columns.ACTION_DIST_INPUTS: rollout.scores,
            Columns.ADVANTAGES: (gains - gains.mean()) / (gains.std() + 1e-8),
            Columns.VALUE_TARGETS: rollout.targets,
        }
        return batch | {DEFAULT_MODULE_ID: columns}


def train(seconds: float, seed: int) -> Trained:
    """Return a trained module; prints what complete plans cost over their references."""
    # A Ray of its own: without an address Ray joins any cluster that it finds on this machine, and ends with it.
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    envs = make_envs(1, "SameStep")
    config = (
        PPOConfig()
        .environment(
            "ColumnWise", observation_space=envs.single_observation_space, action_space=envs.single_action_space
        )
        .env_runners(
            env_runner_cls=NativeRunner, num_env_runners=0, num_envs_per_env_runner=NUM_ENVS,
            rollout_fragment_length=ROLLOUT,
        )
        .training(
            lr=1e-3, gamma=1.0, entropy_coeff=0.0005, clip_param=0.2, use_kl_loss=False, vf_loss_coeff=0.5,
            grad_clip=0.5, train_batch_size_per_learner=NUM_ENVS * ROLLOUT, minibatch_size=2048, num_epochs=3,
        )
        .learners(learner_connector=lambda *_: ToBatch(), add_default_connectors_to_learner_pipeline=False)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=Module, model_config={"sizes": sizes()}))
        .debugging(seed=seed)
    )  # fmt: skip
    algorithm = config.build_algo()
    clock = Clock(seconds)
    steps = 0
    while clock.left:
        found = algorithm.train()["env_runners"]
        steps += NUM_ENVS * ROLLOUT
        print(
            f"{steps:>8} steps: plans cost {found.get('ratio_mean', float('nan')):.3f} of their references", flush=True
        )
    trained = Trained(algorithm.get_module(), steps, clock.seconds)
    algorithm.stop()
    ray.shutdown()
    return trained


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, solve the suite, print."""
    run("ray", train, arguments)


if __name__ == "__main__":
    main()
