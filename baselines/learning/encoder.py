"""Sets of tables as vectors: an encoder, sums and maxima, in torch for many plans and in NumPy for the rows of one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from baselines.learning.tables import FEATURES, FeatureScale
from shardgym.arrays import Floats
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
    """Return 1.0 where a table is on a device, -1 being none: shape (..., T) becomes (..., T, D)."""
    return (devices[..., None] == torch.arange(num_devices)).to(torch.get_default_dtype())


def quantized_tensor(values: Tensor) -> Tensor:
    """Return what `shardgym.costs.ties.quantized` makes of numbers that decide."""
    return torch.round(values / QUANTUM) * QUANTUM


def sum_per_device(latents: Tensor, devices: Tensor, num_devices: int) -> Tensor:
    """Return the sums of latents (B, T, K) over the tables of every device, those being (B, E, T): (B, E, D, K)."""
    return torch.einsum("betd,btk->bedk", on_device(devices, num_devices), latents)


def max_over_devices(values: Tensor, device_mask: Tensor) -> Tensor:
    """Return the maximum over the devices that exist of what is not negative: (B, E, D, K) becomes (B, E, K)."""
    return (values * device_mask[:, None, :, None]).amax(dim=2)


class Linear(NamedTuple):
    """A linear layer: shape (inputs, outputs), and (outputs,)."""

    weight: Floats
    bias: Floats

    def __call__(self, x: Floats) -> Floats:
        """Apply it: shape (..., inputs) becomes (..., outputs)."""
        outputs: Floats = x @ self.weight
        outputs += self.bias
        return outputs


def linear_of(layer: nn.Linear) -> Linear:
    """Return a layer as it is now; changes to its weights are not seen later."""
    return Linear(np.ascontiguousarray(layer.weight.detach().numpy().T), layer.bias.detach().numpy())


def linears_of(chain: nn.Module) -> list[Linear]:
    """Return the linear layers of a chain, ReLU aside."""
    return [linear_of(layer) for layer in chain.modules() if isinstance(layer, nn.Linear)]


def forward(layers: Sequence[Linear], x: Floats, *, end_with_relu: bool = False) -> Floats:
    """Apply layers with ReLU between them, and after the last one where asked for."""
    *hidden, last = layers
    for layer in hidden:
        x = layer(x)
        np.maximum(x, 0, out=x)
    x = last(x)
    return np.maximum(x, 0, out=x) if end_with_relu else x


def side_by_side(chains: Iterable[nn.Module], units: Tensor) -> list[Linear]:
    """Return chains of two linear layers, with one output each times its unit, as one chain with all outputs."""
    firsts, lasts = zip(*map(linears_of, chains), strict=True)
    widths = [len(last.weight) for last in lasts]
    ends = np.cumsum(widths)
    weight = np.zeros((ends[-1], len(ends)))
    for column, (last, width, end, unit) in enumerate(zip(lasts, widths, ends, units.numpy(), strict=True)):
        weight[end - width : end, column] = last.weight[:, 0] * unit
    return [
        Linear(np.concatenate([f.weight for f in firsts], axis=1), np.concatenate([f.bias for f in firsts])),
        Linear(weight, np.concatenate([last.bias for last in lasts]) * units.numpy()),
    ]


def encoded(encoder: TableEncoder, features: Floats) -> Floats:
    """Return the latents of tables as `TableEncoder` does: features of shape (T, 21) become (T, 32)."""
    scaled = (features - encoder.mean.numpy()) / encoder.std.numpy()
    return forward(linears_of(encoder.layers), scaled, end_with_relu=True)
