"""DreamShard as a solver: its policy network, episodes in the estimated MDP, and its training."""

import math
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from baselines.learning.cost_learner import DEVICE_PHASES, CostLearner, CostNetwork
from baselines.learning.encoder import (
    LATENT,
    FeatureScale,
    TableEncoder,
    TaskBatch,
    encoded,
    forward,
    linear_of,
    linears_of,
    mlp,
    on_device,
    side_by_side,
    table_features,
)
from baselines.learning.solver import Count, LearnedSolver, Positive, Weight
from baselines.learning.training import Learner, descend, torch_generator
from shardgym.arrays import Floats
from shardgym.costs.base import CostModel
from shardgym.costs.ties import quantized
from shardgym.errors import NoFeasiblePlanError
from shardgym.plans.plan import ShardingPlan
from shardgym.records import CONFIG, Record, Whole
from shardgym.tasks.task import ShardingTask

#: Widths of the layers for the predicted costs of a device.
COST_WIDTHS = (len(DEVICE_PHASES), 64, 32)


class PolicyNetwork(nn.Module):
    """Scores devices for the next table (DreamShard, `models.py`).

    The policy represents a device by the sum of its tables' latents, from an encoder of its own, and a latent of its
    predicted costs. A linear layer scores both; softmax over devices gives probabilities. The next table is not an
    input, because tables come in descending order of cost.

    Predicted costs are divided by the mean cost of the task's tables. The published code takes them in ms, on tasks of
    similar cost; tasks of one suite differ by a factor of 20.
    """

    def __init__(self, scale: FeatureScale) -> None:
        super().__init__()
        self.encoder = TableEncoder(scale)
        self.costs = mlp(*COST_WIDTHS, end_with_relu=True)
        self.score = nn.Linear(LATENT + COST_WIDTHS[-1], 1)

    def forward(self, sums: Tensor, costs: Tensor) -> Tensor:
        """Score devices: sums of latents (..., D, 32) and costs (..., D, 3) become (..., D)."""
        scores: Tensor = self.score(torch.cat([sums, self.costs(costs)], dim=-1))
        return scores[..., 0]


class DreamShardNetwork(nn.Module):
    """The cost network and the policy network, which share no weights."""

    def __init__(self, scale: FeatureScale) -> None:
        super().__init__()
        self.cost = CostNetwork(scale)
        self.policy = PolicyNetwork(scale)


class Episodes(NamedTuple):
    """E episodes on each of B tasks, with tables in the order of placing."""

    order: Tensor  #: index of the table placed in each step, padding last, shape (B, T)
    devices: Tensor  #: device of this table, -1 for none, shape (B, E, T)
    allowed: Tensor  #: devices with room for it, shape (B, E, T, D)
    costs: Tensor  #: predicted costs of devices before the step, over `mean_table_ms`, shape (B, E, T, D, 3)
    complete: Tensor  #: whether all tables were placed, shape (B, E)
    predicted_ms: Tensor  #: the cost network's overall cost of the placed tables, shape (B, E)

    def table_devices(self) -> Tensor:
        """Return the device of every table in the tasks' own order, shape (B, E, T)."""
        index = self.order[:, None].expand_as(self.devices)
        return torch.empty_like(self.devices).scatter_(2, index, self.devices)


