"""AutoShard's network: a table encoder, and on it the cost of a device, a recurrent policy, and a value."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from baselines.learning.encoder import LATENT, TableEncoder, mlp
from baselines.learning.tables import FeatureScale, TaskBatch

#: Of the recurrent network, and of what the policy sees of a device.
STATE = 2 * LATENT

COST_WIDTHS = (LATENT, 64, 1)
SCORE_WIDTHS = (3 * STATE, 128, 128, 64, 1)
VALUE_WIDTHS = (2 * STATE, 64, 1)


class OrderedTables(NamedTuple):
    """The tables of B tasks in the order in which they are placed.

    Attributes:
        order: their numbers in the task, shape (B, T).
        latents: of the tables, shape (B, T, 32).
        states: of the recurrent network when a table comes up, shape (B, T, 64).
        sizes: bytes with optimiser state, shape (B, T).
        even_ms: predicted costs of single tables, added up and divided by the number of devices, shape (B,).
    """

    order: Tensor
    latents: Tensor
    states: Tensor
    sizes: Tensor
    even_ms: Tensor


class AutoShardNetwork(nn.Module):
    """The layers of the published code (`training.py`), which all share one table encoder.

    - Cost of a device: the latents of its tables are added up; layers 32 -> 64 -> 1.
    - State: the latent of the next table and a layer of the share of tables placed, through an LSTM of two layers.
    - Action: the sum of the latents on a device, and a layer of its predicted cost and its bytes.
    - Score of a device: layers over state, action, and their product. Softmax over devices gives probabilities.
    - Value: layers over the state and the mean of the actions.

    Args:
        scale: of the features.
    """

    unit_ms: Tensor

    def __init__(self, scale: FeatureScale) -> None:
        super().__init__()
        self.encoder = TableEncoder(scale)
        self.cost = mlp(*COST_WIDTHS)
        self.progress = nn.Linear(1, LATENT)
        self.lstm = nn.LSTM(2 * LATENT, STATE, num_layers=2, batch_first=True)
        self.load = nn.Linear(2, LATENT)
        self.score = mlp(*SCORE_WIDTHS)
        self.value = mlp(*VALUE_WIDTHS)
        #: What the cost layers' output is multiplied by: the mean of the training data.
        self.register_buffer("unit_ms", torch.ones(()))

    def device_ms(self, sums: Tensor) -> Tensor:
        """Return the predicted costs of devices that are not empty: sums of shape (..., 32) become (...)."""
        ms: Tensor = self.cost(sums)[..., 0] * self.unit_ms
        return ms

    def sort(self, batch: TaskBatch) -> Tensor:
        """Return the numbers of the tables in descending order of their predicted costs, padding last, shape (B, T)."""
        alone_ms = self.device_ms(self.encoder(batch.features)).masked_fill(~batch.table_mask, -torch.inf)
        return alone_ms.argsort(dim=1, descending=True, stable=True)

    def read(self, batch: TaskBatch, order: Tensor) -> OrderedTables:
        """Encode the tables of tasks in this order, see `sort`."""
        features = batch.features.gather(1, order[..., None].expand_as(batch.features))
        exists = batch.table_mask.gather(1, order)
        latents = self.encoder(features)
        placed = torch.arange(exists.shape[1]) / exists.sum(dim=1, keepdim=True)
        states, _ = self.lstm(torch.cat([latents, self.progress(placed[..., None])], dim=-1))
        even_ms = (self.device_ms(latents.detach()).detach() * exists).sum(dim=1) / batch.device_mask.sum(dim=1)
        # An untrained network may predict next to nothing, or less.
        even_ms = torch.maximum(even_ms, 1e-2 * self.unit_ms)
        return OrderedTables(order, latents, states, batch.table_bytes.gather(1, order), even_ms)

    def actions(self, sums: Tensor, loads: Tensor) -> Tensor:
        """Return what the policy sees of devices.

        Args:
            sums: of the latents of each device's tables, shape (..., D, 32).
            loads: predicted cost over the task's even share, and bytes over capacity, shape (..., D, 2).

        Returns:
            Shape (..., D, 64).
        """
        return torch.cat([sums, self.load(loads)], dim=-1)

    def scores(self, states: Tensor, actions: Tensor) -> Tensor:
        """Return the scores of devices: states (..., 64) and actions (..., D, 64) become (..., D)."""
        states = states[..., None, :].expand_as(actions)
        scores: Tensor = self.score(torch.cat([states, actions, states * actions], dim=-1))
        return scores[..., 0]

    def values(self, states: Tensor, actions: Tensor, device_mask: Tensor) -> Tensor:
        """Return expected returns: states (..., 64) and actions (..., D, 64), with devices (..., D), become (...)."""
        exists = device_mask[..., None]
        mean = (actions * exists).sum(dim=-2) / exists.sum(dim=-2)
        values: Tensor = self.value(torch.cat([states, mean], dim=-1))
        return values[..., 0]
