"""The networks of the oracle, version 2: those of version 1 with signs, so that predictions scale as physics does.

Compute never falls when the batch, or the width, pooling factor or rows of a shard rise; exchanges never fall when the
batch or a device's columns rise. That follows from the signs of weights, not from training: features either rise with
these or do not depend on them, weights on what rises are not negative, and every layer behind keeps that. Outside of
the training data the corrections stop changing, as features and corrections are bounded, and the analytic sums under
them go on.

Forward passes are those of version 1, so the compiled search takes these weights as they are.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.simulator.features import MONOTONE_FEATURES, RISING, Shards, monotone_features, work
from shardgym.costs.simulator.oracle_networks import CommNet, ComputeNet


class MonotoneComputeNet(ComputeNet):
    """`ComputeNet` whose features know data type and optimiser, and whose weights have signs."""

    SIZES: ClassVar = {**ComputeNet.SIZES, "encoder": (MONOTONE_FEATURES, *ComputeNet.SIZES["encoder"][1:])}
    # With ReLU and no negative weight, a network is convex; tanh saves that.
    TANH: ClassVar = frozenset({"encoder"})

    @staticmethod
    def inputs(shards: Shards) -> tuple[Floats, Floats]:
        """Return features of shape (S, 30) and amounts of work of shape (S, 8)."""
        return monotone_features(shards), work(shards)

    @classmethod
    def signs(cls, chain: str, layer: int) -> Floats:
        """See `Network`."""
        signs = np.ones(cls.SIZES[chain][layer : layer + 2])
        if (chain, layer) == ("encoder", 0):
            signs[RISING:] = 0
        return signs


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
