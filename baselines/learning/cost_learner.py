"""CostLearner: what learners with DreamShard's cost network share: rounds, priced plans, and fitting it to them."""

from __future__ import annotations

import abc
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from baselines.learning.cost_network import DEVICE_COLUMNS, CostNetwork, CostTargets, cost_losses
from baselines.learning.encoder import sum_per_device
from baselines.learning.tables import TaskBatch
from baselines.learning.training import Learner, Setup
from shardgym.errors import NoFeasiblePlanError


class CostLearner(Learner):
    """Trains DreamShard's cost network and a network that uses it. Priced plans of all rounds are kept in `replay`.

    The first step of a round has plans priced (`_collect`) and fits the cost network to them; every step improves the
    other network (`_improve`). Learning rates of both fall linearly to 0.
    """

    #: Names the other network, and its settings: NAME_updates, which are steps of a round, and NAME_learning_rate.
    other: ClassVar[str]

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        network, settings = setup.network, setup.settings
        self._batch = TaskBatch.of(setup.tasks)
        self._cost: CostNetwork = network.cost
        self._round_steps: int = getattr(settings, f"{self.other}_updates")
        self._learning_rates = settings.learning_rate, getattr(settings, f"{self.other}_learning_rate")
        self.optimizers = tuple(
            torch.optim.Adam(part.parameters(), lr=rate)
            for part, rate in zip((network.cost, getattr(network, self.other)), self._learning_rates, strict=True)
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
        for _ in range(self._settings.cost_updates):
            index = torch.from_numpy(rng.integers(len(self.replay["task"]), size=self._settings.cost_batch))
            batch = self._batch.take(self.replay["task"][index])
            ms = self.replay["ms"][index]
            targets = CostTargets(ms[..., DEVICE_COLUMNS], ms.sum(dim=-1).amax(dim=-1), batch.device_mask)
            latents = self._cost.encoder(batch.features)
            devices = self.replay["devices"][index]
            sums = sum_per_device(latents, devices[:, None], batch.device_mask.shape[1])[:, 0]
            losses = cost_losses(self._cost, sums, targets)
            descend(self.optimizers[0], torch.stack(list(losses.values())).sum())
            for name, loss in losses.items():
                total[name] = total.get(name, 0.0) + float(loss.detach()) / self._settings.cost_updates
        return {f"loss_{name}": value for name, value in total.items()}

    def _draw_tasks(self, rng: np.random.Generator, count: int) -> Tensor:
        return torch.from_numpy(rng.integers(len(self._tasks), size=count))


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one step against the gradient of a loss."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
