"""DreamShard as a solver, and how it learns: collect costs, fit the cost network, improve the policy, again."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from baselines.dreamshard.policy import DreamShardNetwork, log_probabilities, place_by_score, play
from baselines.learning.cost_learner import CostLearner, descend
from baselines.learning.solver import LearnedSolver
from baselines.learning.tables import FeatureScale
from baselines.learning.training import Learner, Setup, torch_generator
from shardgym.costs.base import CostModel
from shardgym.plans.plan import ShardingPlan
from shardgym.records import CONFIG, Record, Whole
from shardgym.tasks.task import ShardingTask

Count = Annotated[Whole, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, config=CONFIG)
class DreamShardSettings(Record):
    """How DreamShard is trained. A round collects costs, fits the cost network, and updates the policy."""

    policy_updates: Count = 10  #: of a round; a step of training is one of them (published: 10)
    collected_tasks: Count = 128  #: tasks of a round that plans are priced for (published: 10)
    collected_plans: Count = 4  #: plans of each of them, drawn from the policy (published: 1)
    cost_updates: Count = 300  #: of a round (published: 300)
    cost_batch: Count = 64  #: plans of a cost update (published: 64)
    update_tasks: Count = 16  #: tasks of a policy update (published: 1)
    update_episodes: Annotated[Whole, Field(ge=2)] = 16  #: on each of them (published: 10)
    learning_rate: Rate = 3e-3  #: of the cost network's Adam; falls linearly to 0 (published: 5e-4)
    policy_learning_rate: Rate = 1e-2  #: likewise of the policy's (published: 5e-4)
    entropy: Annotated[float, Field(ge=0)] = 1e-3  #: weight of the entropy bonus (published: 0.001)


class DreamShard(LearnedSolver[DreamShardNetwork]):
    """DreamShard (Zha et al., NeurIPS 2022): whole tables, placed by a policy that sees predicted costs.

    A cost network predicts what devices and plans cost. Tables are placed one by one, in descending order of predicted
    cost, on the device that the policy network prefers among those with room. Both networks add up tables and take
    maxima over devices, so one policy serves other numbers of tables and devices. Solving asks no oracle.

    Where it differs from the published code (`training.py`, `env.py`, `models.py`):

    - Devices without room are masked when probabilities are computed for the gradient, too, not only when devices are
      drawn. A table that fits nowhere ends the episode, which counts as twice the worst of its task; there, training
      crashes.
    - Each network has an Adam of its own, so that momentum never moves the one that is not being trained.
    - Features are scaled by the tables of all training tasks and the amounts are logarithms; there, rows, size and
      pooling factor are scaled per task, and the dimension not at all.
    - Costs are relative: squared errors to the plan's cost, predicted costs in the policy to the mean of
      the task's tables.
    - An empty device is an empty set; there, it holds a table of zeros.
    - An update plays episodes on several tasks, and rewards are normalised within each.
    - More plans are priced, as the oracle is a model and not a measurement: see `DreamShardSettings`.

    See `LearnedSolver` for arguments, fitting and files.
    """

    name: ClassVar[str] = "dreamshard"
    settings_type: ClassVar[type[Record]] = DreamShardSettings
    default_steps: ClassVar[int] = 300
    settings: DreamShardSettings

    def build_network(self, scale: FeatureScale) -> DreamShardNetwork:
        """See `LearnedSolver`."""
        return DreamShardNetwork(scale)

    def make_learner(self, setup: Setup) -> Learner:
        """See `LearnedSolver`."""
        return DreamShardLearner(setup)

    def place(self, network: DreamShardNetwork, task: ShardingTask, cost: CostModel, seed: int) -> ShardingPlan:
        """Return the plan of one episode in which the highest score always wins; `cost` and `seed` are not used.

        Raises:
            NoFeasiblePlanError: a table fits nowhere any more.
        """
        del cost, seed
        return ShardingPlan.table_wise(task, place_by_score(network, task))


class DreamShardLearner(CostLearner):
    """Trains both networks."""

    network: DreamShardNetwork
    other = "policy"

    def _collect(self, rng: np.random.Generator) -> None:
        """Price plans of the current policy on random tasks and keep what they cost."""
        chosen = self._draw_tasks(rng, self._settings.collected_tasks)
        batch = self._batch.take(chosen)
        episodes = play(self.network, batch, self._settings.collected_plans, torch_generator(rng))
        self._price(chosen, episodes.table_devices(), episodes.complete)

    def _improve(self, rng: np.random.Generator) -> dict[str, float]:
        """Make one update of REINFORCE with an entropy bonus, on episodes in the estimated decision process."""
        batch = self._batch.take(self._draw_tasks(rng, self._settings.update_tasks))
        episodes = play(self.network, batch, self._settings.update_episodes, torch_generator(rng))
        rewards = self._rewards(episodes.predicted_ms, episodes.complete)
        advantage = (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std(dim=1, keepdim=True) + 1e-8)
        log_p = log_probabilities(self.network.policy, batch, episodes)
        placed = episodes.devices >= 0
        taken = log_p.gather(3, episodes.devices.clamp(min=0)[..., None])[..., 0] * placed
        finite = log_p.masked_fill(~episodes.allowed, 0.0)
        entropy = -(finite.exp() * finite * episodes.allowed).sum(dim=-1)
        mean_entropy = entropy.sum() / placed.sum()
        loss = -(taken.sum(dim=2) * advantage).mean() - self._settings.entropy * entropy.sum(dim=2).mean()
        descend(self.optimizers[1], loss)
        return {"policy_loss": float(loss.detach()), "entropy": float(mean_entropy.detach())}

    @staticmethod
    def _rewards(predicted_ms: Tensor, complete: Tensor) -> Tensor:
        """Return minus the predicted costs; an episode without a plan counts as twice the worst of its task."""
        worst = predicted_ms.masked_fill(~complete, 0.0).amax(dim=1, keepdim=True).clamp(min=0.0)
        return -torch.where(complete, predicted_ms, 2 * worst)
