"""CostLearner: what learners with DreamShard's cost network share: rounds, priced plans, and fitting it to them."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from baselines.learning.cost_network import DEVICE_COLUMNS, CostNetwork, CostTargets, cost_losses
from baselines.learning.encoder import sum_per_device
from baselines.learning.oracle import TrainingOracle
from baselines.learning.tables import TaskBatch
from baselines.learning.training import Learner
from shardgym.errors import NoFeasiblePlanError
from shardgym.tasks.task import ShardingTask


class CostLearner(Learner):
    """Trains DreamShard's cost network and a network that uses it. Priced plans of all rounds are kept in `replay`.

    The first step of a round has plans priced (`_collect`) and fits the cost network to them; every step improves the
    other network (`_improve`).

    Args:
        network: both networks.
        cost: the cost network.
        other: the other one.
        tasks: to train on.
        oracle: prices plans.
        steps: of training in all.
        round_steps: steps of a round.
        cost_updates: of one fit of the cost network.
        cost_batch: plans of one such update.
        learning_rates: of Adam, for the cost network and for the other one; both fall linearly to 0.
    """

    def __init__(
        self, network: nn.Module, cost: CostNetwork, other: nn.Module, tasks: Sequence[ShardingTask],
        oracle: TrainingOracle, steps: int, *, round_steps: int, cost_updates: int, cost_batch: int,
        learning_rates: tuple[float, float],
    ) -> None:  # fmt: skip
        self.network = network
        self.oracle = oracle
        self.replay: dict[str, Tensor] = {}
        self._tasks = tasks
        self._batch = TaskBatch.of(tasks)
        self._cost = cost
        self._steps = steps
        self._round_steps = round_steps
        self._cost_updates = cost_updates
        self._cost_batch = cost_batch
        self._learning_rates = learning_rates
        self.optimizers = tuple(
            torch.optim.Adam(part.parameters(), lr=rate)
            for part, rate in zip((cost, other), learning_rates, strict=True)
        )

    def step(self, number: int, rng: np.random.Generator) -> dict[str, float]:
        """Improve the other network once; the first step of a round collects costs and fits the cost network before."""
        for optimizer, rate in zip(self.optimizers, self._learning_rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * (1 - number / self._steps)
        figures: dict[str, float] = {}
        if number % self._round_steps == 0:
            self._collect(rng)
            figures |= self._fit_costs(rng)
        return figures | self._improve(rng)

    @abc.abstractmethod
    def _collect(self, rng: np.random.Generator) -> None:
        """Have plans of random tasks priced, see `_price`."""

    @abc.abstractmethod
    def _improve(self, rng: np.random.Generator) -> dict[str, float]:
        """Update the other network once, by the last of `optimizers`; return figures for the learning curve."""

    def _price(self, chosen: Tensor, devices: Tensor, complete: Tensor) -> None:
        """Have plans priced, and keep those that are feasible."""
        tasks: list[int] = []
        kept: list[Tensor] = []
        times: list[Tensor] = []
        for row, number in enumerate(chosen.tolist()):
            plans = devices[row, complete[row]]
            if not len(plans):
                continue
            task = self._tasks[number]
            priced = self.oracle.price(task, plans[:, : task.num_tables].numpy())
            padded = torch.zeros(len(plans), self._batch.device_mask.shape[1], priced.shape[-1])
            padded[:, : task.num_devices] = torch.from_numpy(priced)
            feasible = torch.isfinite(padded).all(dim=-1).all(dim=-1)
            tasks += [number] * int(feasible.sum())
            kept.append(plans[feasible])
            times.append(padded[feasible])
        if not tasks and not self.replay:
            raise NoFeasiblePlanError(
                f"whole tables fit memory in none of {complete.numel()} episodes on {len(chosen)} training tasks: "
                "give tasks with more memory or smaller tables"
            )
        if not tasks:
            return
        new = {"task": torch.tensor(tasks), "devices": torch.cat(kept), "ms": torch.cat(times)}
        first = not self.replay
        self.replay = {name: torch.cat([self.replay.get(name, value[:0]), value]) for name, value in new.items()}
        if first:
            self._set_units()

    def _set_units(self) -> None:
        """Set what the cost network's heads count in: the means of the first round."""
        ms = self.replay["ms"]
        exists = self._batch.device_mask[self.replay["task"]]
        units = [*ms[exists][:, DEVICE_COLUMNS].mean(dim=0), ms.sum(dim=-1).amax(dim=-1).mean()]
        self._cost.unit_ms.copy_(torch.stack(units).clamp(min=1e-6))

    def _fit_costs(self, rng: np.random.Generator) -> dict[str, float]:
        """Fit the cost network to random plans of all rounds; return the mean losses."""
        total: dict[str, float] = {}
        for _ in range(self._cost_updates):
            index = torch.from_numpy(rng.integers(len(self.replay["task"]), size=self._cost_batch))
            batch = self._batch.take(self.replay["task"][index])
            ms = self.replay["ms"][index]
            targets = CostTargets(ms[..., DEVICE_COLUMNS], ms.sum(dim=-1).amax(dim=-1), batch.device_mask)
            latents = self._cost.encoder(batch.features)
            devices = self.replay["devices"][index]
            sums = sum_per_device(latents, devices[:, None], batch.device_mask.shape[1])[:, 0]
            losses = cost_losses(self._cost, sums, targets)
            descend(self.optimizers[0], torch.stack(list(losses.values())).sum())
            for name, loss in losses.items():
                total[name] = total.get(name, 0.0) + float(loss.detach()) / self._cost_updates
        return {f"loss_{name}": value for name, value in total.items()}

    def _draw_tasks(self, rng: np.random.Generator, count: int) -> Tensor:
        return torch.from_numpy(rng.integers(len(self._tasks), size=count))


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one step against the gradient of a loss."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