@torch.no_grad()
def play(
    network: DreamShardNetwork, batch: TaskBatch, episodes: int, generator: torch.Generator | None = None
) -> Episodes:
    """Play episodes on each task: every step places the next table on a device with room for it.

    Tables come in descending order of their predicted cost alone on a device. The policy samples devices, or takes the
    highest score if there is no generator. An episode ends when a table fits nowhere.
    """
    num_tables = batch.table_mask.shape[1]
    num_devices = batch.device_mask.shape[1]
    alone_ms = network.cost.table_ms(batch.features).masked_fill(~batch.table_mask, -math.inf)
    order = alone_ms.argsort(dim=1, descending=True, stable=True)
    features = batch.features.gather(1, order[..., None].expand_as(batch.features))
    cost_latents = network.cost.encoder(features)
    policy_latents = network.policy.encoder(features)
    sizes = batch.table_bytes.gather(1, order)
    exists = batch.table_mask.gather(1, order)
    unit = mean_table_ms(network.cost, batch)[:, None, None, None]

    shape = (len(batch), episodes, num_devices)
    cost_sums = torch.zeros(*shape, cost_latents.shape[-1])
    policy_sums = torch.zeros(*shape, policy_latents.shape[-1])
    room = batch.memory_bytes[:, None].repeat(1, episodes, 1)
    playing = torch.ones(shape[:2], dtype=torch.bool)
    devices = torch.full((*shape[:2], num_tables), -1)
    allowed = torch.zeros(*shape[:2], num_tables, num_devices, dtype=torch.bool)
    costs = torch.zeros(*shape[:2], num_tables, num_devices, len(DEVICE_PHASES))
    for t in range(num_tables):
        size = sizes[:, t, None, None]
        fits = (room >= size) & batch.device_mask[:, None] & exists[:, t, None, None] & playing[..., None]
        costs[:, :, t] = network.cost.device_ms(cost_sums) / unit
        scores = network.policy(policy_sums, costs[:, :, t]).masked_fill(~fits, -math.inf)
        if generator is not None:
            # The largest of scores plus Gumbel noise is a draw from their softmax.
            uniform = torch.rand(scores.shape, generator=generator).clamp(min=1e-20)
            scores = scores - torch.log(-torch.log(uniform))
        placed = fits.any(dim=-1)
        device = torch.where(placed, scores.argmax(dim=-1), -1)
        playing &= placed | ~exists[:, t, None]
        here = on_device(device, num_devices)[..., None]
        cost_sums += here * cost_latents[:, t, None, None]
        policy_sums += here * policy_latents[:, t, None, None]
        room -= here[..., 0].long() * size
        devices[:, :, t] = device
        allowed[:, :, t] = fits
    return Episodes(order, devices, allowed, costs, playing, network.cost.overall_ms(cost_sums, batch.device_mask))


def place_by_score(network: DreamShardNetwork, task: ShardingTask) -> list[int]:
    """Return the device of every table, as `play` without a generator places one task, updating one score per step."""
    features = table_features(task)
    cost_latents = encoded(network.cost.encoder, features)
    policy_latents = encoded(network.policy.encoder, features)
    heads = side_by_side(network.cost.heads, network.cost.unit_ms[:-1])
    costs = linears_of(network.policy.costs)
    of_both, bias = linear_of(network.policy.score)
    of_sums, of_costs = np.split(of_both[:, 0], [LATENT])

    alone_ms = quantized(forward(heads, cost_latents).sum(axis=1))
    unit = np.maximum(alone_ms.mean(), 1e-2 * network.cost.unit_ms.sum().numpy())  # as in `mean_table_ms`

    def score(cost_sum: Floats, policy_sum: Floats) -> float:
        seen = forward(costs, forward(heads, cost_sum) / unit, end_with_relu=True)
        return float(quantized(policy_sum @ of_sums + seen @ of_costs + bias[0]))

    cost_sums, policy_sums = np.zeros((2, task.num_devices, LATENT))
    room = list(task.capacity_bytes)
    scores = [score(cost_sums[0], policy_sums[0])] * task.num_devices
    devices = [-1] * task.num_tables
    for table in np.argsort(-alone_ms, kind="stable").tolist():
        size = task.table_bytes(task.tables[table])
        fitting = [device for device in range(task.num_devices) if room[device] >= size]
        if not fitting:
            raise NoFeasiblePlanError(
                f"dreamshard: table '{task.tables[table].name}' of {size} bytes fits on no device"
            )
        device = devices[table] = max(fitting, key=scores.__getitem__)
        room[device] -= size
        cost_sums[device] += cost_latents[table]
        policy_sums[device] += policy_latents[table]
        scores[device] = score(cost_sums[device], policy_sums[device])
    return devices


def mean_table_ms(cost: CostNetwork, batch: TaskBatch) -> Tensor:
    """Return the mean predicted time of each task's tables, each alone on a device, shape (B,)."""
    alone_ms = (cost.table_ms(batch.features) * batch.table_mask).sum(dim=1)
    # Untrained heads may predict times near 0, or negative ones.
    return torch.maximum(alone_ms / batch.table_mask.sum(dim=1), 1e-2 * cost.unit_ms.sum())


