"""Sets of tables as vectors: an encoder of tables, sums over the tables of a device, maxima over devices.

Sums and maxima do not depend on how many there are, so that one network serves any number of tables and devices.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from baselines.learning.tables import FEATURES, FeatureScale
from shardgym.costs.ties import QUANTUM

#: Widths of the encoder in DreamShard (`models.py`) and AutoShard (`training.py`).
ENCODER_WIDTHS = (len(FEATURES), 128, 32)
LATENT = ENCODER_WIDTHS[-1]


def mlp(*widths: int, end_with_relu: bool = False) -> nn.Sequential:
    """Return linear layers with ReLU between them, and after the last one where asked for."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*(layers if end_with_relu else layers[:-1]))


class TableEncoder(nn.Module):
    """Encodes tables: scales their features, then layers 21 -> 128 -> 32, each with ReLU.

    Args:
        scale: of the features; kept with the weights.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, scale: FeatureScale) -> None:
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(scale.mean).float())
        self.register_buffer("std", torch.from_numpy(scale.std).float())
        self.layers = mlp(*ENCODER_WIDTHS, end_with_relu=True)

    def forward(self, features: Tensor) -> Tensor:
        """Return the latents of tables: features of shape (..., 21) become (..., 32)."""
        latents: Tensor = self.layers((features - self.mean) / self.std)
        return latents


def on_device(devices: Tensor, num_devices: int) -> Tensor:
    """Return 1.0 where a table is on a device, shape (..., T) becomes (..., T, D).

    Args:
        devices: of every table, -1 for none.
        num_devices: D.
    """
    return (devices[..., None] == torch.arange(num_devices)).to(torch.get_default_dtype())


def quantized_tensor(values: Tensor) -> Tensor:
    """Return what `shardgym.costs.ties.quantized` makes of numbers that decide."""
    return torch.round(values / QUANTUM) * QUANTUM


def sum_per_device(latents: Tensor, devices: Tensor, num_devices: int) -> Tensor:
    """Return the sum of the latents of every device's tables; an empty device has zeros.

    Args:
        latents: of the tables of B tasks, shape (B, T, K).
        devices: of every table in E plans of each task, -1 for none, shape (B, E, T).
        num_devices: D.

    Returns:
        Shape (B, E, D, K).
    """
    return torch.einsum("betd,btk->bedk", on_device(devices, num_devices), latents)


def max_over_devices(values: Tensor, device_mask: Tensor) -> Tensor:
    """Return the elementwise maximum over the devices that exist: (B, E, D, K) becomes (B, E, K).

    Args:
        values: not negative, as latents are.
        device_mask: shape (B, D).
    """
    return (values * device_mask[:, None, :, None]).amax(dim=2)
