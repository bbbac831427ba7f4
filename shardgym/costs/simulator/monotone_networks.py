"""The networks of the oracle, version 2: those of version 1 with signs, so that predictions scale as physics does.

Compute never falls when the batch, or the width, pooling factor or rows of a shard rise; exchanges never fall when the
batch or a device's columns rise. That follows from the signs of weights, not from training: features either rise with
these or do not depend on them, weights on what rises are not negative, and every layer behind keeps that. Outside of
the training data the corrections stop changing, as features and corrections are bounded, and the analytic sums under
them go on.

A correction that only rises could not say that large things cost less than in proportion. So inside of the range of the
training data the analytic time counts with the power `SLOPE`, which leaves the correction that much to take back.

What comes behind the sum over shards is that of version 1, so the compiled search takes these weights as they are.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import MONOTONE_FEATURES, RISING, Shards, monotone_features, work
from shardgym.costs.simulator.network import Array
from shardgym.costs.simulator.oracle_networks import CommNet, ComputeNet

#: Power with which analytic times count inside of the training data. On the shipped data of version 1, trees under
#: constraints err by 8.8 % with 1, by 6.6 % with 0.7 and less, and without constraints by 6.1 %.
SLOPE = 0.7
#: Share of the shards on either side that are outside of that range: the range of the others is what corrections have
#: to bridge.
_TAIL = 0.01
#: Keeps logarithms finite.
LEAST_MS = 1e-6


class MonotoneComputeNet(ComputeNet):
    """`ComputeNet` whose features know data type and optimiser, and whose weights have signs."""

    FIXED = (*ComputeNet.FIXED, "log_low", "log_high")
    # The encoder also sees both analytic times.
    SIZES: ClassVar = {
        **ComputeNet.SIZES, "encoder": (MONOTONE_FEATURES + ComputeNet.TIMES, *ComputeNet.SIZES["encoder"][1:]),
    }  # fmt: skip
    SHARD_LIMIT = 3.0
    # With ReLU and no negative weight, a network is convex; tanh saves that.
    TANH: ClassVar = frozenset({"encoder"})

    @staticmethod
    def inputs(shards: Shards) -> tuple[Floats, Floats]:
        """Return features of shape (S, 30) and amounts of work of shape (S, 8)."""
        return monotone_features(shards), work(shards)

    @staticmethod
    def fixed_params(
        features: Floats, amounts: Floats, counts: Ints, prior: Floats, device_ms: Floats
    ) -> dict[str, Floats]:
        """Return the same as version 1, and the range of the logarithms of analytic times."""
        fixed = ComputeNet.fixed_params(features, amounts, counts, prior, device_ms)
        logs = np.log(amounts / fixed["fixed.work_unit"] @ prior + LEAST_MS)
        low, high = np.quantile(logs, [_TAIL, 1 - _TAIL], axis=0)
        return {**fixed, "fixed.log_low": low, "fixed.log_high": high + 1e-3}

    def encode(self, features: Array, amounts: Array) -> Array:
        """Return the latents of shards, shape (K, S, 32)."""
        ops = self.ops
        scaled = amounts / self.fixed("work_unit")
        analytic = scaled @ self.fixed("prior") + LEAST_MS
        low, high = self.fixed("log_low"), self.fixed("log_high")
        inside = ops.clip(ops.log(analytic), low, high) - (low + high) / 2
        seen = ops.concat([self.standardise(features), 4 * inside / (high - low)])
        encoded = self.dense("encoder", seen)
        corrections = self.bounded(encoded[..., : self.TIMES], self.SHARD_LIMIT)
        times = analytic * ops.exp(corrections - (1 - SLOPE) * inside)
        return ops.concat([times, scaled, encoded[..., self.TIMES :]])

    @classmethod
    def signs(cls, chain: str, layer: int) -> Floats:
        """See `Network`. The number of shards, which nothing above changes, may lower the time as well."""
        widths = cls.SIZES[chain]
        if chain == "encoder":
            signs = np.ones(widths[layer : layer + 2])
            if layer == 0:
                signs[RISING:MONOTONE_FEATURES] = 0
            return signs
        signs = np.outer(directions(widths, layer), directions(widths, layer + 1))
        if layer == 0:
            signs[cls.TIMES] = 0
        return signs


def directions(widths: tuple[int, ...], layer: int) -> Floats:
    """Return which units of a ReLU chain rise with its inputs (1) and which fall (-1), shape (units,).

    A sum of units that all rise is convex. Half of the hidden units fall and are subtracted, which adds what is concave
    (Runje and Shankaranarayana, "Constrained Monotonic Neural Networks", ICML 2023).
    """
    units = np.ones(widths[layer])
    if 0 < layer < len(widths) - 1:
        units[len(units) // 2 :] = -1
    return units


class MonotoneCommNet(CommNet):
    """`CommNet` without shares of the widest device and of the mean, which do not only rise, and with signs."""

    #: Which features of `CommNet.inputs` rise with batch or columns: batch, moved, busiest, sent, received. Which are
    #: left out: both shares, and whether a device has no columns.
    RISING: ClassVar = (1, 3, 4, 5, 6)
    UNUSED: ClassVar = (7, 8, 14)

    @classmethod
    def signs(cls, chain: str, layer: int) -> Floats:
        """See `Network`."""
        signs = np.ones(cls.SIZES[chain][layer : layer + 2])
        if (chain, layer) == ("encoder", 0):
            signs[:] = 0
            signs[list(cls.RISING)] = 1
            signs[list(cls.UNUSED)] = np.nan
        if (chain, layer) == ("head", len(cls.SIZES["head"]) - 2):
            # The second output says how much earlier than the others a waiting device is done.
            signs[:, 1] = -1
        return signs
