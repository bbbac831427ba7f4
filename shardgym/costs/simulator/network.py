"""The network of a simulator: compute of a device from added latents.

Every shard becomes a *latent*: its own forward and backward time, its amounts of work, and what an encoder makes of its
features. Latents are added up over the shards of a device. A head turns the sum into times: the added times,
multiplied by a correction that depends on how much work there is in all and on the mean of the encoder's outputs. So
adding a shard is one vector addition and one call of the head, and no time can be negative. The published model
(NeuroShard, `compute_cost_model.py`) sums encodings too, but its head has to produce times of all magnitudes, and can
go below zero.

Predictions scale as physics does: compute never falls when the batch, or the width, pooling factor or rows of a shard
rise. That follows from the signs of weights, not from training: features either rise with these or do not depend on
them, weights on what rises are not negative, and every layer behind keeps that. Outside of the training data the
corrections stop changing, as features and corrections are bounded, and the analytic sums under them go on. A correction
that only rises could not say that large things cost less than in proportion. So inside of the range of the training
data the analytic time counts with the power `SLOPE`, which leaves the correction that much to take back.

A network knows two contexts, see `CONTEXTS`. What it learned of kernels alone also tells it about steps. It is written
once, over `Ops`: torch trains it, NumPy serves it in double precision.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import RISING, SHARD_FEATURES, WORK_NAMES, Groups, Shards, shard_features, work

#: A `numpy.ndarray` or a `torch.Tensor`.
Array = Any
Params = dict[str, Array]

#: What times are of: kernels timed alone, or parts of complete training steps.
CONTEXTS = ("alone", "step")
ALONE = 0

#: Power with which analytic times count inside of the training data. On shard sets measured alone, boosted
#: trees under constraints erred by 8.8 % with 1, by 6.6 % with 0.7 and less, and without constraints by 6.1 %.
SLOPE = 0.7
#: Share of the shards on either side that are outside of that range: the range of the others is what corrections have
#: to bridge.
_TAIL = 0.01
#: Keeps logarithms finite.
LEAST_MS = 1e-6

#: What is fixed for each context, along the first axis.
_BY_CONTEXT = ("prior", "device_ms", "log_low", "log_high")


@dataclass(frozen=True)
class Ops:
    """Array functions of one library."""

    exp: Callable[[Array], Array]
    log: Callable[[Array], Array]
    tanh: Callable[[Array], Array]
    relu: Callable[[Array], Array]  #: x where it is positive, else 0; may overwrite x
    maximum: Callable[[Array, Array], Array]
    minimum: Callable[[Array, Array], Array]
    clip: Callable[[Array, float, float], Array]  #: `clip(x, low, high)`
    #: Joins along the last axis; over tensors, where several networks are trained at once, leading axes broadcast.
    concat: Callable[[Sequence[Array]], Array]


def _concat(parts: Sequence[Array]) -> Array:
    return np.concatenate(parts, axis=-1)


def _relu(x: Array) -> Array:
    return np.maximum(x, 0.0, out=x)


def _clip(x: Array, low: float, high: float) -> Array:
    # `np.clip` takes several times as long for the few devices of a step.
    return np.minimum(np.maximum(x, low), high)


# Named functions, as networks are pickled with it.
NUMPY = Ops(np.exp, np.log, np.tanh, _relu, np.maximum, np.minimum, _clip, _concat)


def scale_of(values: Floats) -> Floats:
    """Return the standard deviation of each column, 1 where a column does not vary."""
    spread = values.std(axis=0)
    return np.where(spread > 1e-6, spread, 1.0)


class ComputeNet:
    """A deep set over the shards of a device, on top of a fitted analytic sum, with signs.

    Args:
        params: a chain of layers has `NAME.0.weight` of shape (inputs, outputs), `NAME.0.bias` of shape (1, outputs),
            `NAME.1.weight` and so on; in training with an axis of K networks in front, which are evaluated together.
            What is not trained is called `fixed.NAME`.
        ops: array operations of the library that holds the parameters.
    """

    #: Numbers of a latent: forward and backward ms; amounts of work, in units of the mean shard, the first of which
    #: counts shards; what the encoder makes of the features; and all of them.
    TIMES = 2
    WORK = len(WORK_NAMES)
    ENCODING = 22
    LATENT = TIMES + WORK + ENCODING
    #: A shard's time stays within a factor of e to this power of the analytic one, a device's of its shards' sum.
    SHARD_LIMIT = 3.0
    DEVICE_LIMIT = 1.0
    #: Standardised features beyond this say no more.
    FEATURE_LIMIT = 4.0
    #: Keeps logarithms of work finite.
    LEAST_WORK = 1e-3
    #: Widths of each chain's layers. The encoder sees features, both analytic times and the context; the head a sum of
    #: latents and the context.
    SIZES: ClassVar[dict[str, tuple[int, ...]]] = {
        "encoder": (SHARD_FEATURES + TIMES + 1, 64, 64, TIMES + ENCODING),
        "head": (LATENT + 1, 64, 64, TIMES),
    }

    def __init__(self, params: Params, ops: Ops = NUMPY) -> None:
        self.params = params
        self.ops = ops

    @staticmethod
    def fixed_params(features: Floats, amounts: Floats, counts: Ints, context: Ints, priors: Floats) -> Params:
        """Return what is taken from training data once and not trained afterwards.

        Args:
            features: features of all shards, shape (S, 30).
            amounts: amounts of work, shape (S, 8).
            counts: shards of each sample, shape (N,).
            context: context of each sample, numbers in `CONTEXTS`, shape (N,).
            priors: ms per mean amount of work, and per device in the last row; forward and backward, shape (2, 9, 2).
        """
        prior, device_ms = priors[:, :-1], priors[:, -1]
        unit = np.maximum(amounts.mean(axis=0), 1e-9)
        scaled = amounts / unit
        totals = np.add.reduceat(scaled, Groups(counts).starts, axis=0)
        base = np.einsum("nw,nwt->nt", totals, prior[context]) + device_ms[context]
        scalars = np.log(np.hstack([base, totals]) + ComputeNet.LEAST_WORK)
        logs = np.log(np.einsum("sw,cwt->cst", scaled, prior) + LEAST_MS)
        of_shard = np.repeat(context, counts)
        ranges = np.array([
            np.quantile(logs[c, of_shard == c] if (of_shard == c).any() else logs[c], [_TAIL, 1 - _TAIL], axis=0)
            for c in range(len(CONTEXTS))
        ])  # fmt: skip
        return {
            "fixed.feature_mean": features.mean(axis=0),
            "fixed.feature_scale": scale_of(features),
            "fixed.work_unit": unit,
            "fixed.scalar_mean": scalars.mean(axis=0),
            "fixed.scalar_scale": scale_of(scalars),
            "fixed.prior": prior,
            "fixed.device_ms": device_ms,
            "fixed.log_low": ranges[:, 0],
            "fixed.log_high": ranges[:, 1] + 1e-3,
        }

    def encode(self, features: Array, amounts: Array, context: Array | None = None) -> Array:
        """Return the latents of shards, shape (S, 32).

        Args:
            features: see `shard_features`, shape (S, 30).
            amounts: amounts of work, shape (S, 8).
            context: context of each shard, shape (S, 1); None with parameters of `in_context`.
        """
        ops = self.ops
        scaled = amounts / self.params["fixed.work_unit"]
        prior = self.params["fixed.prior"]
        known = [] if context is None else [context]
        times = scaled @ prior if context is None else _mixed(scaled @ prior[0], scaled @ prior[1], context)
        analytic = times + LEAST_MS
        low, high = self._of_context("log_low", context), self._of_context("log_high", context)
        inside = ops.minimum(ops.maximum(ops.log(analytic), low), high) - (low + high) / 2
        encoded = self._dense("encoder", ops.concat([self._standardised(features), 4 * inside / (high - low), *known]))
        corrections = self._bounded(encoded[..., : self.TIMES], self.SHARD_LIMIT)
        times = analytic * ops.exp(corrections - (1 - SLOPE) * inside)
        return ops.concat([times, scaled, encoded[..., self.TIMES :]])

    def head(self, sums: Array, context: Array | None = None) -> Array:
        """Return the logarithms of forward and backward ms of devices that hold at least one shard, shape (G, 2).

        Sums are added latents of each device, (G, 32); its context, (G, 1), is None with parameters of `in_context`.
        """
        base = sums[..., : self.TIMES] + self._of_context("device_ms", context)
        totals = sums[..., self.TIMES : self.TIMES + self.WORK]
        # The first amount of work counts shards, in units of the mean, which is one.
        mean = sums[..., self.TIMES + self.WORK :] / totals[..., :1]
        scalars = self.ops.log(self.ops.concat([base + 1e-9, totals + self.LEAST_WORK]))
        log_base = scalars[..., : self.TIMES]
        x = (scalars - self.params["fixed.scalar_mean"]) / self.params["fixed.scalar_scale"]
        limited = self.ops.clip(x, -self.FEATURE_LIMIT, self.FEATURE_LIMIT)
        known = [] if context is None else [context]
        return log_base + self._bounded(
            self._dense("head", self.ops.concat([limited, mean, *known])), self.DEVICE_LIMIT
        )

    @classmethod
    def signs(cls, chain: str, layer: int) -> Floats:
        """Return which weights of a layer must not be negative (1) or positive (-1); 0 leaves them free.

        The number of shards, which nothing above changes, may lower the time as well.
        """
        widths = cls.SIZES[chain]
        if chain == "encoder":
            signs = np.ones(widths[layer : layer + 2])
            if layer == 0:
                signs[RISING:SHARD_FEATURES] = 0
                signs[-1] = 0
            return signs
        signs = np.outer(_directions(widths, layer), _directions(widths, layer + 1))
        if layer == 0:
            signs[cls.TIMES] = 0
            signs[-1] = 0
        return signs

    def _of_context(self, name: str, context: Array | None) -> Array:
        value = self.params[f"fixed.{name}"]
        return value if context is None else _mixed(value[0], value[1], context)

    def _standardised(self, features: Array) -> Array:
        x = (features - self.params["fixed.feature_mean"]) / self.params["fixed.feature_scale"]
        return self.ops.clip(x, -self.FEATURE_LIMIT, self.FEATURE_LIMIT)

    def _dense(self, chain: str, x: Array) -> Array:
        # With ReLU and no negative weight, a network is convex; the encoder's tanh saves that.
        between = self.ops.tanh if chain == "encoder" else self.ops.relu
        for layer in range(len(self.SIZES[chain]) - 1):
            x = between(x) if layer else x
            x = x @ self.params[f"{chain}.{layer}.weight"]
            x += self.params[f"{chain}.{layer}.bias"]
        return x

    def _bounded(self, x: Array, limit: float) -> Array:
        return limit * self.ops.tanh(x / limit)


def _mixed(alone: Array, in_step: Array, context: Array) -> Array:
    """Return which of two things holds in each context, 0 or 1."""
    return alone + context * (in_step - alone)


def in_context(params: Params, context: int) -> Params:
    """Return the parameters of a network for one context alone, which it then need not be told."""
    found = dict(params)
    for name in _BY_CONTEXT:
        found[f"fixed.{name}"] = params[f"fixed.{name}"][context]
    for chain in ComputeNet.SIZES:
        weight = params[f"{chain}.0.weight"]
        found[f"{chain}.0.weight"] = weight[:-1]
        found[f"{chain}.0.bias"] = params[f"{chain}.0.bias"] + context * weight[-1:]
    return found


def _directions(widths: tuple[int, ...], layer: int) -> Floats:
    """Return which units of a ReLU chain rise with its inputs (1) and which fall (-1), shape (units,).

    A sum of units that all rise is convex. Half of the hidden units fall and are subtracted, which adds what is concave
    (Runje and Shankaranarayana, "Constrained Monotonic Neural Networks", ICML 2023).
    """
    units = np.ones(widths[layer])
    if 0 < layer < len(widths) - 1:
        units[len(units) // 2 :] = -1
    return units


class NumpyNet:
    """What predicts compute, in NumPy: a network for one context.

    Args:
        params: parameters of the network, see `Weights`.
        context: context to predict, a number in `CONTEXTS`.
    """

    def __init__(self, params: Params, context: int) -> None:
        self._network = ComputeNet(in_context(params, context))

    def encode(self, shards: Shards) -> Floats:
        """Return the latents of shards, which do not depend on what else their device holds, shape (S, 32)."""
        latents: Floats = self._network.encode(shard_features(shards), work(shards))
        return latents

    def compute(self, encoded: Floats, groups: Groups) -> Floats:
        """Return forward and backward ms of G devices from latents, device after device, shape (G, 2)."""
        return self.compute_ms(np.add.reduceat(encoded, groups.starts, axis=0))

    def compute_ms(self, sums: Floats) -> Floats:
        """Return forward and backward ms from added latents, (G, 32) to (G, 2)."""
        return np.asarray(np.exp(self._network.head(sums)), dtype=np.float64)
