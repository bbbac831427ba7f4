"""DreamShard's cost network: what devices and plans cost, from the set of tables on every device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from baselines.learning.encoder import LATENT, TableEncoder, max_over_devices, mlp
from baselines.learning.tables import FeatureScale
from shardgym.costs.plan_cost import PHASES

#: What the three heads predict of each device. Forward communication, which contains waiting for slower devices, is
#: left to the overall head (`multi_gpu_bench.py`).
DEVICE_PHASES = ("forward_compute", "backward_compute", "backward_comm")

#: Columns of `PlanCost.per_device` that these are.
DEVICE_COLUMNS = [PHASES.index(phase) for phase in DEVICE_PHASES]

HEAD_WIDTHS = (LATENT, 64, 1)


class CostNetwork(nn.Module):
    """Predicts times of devices and plans (DreamShard, `models.py`), in ms.

    Tables are encoded and summed per device. Three heads take these sums: forward compute, backward compute and
    backward communication of the device. The overall head takes their elementwise maximum over devices.

    Two differences from the published code: an empty device is an empty sum, where that code adds a table of zeros,
    which is no empty device once features are centred. And the heads' outputs are multiplied by `unit_ms`, the mean of
    the training data, so that the network starts at the right order of magnitude whatever the suite.

    Args:
        scale: of the features.
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
        """Return the times in `DEVICE_PHASES` of devices: sums of shape (..., 32) become (..., 3)."""
        return torch.cat([head(sums) for head in self.heads], dim=-1) * self.unit_ms[:-1]

    def overall_ms(self, sums: Tensor, device_mask: Tensor) -> Tensor:
        """Return the costs of plans.

        Args:
            sums: of every device, shape (B, E, D, 32).
            device_mask: devices that exist, shape (B, D).

        Returns:
            Shape (B, E).
        """
        overall: Tensor = self.overall(max_over_devices(sums, device_mask))
        return overall[..., 0] * self.unit_ms[-1]

    def table_ms(self, features: Tensor) -> Tensor:
        """Return the times of tables each alone on a device, all heads added: (..., 21) becomes (...)."""
        return self.device_ms(self.encoder(features)).sum(dim=-1)


class CostTargets(NamedTuple):
    """What plans cost by the oracle."""

    device_ms: Tensor  #: times in `DEVICE_PHASES`, shape (N, D, 3)
    overall_ms: Tensor  #: the plan's cost, shape (N,)
    device_mask: Tensor  #: devices that exist, shape (N, D)


def cost_losses(network: CostNetwork, sums: Tensor, targets: CostTargets) -> Mapping[str, Tensor]:
    """Return the mean squared errors of the four heads; the loss is their sum.

    Errors are relative to the plan's cost. The published loss is of ms, on tasks that cost about the same; those of one
    suite differ by a factor of 20, and the narrow ones would not be learned.

    Args:
        network: whose heads are compared.
        sums: of the latents of every device's tables, shape (N, D, 32).
        targets: of the same plans.
    """
    unit = targets.overall_ms[:, None, None]
    errors = (network.device_ms(sums) - targets.device_ms) / unit
    squares = errors.square() * targets.device_mask[..., None]
    per_phase = squares.sum(dim=(0, 1)) / targets.device_mask.sum()
    losses = dict(zip(DEVICE_PHASES, per_phase, strict=True))
    overall = network.overall_ms(sums[:, None], targets.device_mask)[:, 0]
    losses["overall"] = (overall / targets.overall_ms - 1).square().mean()
    return losses
