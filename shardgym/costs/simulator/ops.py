"""The array operations that networks need, for NumPy and for torch.

A network is written once, over `Ops`: torch trains it, NumPy serves it in double precision. Groups are consecutive
elements along the second-last axis: the shards of a device, the devices of an exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

#: A `numpy.ndarray` or a `torch.Tensor`.
Array = Any
Params = dict[str, Array]


class Groups:
    """Which elements belong together.

    Args:
        counts: elements of each group, all at least 1, shape (G,).
    """

    def __init__(self, counts: npt.NDArray[np.int64]) -> None:
        self.counts = counts
        self.starts = np.cumsum(counts) - counts
        self.ids = np.repeat(np.arange(len(counts)), counts)

    def __len__(self) -> int:
        return len(self.counts)


class Ops(Protocol):
    """Element-wise functions, and sums and maxima over groups along the second-last axis."""

    def exp(self, x: Array) -> Array:
        """Return e to the power of x."""

    def log(self, x: Array) -> Array:
        """Return the natural logarithm."""

    def tanh(self, x: Array) -> Array:
        """Return the hyperbolic tangent."""

    def relu(self, x: Array) -> Array:
        """Return x where it is positive, else 0."""

    def clip(self, x: Array, low: float, high: float) -> Array:
        """Return x, limited to [low, high]."""

    def concat(self, parts: Sequence[Array]) -> Array:
        """Join along the last axis; leading axes broadcast."""

    def group_sum(self, x: Array, groups: Groups) -> Array:
        """Sum over each group: (..., S, C) becomes (..., G, C)."""

    def group_max(self, x: Array, groups: Groups) -> Array:
        """Largest of each group: (..., S, C) becomes (..., G, C)."""

    def spread(self, x: Array, groups: Groups) -> Array:
        """Give every element what its group has: (..., G, C) becomes (..., S, C)."""


class NumpyOps:
    """`Ops` on NumPy arrays."""

    def exp(self, x: Array) -> Array:
        """See `Ops`."""
        return np.exp(x)

    def log(self, x: Array) -> Array:
        """See `Ops`."""
        return np.log(x)

    def tanh(self, x: Array) -> Array:
        """See `Ops`."""
        return np.tanh(x)

    def relu(self, x: Array) -> Array:
        """See `Ops`."""
        return np.maximum(x, 0.0)

    def clip(self, x: Array, low: float, high: float) -> Array:
        """See `Ops`."""
        return np.clip(x, low, high)

    def concat(self, parts: Sequence[Array]) -> Array:
        """See `Ops`."""
        leads = {part.shape[:-1] for part in parts}
        if len(leads) == 1:
            return np.concatenate(parts, axis=-1)
        lead = np.broadcast_shapes(*leads)
        return np.concatenate([np.broadcast_to(part, (*lead, part.shape[-1])) for part in parts], axis=-1)

    def group_sum(self, x: Array, groups: Groups) -> Array:
        """See `Ops`."""
        return np.add.reduceat(x, groups.starts, axis=-2)

    def group_max(self, x: Array, groups: Groups) -> Array:
        """See `Ops`."""
        return np.maximum.reduceat(x, groups.starts, axis=-2)

    def spread(self, x: Array, groups: Groups) -> Array:
        """See `Ops`."""
        return np.take(x, groups.ids, axis=-2)


NUMPY = NumpyOps()


def dense(ops: Ops, params: Params, name: str, x: Array) -> Array:
    """Apply a chain of linear layers with ReLU between them.

    Args:
        ops: of the arrays' library.
        params: holds `NAME.0.weight` of shape (K, inputs, outputs), `NAME.0.bias` of shape (K, 1, outputs), `NAME.1...`
            for K networks at once.
        name: of the chain.
        x: shape (n, inputs) or (K, n, inputs).

    Returns:
        Shape (K, n, outputs of the last layer).
    """
    layer = 0
    while f"{name}.{layer}.weight" in params:
        x = (ops.relu(x) if layer else x) @ params[f"{name}.{layer}.weight"] + params[f"{name}.{layer}.bias"]
        layer += 1
    return x


def bounded(ops: Ops, x: Array, limit: float) -> Array:
    """Squeeze x into (-limit, limit), hardly changing small values."""
    return limit * ops.tanh(x / limit)
