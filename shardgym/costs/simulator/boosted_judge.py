"""The judge, version 2: boosted trees. Another family than the oracle's networks, so that the two err apart.

Trees see a device as a whole and correct an analytic sum that was fitted to the judge's own samples. They were trained
under constraints: no tree falls where the batch, or the width, pooling factor or rows of a shard rise. Outside of the
training data the correction is that of the nearest leaf, and the analytic sum goes on.
"""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import (
    DEVICE_PARTS,
    WORK_NAMES,
    Exchanges,
    Groups,
    Shards,
    device_parts,
    device_vectors,
)
from shardgym.costs.simulator.monotone_networks import LEAST_MS, SLOPE
from shardgym.costs.simulator.network import ComputeTimes, Params
from shardgym.costs.simulator.oracle_networks import CommNet

#: Parameters of one sum of trees, and of the analytic sum under those of a part.
TREE_NAMES = ("feature", "threshold", "left", "right", "value", "base")
FIXED_NAMES = ("work_unit", "prior", "log_low", "log_high")
PHASES = ("forward", "backward")

_WORK = len(WORK_NAMES)

#: Which features of `CommNet.inputs` trees see of a device in an exchange, those that rise with batch or columns first:
#: batch, moved, busiest, sent, received; devices, bytes of a value, own, longest and mean wait.
COMM_FEATURES = (1, 3, 4, 5, 6, 0, 2, 9, 10, 11)
COMM_RISING = 5


class Trees:
    """A sum of regression trees.

    Args:
        params: `PREFIX.feature`, `.threshold`, `.left`, `.right` and `.value` of every node, shape (T, N); node 0 is
            the root, and a leaf is its own child. `PREFIX.base`, shape (1,), is added to the sum.
        prefix: of the names.
    """

    def __init__(self, params: Params, prefix: str) -> None:
        def whole(name: str) -> Ints:
            return np.asarray(params[f"{prefix}.{name}"], dtype=np.int64)

        self._feature = whole("feature")
        self._children = np.stack([whole("right"), whole("left")])
        self._threshold = np.asarray(params[f"{prefix}.threshold"])
        self._value = np.asarray(params[f"{prefix}.value"])
        self._base = float(params[f"{prefix}.base"][0])

    def predict(self, x: Floats) -> Floats:
        """Return the sum for every row, (n, features) to (n,)."""
        trees = np.arange(len(self._feature))
        rows = np.arange(len(x))[:, None]
        node = np.zeros((len(x), len(trees)), dtype=np.int64)
        while True:
            goes_left = x[rows, self._feature[trees, node]] <= self._threshold[trees, node]
            after = self._children[goes_left.astype(np.int64), trees, node]
            if (after == node).all():
                return np.asarray(self._base + self._value[trees, node].sum(axis=1), dtype=np.float64)
            node = after


class BoostedJudge:
    """See `Networks`.

    Args:
        networks: parameters by part, see `Weights`.

    Attributes:
        encoded_shape: what a shard adds to its device, see `device_parts`.
    """

    def __init__(self, networks: dict[str, Params]) -> None:
        self.encoded_shape: tuple[int, ...] = (DEVICE_PARTS,)
        self._params = networks
        self._compute = [Trees(networks["compute"], phase) for phase in PHASES]
        self._comm = {part: Trees(networks[part], "transfer") for part in PHASES if part in networks}

    def encode(self, shards: Shards) -> Floats:
        """Return what shards add to their device, shape (S, 19)."""
        return device_parts(shards)

    def compute(self, encoded: Floats, groups: Groups) -> ComputeTimes:
        """See `Networks`. There is one judge, so nobody disagrees."""
        base = analytic_ms(self._params["compute"], np.add.reduceat(encoded[:, :_WORK], groups.starts, axis=0))
        vectors = device_vectors(encoded, groups)
        ms = [
            flattened_ms(self._params["compute"], base, column) * np.exp(trees.predict(seen(base, column, vectors)))
            for column, trees in enumerate(self._compute)
        ]
        return ComputeTimes(np.column_stack(ms), np.zeros(len(groups)))

    def exchange_ms(self, exchanges: Exchanges, *, backward: bool) -> Floats:
        """See `Networks`."""
        part = PHASES[backward]
        inputs = CommNet.inputs(exchanges)
        base = analytic_ms(self._params[part], inputs.amounts)
        factor = np.exp(self._comm[part].predict(seen(base, 0, inputs.features[:, COMM_FEATURES])))
        return np.asarray(flattened_ms(self._params[part], base, 0) * factor + inputs.wait_ms[:, 0], dtype=np.float64)


def analytic_ms(params: Params, amounts: Floats) -> Floats:
    """Return the analytic sum under a part, with one for the device or exchange itself, (n, W) to (n, K)."""
    scaled = np.column_stack([amounts / params["fixed.work_unit"], np.ones(len(amounts))])
    return np.asarray(scaled @ params["fixed.prior"] + LEAST_MS, dtype=np.float64)


def flattened_ms(params: Params, base: Floats, column: int) -> Floats:
    """Return what trees correct, (n, K) to (n,): the analytic sum, to the power `SLOPE` inside of the training data."""
    logs = np.log(base[:, column])
    low, high = params["fixed.log_low"][column], params["fixed.log_high"][column]
    return np.asarray(np.exp(logs - (1 - SLOPE) * np.minimum(np.maximum(logs, low), high)), dtype=np.float64)


def seen(base: Floats, column: int, vectors: Floats) -> Floats:
    """Return what trees see: the logarithm of the analytic sum first, (n, K) and (n, features) to (n, 1 + features)."""
    return np.column_stack([np.log(base[:, column]), vectors])
