"""Layers of torch as NumPy arrays: on the few rows of one plan, calls of torch take longer than the arithmetic.

Arrays have the precision of the layers, which is double where a network decides: see `LearnedSolver`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from baselines.learning.encoder import TableEncoder
from shardgym.arrays import Floats


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
    """Return chains of two linear layers, with one output each, as one chain that has all their outputs.

    Args:
        chains: that take the same inputs, n of them.
        units: what their outputs are multiplied by, shape (n,).
    """
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
