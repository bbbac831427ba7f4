"""AutoShard as a solver, and its training: actors play episodes, and a learner updates their network."""

from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from baselines.autoshard.policy import AutoShardNetwork, Episodes, place_by_score, play
from baselines.learning.encoder import TaskBatch, on_device, sum_per_device
from baselines.learning.solver import Count, LearnedSolver, Positive, Weight
from baselines.learning.training import Learner, Setup, descend, torch_generator
from baselines.local_search import draw_placements
from shardgym.arrays import Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.plan_cost import COMPUTE_COLUMNS, PlanCost
from shardgym.envs.vector_env import TableWiseVectorEnv
from shardgym.errors import InputError
from shardgym.plans.plan import ShardingPlan
from shardgym.records import CONFIG, Record, Whole
from shardgym.tasks.task import ShardingTask

#: Reward of an episode in which a table fits nowhere; with a plan it is more than 0.
STUCK = -1.0


@dataclass(frozen=True, config=CONFIG)
class AutoShardSettings(Record):
    """Training settings of AutoShard. In each step, actors play episodes, then the learner makes several updates."""

    updates: Count = 4  #: updates per step; the acting policy is as old as the first of them
    tasks: Count = 4  #: tasks per update
    episodes: Count = 4  #: episodes per task of an update (published: an update has 8 sequences of 100 steps)
    random_plans: Count = 10  #: plans per training task, priced before the first step for the cost layers
    cost_warm_up: Whole = 600  #: updates of the cost layers before the first step
    cost_updates: Count = 1  #: updates of the cost layers per update of the policy (published: 20)
    cost_batch: Count = 64  #: plans per update of the cost layers (published: 512 devices)
    cost_buffer: Count = 10_000  #: number of latest plans to draw these from (published: 5,000 devices)
    learning_rate: Positive = 1e-3  #: learning rate of Adam; falls linearly to 0
    entropy: Weight = 1e-3  #: weight of the entropy bonus
    value: Weight = 0.5  #: weight of the value's squared error
    clip_gradient: Positive = 40.0  #: maximum norm of the gradient


