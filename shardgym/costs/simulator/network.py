"""Network: what all networks of the simulator share, and the array functions they are written over.

A network is written once, over `Ops`: torch trains it, NumPy serves it in double precision. K networks of an ensemble
are evaluated together, along the first axis. Groups are consecutive elements along the second-last axis: the shards of
a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.simulator.features import Groups, Shards

#: A `numpy.ndarray` or a `torch.Tensor`.
Array = Any
Params = dict[str, Array]

#: What times are of: kernels timed alone, or parts of complete training steps.
CONTEXTS = ("alone", "step")
ALONE = 0


@dataclass(frozen=True)
class Ops:
    """Array functions of one library.

    Attributes:
        exp: e to the power of x.
        log: natural logarithm.
        tanh: hyperbolic tangent.
        relu: x where it is positive, else 0; may overwrite x.
        maximum: the larger one of two, element by element.
        minimum: the smaller one.
        clip: `clip(x, low, high)`.
        concat: joins along the last axis; leading axes broadcast.
        group_sum: sum over each group, (..., S, C) to (..., G, C).
        repeat: gives every element what its group has, (..., G, C) to (..., S, C).
    """

    exp: Callable[[Array], Array]
    log: Callable[[Array], Array]
    tanh: Callable[[Array], Array]
    relu: Callable[[Array], Array]
    maximum: Callable[[Array, Array], Array]
    minimum: Callable[[Array, Array], Array]
    clip: Callable[[Array, float, float], Array]
    concat: Callable[[Sequence[Array]], Array]
    group_sum: Callable[[Array, Groups], Array]
    repeat: Callable[[Array, Groups], Array]


def _concat(parts: Sequence[Array]) -> Array:
    leads = [part.shape[:-1] for part in parts]
    if leads.count(leads[0]) < len(leads):
        lead = np.broadcast_shapes(*leads)
        parts = [np.broadcast_to(part, (*lead, part.shape[-1])) for part in parts]
    return np.concatenate(parts, axis=-1)


def _relu(x: Array) -> Array:
    return np.maximum(x, 0.0, out=x)


def _clip(x: Array, low: float, high: float) -> Array:
    # `np.clip` takes several times as long for the few devices of a step.
    return np.minimum(np.maximum(x, low), high)


def _group_sum(x: Array, groups: Groups) -> Array:
    return np.add.reduceat(x, groups.starts, axis=-2)


def _repeat(x: Array, groups: Groups) -> Array:
    return np.take(x, groups.ids, axis=-2)


# Named functions, as networks are pickled with it.
NUMPY = Ops(np.exp, np.log, np.tanh, _relu, np.maximum, np.minimum, _clip, _concat, _group_sum, _repeat)


class Network:
    """Chains of linear layers over standardised features.

    Args:
        params: of K networks. A chain has `NAME.0.weight` of shape (K, inputs, outputs), `NAME.0.bias` of shape
            (K, 1, outputs), `NAME.1.weight` and so on. What is not trained is called `fixed.NAME`.
        ops: of the parameters' library.

    Attributes:
        FIXED: names of the parameters that are not trained.
        SIZES: widths of the layers of each chain, the input's first.
        FEATURE_LIMIT: standardised features beyond this say no more.
        TANH: chains with the hyperbolic tangent between their layers; the others have ReLU.
    """

    FIXED: ClassVar[tuple[str, ...]]
    SIZES: ClassVar[dict[str, tuple[int, ...]]]
    FEATURE_LIMIT: ClassVar[float] = 4.0
    TANH: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def signs(cls, chain: str, layer: int) -> Floats | None:  # noqa: ARG003
        """Return which weights of a layer must not be negative (1) or positive (-1), or must be 0 (NaN).

        None, as here, and 0 leave them free.
        """
        return None

    def __init__(self, params: Params, ops: Ops = NUMPY) -> None:
        self.params = params
        self.ops = ops

    def fixed(self, name: str) -> Array:
        """Return a parameter that is not trained."""
        return self.params[f"fixed.{name}"]

    def standardise(self, features: Array) -> Array:
        """Return features in units of their spread over the training data, limited."""
        x = (features - self.fixed("feature_mean")) / self.fixed("feature_scale")
        return self.ops.clip(x, -self.FEATURE_LIMIT, self.FEATURE_LIMIT)

    def dense(self, chain: str, x: Array) -> Array:
        """Apply a chain of linear layers and what is between them, (n, inputs) or (K, n, inputs) to (K, n, outputs)."""
        between = self.ops.tanh if chain in self.TANH else self.ops.relu
        layer = 0
        while f"{chain}.{layer}.weight" in self.params:
            x = between(x) if layer else x
            x = x @ self.params[f"{chain}.{layer}.weight"]
            x += self.params[f"{chain}.{layer}.bias"]
            layer += 1
        return x

    def bounded(self, x: Array, limit: float) -> Array:
        """Squeeze x into (-limit, limit), hardly changing small values."""
        return limit * self.ops.tanh(x / limit)


def scale_of(values: Floats) -> Floats:
    """Return the standard deviation of each column, 1 where a column does not vary."""
    spread = values.std(axis=0)
    return np.where(spread > 1e-6, spread, 1.0)


def member(params: Params, number: int) -> Params:
    """Return the parameters of one network of an ensemble, without the axis of members."""
    return {name: value if name.startswith("fixed.") else value[number] for name, value in params.items()}


class ComputeTimes(NamedTuple):
    """Compute times of G devices that hold something.

    Attributes:
        ms: forward and backward, shape (G, 2).
        disagreement: standard deviation of the members' logarithmic totals, shape (G,): their relative disagreement.
    """

    ms: Floats
    disagreement: Floats


def disagreement(log_ms: Array) -> Floats:
    """Return how much the members of an ensemble disagree on forward plus backward, (K, G, 2) to (G,)."""
    return np.asarray(np.log(np.exp(log_ms).sum(axis=-1)).std(axis=0), dtype=np.float64)


class Networks(Protocol):
    """What predicts compute for a role, in NumPy.

    Attributes:
        encoded_shape: of one encoded shard.
    """

    encoded_shape: tuple[int, ...]

    def encode(self, shards: Shards) -> Floats:
        """Work out what does not depend on what else a device holds, one row per shard, shape (S, ...)."""

    def compute(self, encoded: Floats, groups: Groups) -> ComputeTimes:
        """Predict devices from their encoded shards, device after device."""
