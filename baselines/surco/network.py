"""SurCo's networks: the cost network of DreamShard as the loss, and the one that predicts surrogate costs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from baselines.learning.cost_network import CostNetwork
from baselines.learning.encoder import LATENT, TableEncoder, mlp
from baselines.learning.tables import FeatureScale, TaskBatch

#: Numbers of the encoding of a device.
DEVICE_CODE = 8
#: Layers that turn a table, the mean table of its task, the table's turn and a device into a surrogate cost.
SCORE_WIDTHS = (2 * LATENT + 4 + DEVICE_CODE, 64, 64, 1)
#: Root mean square of predicted surrogate costs: that of numbers between 0 and 1, which `zero` starts from.
SPREAD = 12**-0.5
#: Width of the soft maximum over devices, as a share of the slowest one's time.
SOFTNESS = 0.05


class SurrogateNetwork(nn.Module):
    """Predicts the surrogate cost of every table on every device.

    As in the paper (appendix B.2), tables go through DreamShard's encoder, and devices have a sinusoidal encoding, so
    that those that are alike get different costs. The released code has an output for each device instead, which fixes
    their number. Two things tell the network what else there is to place, without which tables that are alike would all
    go to one device: the mean of the encoded tables, and the table's *turn*, its rank in descending cost modulo the
    number of devices and twice that number, on a circle each.

    Args:
        scale: of the features.
    """

    def __init__(self, scale: FeatureScale) -> None:
        super().__init__()
        self.encoder = TableEncoder(scale)
        self.score = mlp(*SCORE_WIDTHS)

    def forward(self, batch: TaskBatch, table_ms: Tensor) -> Tensor:
        """Return surrogate costs, shape (B, T, D).

        Args:
            batch: the tasks.
            table_ms: what tables cost, which ranks them, shape (B, T).
        """
        latents = self.encoder(batch.features)
        exists = batch.table_mask[..., None]
        mean = (latents * exists).sum(dim=1) / exists.sum(dim=1)
        num_tables = latents.shape[1]
        ranks = table_ms.masked_fill(~batch.table_mask, -torch.inf).argsort(dim=1, descending=True).argsort(dim=1)
        turns = torch.pi * (ranks + 0.5) / batch.device_mask.sum(dim=1, keepdim=True)
        circles = torch.stack([turns.sin(), turns.cos(), (2 * turns).sin(), (2 * turns).cos()], dim=-1)
        tables = torch.cat([latents, mean[:, None].expand_as(latents), circles], dim=-1)
        num_devices = batch.device_mask.shape[1]
        codes = device_codes(num_devices).expand(len(batch), num_tables, -1, -1)
        scores = self.score(torch.cat([tables[:, :, None].expand(-1, -1, num_devices, -1), codes], dim=-1))[..., 0]
        # What all devices have in common, and the scale, decide nothing; of a growing scale, gradients would vanish.
        placed = batch.table_mask[:, :, None] & batch.device_mask[:, None]
        scores = scores - (scores * placed).sum(dim=2, keepdim=True) / placed.sum(dim=2, keepdim=True).clamp(min=1)
        squares = (scores.square() * placed).sum(dim=(1, 2), keepdim=True) / placed.sum(dim=(1, 2), keepdim=True)
        costs: Tensor = SPREAD * scores / (squares + 1e-12).sqrt()
        return costs


def device_codes(num_devices: int) -> Tensor:
    """Return sines and cosines of the numbers of devices with wave lengths from 2 pi to 200 pi, shape (D, 8)."""
    half = DEVICE_CODE // 2
    frequencies = torch.exp(-math.log(100.0) * torch.arange(half) / (half - 1))
    angles = torch.arange(num_devices)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class SurCoNetwork(nn.Module):
    """The cost network and the surrogate network, which share no weights."""

    def __init__(self, scale: FeatureScale) -> None:
        super().__init__()
        self.cost = CostNetwork(scale)
        self.surrogate = SurrogateNetwork(scale)

    def surrogate_costs(self, batch: TaskBatch) -> Tensor:
        """Return predicted surrogate costs, shape (B, T, D)."""
        with torch.no_grad():
            table_ms = self.cost.table_ms(batch.features)
        return self.surrogate(batch, table_ms)  # type: ignore[no-any-return]

    def log_ms(self, batch: TaskBatch, assignment: Tensor) -> Tensor:
        """Return the logarithm of what the slowest device takes by the cost network, by a soft maximum.

        The three heads are added up for each device. The overall head of DreamShard would see the largest latents over
        devices alone, so that few tables had a gradient.

        Args:
            batch: the tasks.
            assignment: share of every table on every device, shape (B, T, D).

        Returns:
            Shape (B,).
        """
        latents = self.cost.encoder(batch.features) * batch.table_mask[..., None]
        sums = torch.einsum("btd,btk->bdk", assignment, latents)
        device_ms = self.cost.device_ms(sums).sum(dim=-1).masked_fill(~batch.device_mask, -torch.inf)
        # An untrained network may say less than nothing.
        least = 1e-2 * self.cost.unit_ms[-1]
        width = SOFTNESS * device_ms.detach().amax(dim=1, keepdim=True).clamp(min=least)
        return torch.log((width[:, 0] * torch.logsumexp(device_ms / width, dim=1)).clamp(min=least))