class AutoShardLearner(Learner):
    """Trains the network; `replay` keeps the latest priced plans."""

    network: AutoShardNetwork

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        settings: AutoShardSettings = setup.settings
        self._batch = TaskBatch.of(setup.tasks)
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr=settings.learning_rate)
        self.optimizers = (self._optimizer,)
        num_envs = settings.updates * settings.tasks * settings.episodes
        self._envs = TableWiseVectorEnv(num_envs, tasks=setup.tasks, cost=setup.oracle.cost, order="task")
        self._envs.reset(seed=0)

    def step(self, number: int, rng: np.random.Generator) -> dict[str, float]:
        """Let the actors play, then update the network several times; the first step first fits the cost layers."""
        if number == 0:
            self._price_random_plans(rng)
            for _ in range(self._settings.cost_warm_up):
                descend(self._optimizer, self._cost_loss(rng), self._settings.clip_gradient)
        self._optimizer.param_groups[0]["lr"] = self._settings.learning_rate * (1 - number / self._steps)
        settings = self._settings
        chosen = torch.from_numpy(rng.integers(len(self._tasks), size=settings.updates * settings.tasks))
        batch = self._batch.take(chosen)
        played = play(self.network, self._envs, [self._tasks[n] for n in chosen.tolist()], batch, torch_generator(rng))
        complete = torch.tensor([cost is not None for cost in played.costs])
        found = [self._device_ms(cost.per_device[None]) for cost in played.costs if cost is not None]
        self.oracle.queries += len(found)
        if found:
            self._keep(chosen[played.task][complete], played.table_devices()[complete], torch.cat(found))
        per_update = settings.tasks * settings.episodes
        figures = [
            self._update(played.part(slice(first, first + per_update)), batch, rng)
            for first in range(0, len(played.costs), per_update)
        ]
        return {name: float(np.mean([found[name] for found in figures])) for name in figures[0]}

    def _price_random_plans(self, rng: np.random.Generator) -> None:
        """Price random plans of all tasks, and set the unit of the cost layers."""
        for number, task in enumerate(self._tasks):
            devices = random_plans(task, self._settings.random_plans, rng)
            if len(devices):
                priced = self.oracle.price(task, devices)
                feasible = np.isfinite(priced).all(axis=(1, 2))
                kept = torch.from_numpy(devices[feasible])
                self._keep(torch.full((len(kept),), number), kept, self._device_ms(priced[feasible]))
        if not self.replay or not len(self.replay["ms"]):
            raise InputError("tasks: the oracle could price no random plan of any task, so there is nothing to learn")
        exists = self._batch.device_mask[self.replay["task"]]
        self.network.unit_ms.copy_(self.replay["ms"][exists].mean().clamp(min=1e-6))

    def _device_ms(self, per_device: Floats) -> Tensor:
        """Return the targets of the cost layers, 0 for missing devices, (n, d, 4) to (n, D)."""
        ms = torch.zeros(len(per_device), self._batch.device_mask.shape[1])
        ms[:, : per_device.shape[1]] = torch.from_numpy(per_device[:, :, COMPUTE_COLUMNS].sum(axis=2))
        return ms

    def _keep(self, tasks: Tensor, devices: Tensor, ms: Tensor) -> None:
        """Add plans to `replay`, of which the latest are kept."""
        padded = torch.full((len(devices), self._batch.table_mask.shape[1]), -1)
        padded[:, : devices.shape[1]] = devices
        for name, values in {"task": tasks, "devices": padded, "ms": ms}.items():
            kept = torch.cat([self.replay.get(name, values[:0]), values])
            self.replay[name] = kept[-self._settings.cost_buffer :]

    def _cost_loss(self, rng: np.random.Generator) -> Tensor:
        """Return the mean squared error of devices' costs, relative to the mean of their plan."""
        index = torch.from_numpy(rng.integers(len(self.replay["task"]), size=self._settings.cost_batch))
        batch = self._batch.take(self.replay["task"][index])
        devices = self.replay["devices"][index]
        ms = self.replay["ms"][index]
        num_devices = batch.device_mask.shape[1]
        sums = sum_per_device(self.network.encoder(batch.features), devices[:, None], num_devices)[:, 0]
        holds_tables = on_device(devices, num_devices).any(dim=1)
        mean_ms = ms.sum(dim=1, keepdim=True) / batch.device_mask.sum(dim=1, keepdim=True)
        errors = (self.network.device_ms(sums) - ms) / mean_ms
        return (errors.square() * holds_tables).sum() / holds_tables.sum()

    def _update(self, played: Episodes, batch: TaskBatch, rng: np.random.Generator) -> dict[str, float]:
        settings = self._settings
        numbers = played.task[:: settings.episodes]
        tasks = batch.take(numbers)
        row_of = played.task - numbers[0]
        tables = self.network.read(tasks, played.order[:: settings.episodes])
        here = on_device(played.devices, tasks.device_mask.shape[1])
        placed = here[..., None] * tables.latents[row_of][:, :, None]
        # The devices before the step.
        actions = self.network.actions(placed.cumsum(dim=1) - placed, played.loads)
        states = tables.states[row_of]
        happened = played.devices >= 0
        allowed = played.allowed | ~happened[..., None]
        log_all = self.network.scores(states, actions).masked_fill(~allowed, -torch.inf).log_softmax(dim=2)
        log_p = log_all.gather(2, played.devices.clamp(min=0)[..., None])[..., 0]
        values = self.network.values(states, actions, tasks.device_mask[row_of][:, None])
        rewards, discounts = self._rewards(played)
        traced = vtrace(
            ((log_p - played.log_p) * happened).detach().T,
            rewards.T,
            discounts.T,
            torch.cat([values.detach().T, torch.zeros(1, len(values))]),
        )
        count = happened.sum()
        policy_loss = -(log_p * traced.advantages.T * happened).sum() / count
        value_loss = 0.5 * ((values - traced.targets.T).square() * happened).sum() / count
        finite = log_all.masked_fill(~played.allowed, 0.0)
        entropy = -(finite.exp() * finite * played.allowed).sum() / count
        cost_loss = torch.stack([self._cost_loss(rng) for _ in range(settings.cost_updates)]).mean()
        loss = policy_loss + settings.value * value_loss - settings.entropy * entropy + cost_loss
        descend(self._optimizer, loss, settings.clip_gradient)
        figures = {
            "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "cost_loss": cost_loss,
            "reward": rewards.sum(dim=1).mean(),
        }  # fmt: skip
        return {name: float(value.detach()) for name, value in figures.items()}

    def _rewards(self, played: Episodes) -> tuple[Tensor, Tensor]:
        """Return rewards, which are earned in the last step of an episode, and discounts, 0 there; shapes (N, T)."""
        happened = played.devices >= 0
        last = happened.sum(dim=1, keepdim=True) - 1
        earned = [STUCK if cost is None else balance(cost) for cost in played.costs]
        rewards = torch.zeros(happened.shape).scatter_(1, last, torch.tensor(earned)[:, None])
        return rewards, happened.float().scatter_(1, last, 0.0)