def log_probabilities(policy: PolicyNetwork, batch: TaskBatch, episodes: Episodes) -> Tensor:
    """Return the policy's log probabilities in every step, (B, E, T, D), with gradients; 0 where nothing was placed.

    Devices without room are masked here as in sampling; the published code masks them only in sampling.
    """
    order = episodes.order
    features = batch.features.gather(1, order[..., None].expand_as(batch.features))
    latents = policy.encoder(features)
    here = on_device(episodes.devices, batch.device_mask.shape[1])
    placed = here[..., None] * latents[:, None, :, None]
    # The devices before the step.
    sums = placed.cumsum(dim=2) - placed
    scores = policy(sums, episodes.costs)
    nothing = ~episodes.allowed.any(dim=-1, keepdim=True)
    masked = scores.masked_fill(~(episodes.allowed | nothing), -math.inf)
    return torch.log_softmax(masked, dim=-1).masked_fill(nothing, 0.0)


@dataclass(frozen=True, config=CONFIG)
class DreamShardSettings(Record):
    """Training settings of DreamShard. A round collects costs, fits the cost network, and updates the policy."""

    policy_updates: Count = 10  #: policy updates per round, each a training step (published: 10)
    collected_tasks: Count = 128  #: tasks per round to price plans for (published: 10)
    collected_plans: Count = 4  #: plans per task, drawn from the policy (published: 1)
    cost_updates: Count = 300  #: updates of the cost network per round (published: 300)
    cost_batch: Count = 64  #: plans per cost update (published: 64)
    update_tasks: Count = 16  #: tasks per policy update (published: 1)
    update_episodes: Annotated[Whole, Field(ge=2)] = 16  #: episodes per task of an update (published: 10)
    learning_rate: Positive = 3e-3  #: learning rate of the cost network; falls linearly to 0 (published: 5e-4)
    policy_learning_rate: Positive = 1e-2  #: learning rate of the policy; falls linearly to 0 (published: 5e-4)
    entropy: Weight = 1e-3  #: weight of the entropy bonus (published: 0.001)


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
        """Make one update of REINFORCE with an entropy bonus, on episodes in the estimated MDP."""
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


class DreamShard(LearnedSolver[DreamShardNetwork]):
    """DreamShard (Zha et al., NeurIPS 2022): a policy places whole tables by predicted costs.

    A cost network predicts the costs of devices and plans. DreamShard places tables in descending order of predicted
    cost, each on the device that the policy network prefers among those with room. Both networks sum over tables and
    take maxima over devices, so one policy handles any number of either. Solving does not query the oracle.

    Differences from the published code (`training.py`, `env.py`, `models.py`):

    - Devices without room are masked in the gradient, too. A table that fits nowhere ends the episode, which counts as
      twice the worst of its task; the published training crashes.
    - Each network has its own Adam optimiser.
    - Features are scaled by the tables of all training tasks and amounts are logarithms. The published code scales
      three features per task, and the dimension not at all.
    - Costs are relative: errors to the plan's cost, predicted costs in the policy to the mean of the task's tables.
    - An empty device is an empty set instead of a table of zeros.
    - An update plays episodes on several tasks, and rewards are normalised within each.
    - Training prices more plans, because the oracle is a model and not a measurement: see `DreamShardSettings`.

    See `LearnedSolver` for arguments, fitting and files.
    """

    name: ClassVar[str] = "dreamshard"
    settings_type: ClassVar[type[Record]] = DreamShardSettings
    network_type: ClassVar[type[Any]] = DreamShardNetwork
    learner_type: ClassVar[type[Learner]] = DreamShardLearner
    default_steps: ClassVar[int] = 300
    settings: DreamShardSettings

    def place(self, network: DreamShardNetwork, task: ShardingTask, cost: CostModel, seed: int) -> ShardingPlan:
        """Return the plan of the highest scores; `cost` and `seed` are ignored."""
        del cost, seed
        return ShardingPlan.table_wise(task, place_by_score(network, task))
