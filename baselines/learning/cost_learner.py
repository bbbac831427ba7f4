"""DreamShard's cost network, and CostLearner, which fits it to priced plans and trains a network that uses it."""

import abc
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from baselines.learning.encoder import LATENT, FeatureScale, TableEncoder, TaskBatch, mlp, sum_per_device
from baselines.learning.training import Learner, Setup, descend
from shardgym.costs.plan_cost import PHASES
from shardgym.errors import NoFeasiblePlanError

#: What the three heads predict of each device. Forward communication, which contains waiting for slower devices, is
#: left to the overall head (`multi_gpu_bench.py`).
DEVICE_PHASES = ("forward_compute", "backward_compute", "backward_comm")

#: Columns of `PlanCost.per_device` that these are.
DEVICE_COLUMNS = [PHASES.index(phase) for phase in DEVICE_PHASES]

HEAD_WIDTHS = (LATENT, 64, 1)


class CostNetwork(nn.Module):
    """Predicts times of devices and plans (DreamShard, `models.py`), in ms.

    The network encodes tables and sums them per device. Three heads map these sums to forward compute, backward compute
    and backward communication of the device. The overall head takes their elementwise maximum over devices.

    Unlike the published code, which adds a table of zeros, an empty device is an empty sum, because features are
    centred. The heads' outputs are in units of `unit_ms`, the mean of the training data, to suit any suite.
    """

    unit_ms: Tensor

    def __init__(self, scale: FeatureScale) -> None:
        super().__init__()
        self.encoder = TableEncoder(scale)
        self.heads = nn.ModuleList([mlp(*HEAD_WIDTHS) for _ in DEVICE_PHASES])
        self.overall = mlp(*HEAD_WIDTHS)
        # Of the three heads and the overall one.
        self.register_buffer("unit_ms", torch.ones(len(DEVICE_PHASES) + 1))

    def device_ms(self, sums: Tensor) -> Tensor:
        """Predict the times in `DEVICE_PHASES` of devices from sums of latents, (..., 32) to (..., 3)."""
        return torch.cat([head(sums) for head in self.heads], dim=-1) * self.unit_ms[:-1]

    def overall_ms(self, sums: Tensor, device_mask: Tensor) -> Tensor:
        """Predict the costs of plans, (B, E), from sums of latents (B, E, D, 32) and a mask of devices (B, D)."""
        # Sums of latents are not negative.
        overall: Tensor = self.overall((sums * device_mask[:, None, :, None]).amax(dim=2))
        return overall[..., 0] * self.unit_ms[-1]

    def table_ms(self, features: Tensor) -> Tensor:
        """Predict the times of tables alone on a device, the heads' sum, from features, (..., 21) to (...)."""
        return self.device_ms(self.encoder(features)).sum(dim=-1)


def cost_losses(network: CostNetwork, sums: Tensor, ms: Tensor, device_mask: Tensor) -> Mapping[str, Tensor]:
    """Return the mean squared errors of the four heads on sums of shape (N, D, 32); the loss is their sum.

    `ms` are the plans' times by the oracle, as in `PlanCost.per_device`, shape (N, D, 5). Errors are relative to the
    plan's cost, because costs within a suite differ by a factor of 20. The published loss is in ms.
    """
    overall_ms = ms.sum(dim=-1).amax(dim=-1)
    errors = (network.device_ms(sums) - ms[..., DEVICE_COLUMNS]) / overall_ms[:, None, None]
    squares = errors.square() * device_mask[..., None]
    per_phase = squares.sum(dim=(0, 1)) / device_mask.sum()
    losses = dict(zip(DEVICE_PHASES, per_phase, strict=True))
    overall = network.overall_ms(sums[:, None], device_mask)[:, 0]
    losses["overall"] = (overall / overall_ms - 1).square().mean()
    return losses


class CostLearner(Learner):
    """Trains DreamShard's cost network and a network that uses it; `replay` keeps the priced plans of all rounds.

    The first step of a round prices plans (`_collect`) and fits the cost network to them. Every step improves the
    other network (`_improve`). Both learning rates fall linearly to 0.
    """

    #: Names the other network, and its settings: NAME_updates, which are steps of a round, and NAME_learning_rate.
    other: ClassVar[str]

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        network = setup.network
        settings = setup.settings
        self._batch = TaskBatch.of(setup.tasks)
        self._cost: CostNetwork = network.cost
        self._round_steps: int = getattr(settings, f"{self.other}_updates")
        self._learning_rates = settings.learning_rate, getattr(settings, f"{self.other}_learning_rate")
        self.optimizers = tuple(
            torch.optim.Adam(part.parameters(), lr=rate)
            for part, rate in zip((network.cost, getattr(network, self.other)), self._learning_rates, strict=True)
        )

    def step(self, number: int, rng: np.random.Generator) -> dict[str, float]:
        """Improve the other network once; the first step of a round first collects costs and fits the cost network."""
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
                f"whole tables fit in none of {complete.numel()} episodes on {len(chosen)} training tasks: "
                "give tasks with more memory or smaller tables"
            )
        if not tasks:
            return
        new = {"task": torch.tensor(tasks), "devices": torch.cat(kept), "ms": torch.cat(times)}
        first = not self.replay
        self.replay = {name: torch.cat([self.replay.get(name, value[:0]), value]) for name, value in new.items()}
        if first:
            # The cost network's heads count in the means of the first round.
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
            latents = self._cost.encoder(batch.features)
            devices = self.replay["devices"][index]
            sums = sum_per_device(latents, devices[:, None], batch.device_mask.shape[1])[:, 0]
            losses = cost_losses(self._cost, sums, self.replay["ms"][index], batch.device_mask)
            descend(self.optimizers[0], torch.stack(list(losses.values())).sum())
            for name, loss in losses.items():
                total[name] = total.get(name, 0.0) + float(loss.detach()) / self._settings.cost_updates
        return {f"loss_{name}": value for name, value in total.items()}

    def _draw_tasks(self, rng: np.random.Generator, count: int) -> Tensor:
        return torch.from_numpy(rng.integers(len(self._tasks), size=count))