def balance(cost: PlanCost) -> float:
    """Return the reward of a plan: compute of the least loaded device over that of the most loaded one."""
    compute_ms = cost.per_device[:, COMPUTE_COLUMNS].sum(axis=1)
    return float(compute_ms.min() / compute_ms.max())


def random_plans(task: ShardingTask, count: int, rng: np.random.Generator) -> Ints:
    """Draw plans that respect memory, shape (n, T), and leave out those that get stuck.

    Every device first draws a random share. Some then get few tables, which teaches the network single tables' costs.
    """
    preference = np.log(rng.dirichlet(np.ones(task.num_devices), size=count) + 1e-9)
    # The largest of log probabilities plus Gumbel noise is a draw.
    return draw_placements(task, count, lambda shape: preference + rng.gumbel(size=shape))


class VTrace(NamedTuple):
    """V-trace targets and advantages of every step."""

    targets: Tensor  #: targets of the values, v_s in the paper, shape (T, N)
    #: Advantages of the actions, times the clipped ratio rho_s: weights of the policy gradient, shape (T, N).
    advantages: Tensor


@torch.no_grad()
def vtrace(log_ratios: Tensor, rewards: Tensor, discounts: Tensor, values: Tensor) -> VTrace:
    """Return V-trace targets and advantages of N sequences of T steps (equation 1 and section 4.2 of the paper).

    With equal policies (log ratios of 0), the targets are discounted returns, bootstrapped with the value after the
    last step unless that step ends its episode. Arguments have shape (T, N), values (T + 1, N). A step's discount
    applies to what follows it, and is 0 where the episode ends. No gradient flows through the results.
    """
    rho = log_ratios.exp().clamp(max=1.0)
    carried = discounts * rho
    differences = rho * (rewards + discounts * values[1:] - values[:-1])
    targets = values.clone()
    for step in reversed(range(len(rewards))):
        targets[step] += differences[step] + carried[step] * (targets[step + 1] - values[step + 1])
    advantages = rho * (rewards + discounts * targets[1:] - values[:-1])
    return VTrace(targets[:-1], advantages)


class AutoShard(LearnedSolver[AutoShardNetwork]):
    """AutoShard (Zha et al., KDD 2022): a recurrent policy places whole tables to balance compute.

    AutoShard places tables in descending order of predicted cost, each on the device with the highest score among those
    with room. The policy reads the sequence of tables through an LSTM, and sees the tables, predicted cost and bytes of
    each device. It handles any number of tables and devices. Solving does not query the oracle.

    Training follows IMPALA (arXiv:1802.01561). Actors, the rows of a native vector environment, play the episodes of
    several updates, which a learner then makes. `vtrace` corrects for the policy's lag, clipping both ratios at 1.

    Differences from the published code (`bench.py`, `training.py`, `run_autoshard.py`):

    - Devices without room are masked, and an episode earns -1 when a table fits nowhere. The published code gives a
      negative reward to a plan that overflows memory, and stops when the trained policy makes one.
    - The value function also sees the devices, not only the tables.
    - The policy's inputs are relative: costs to the task's even share, bytes to the device's memory. So are errors of
      the cost layers, to the mean of their plan.
    - Amounts in the table features are logarithms, scaled by the tables of all training tasks.
    - The cost layers start from random plans and have one update with each of the policy's instead of twenty.
    - Sequences are whole episodes instead of 100 steps, and an update has several episodes on each of some tasks.

    See `LearnedSolver` for arguments, fitting and files, and `AutoShardSettings` for the settings.
    """

    name: ClassVar[str] = "autoshard"
    settings_type: ClassVar[type[Record]] = AutoShardSettings
    network_type: ClassVar[type[Any]] = AutoShardNetwork
    learner_type: ClassVar[type[Learner]] = AutoShardLearner
    default_steps: ClassVar[int] = 200
    settings: AutoShardSettings

    def place(self, network: AutoShardNetwork, task: ShardingTask, cost: CostModel, seed: int) -> ShardingPlan:
        """Return the plan of the highest scores; `cost` and `seed` are ignored."""
        del cost, seed
        return ShardingPlan.table_wise(task, place_by_score(network, task))
