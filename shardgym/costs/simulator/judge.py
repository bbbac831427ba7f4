"""The judge: boosted trees. Another family than the oracle's network, so that the two err apart.

Trees see a device as a whole and correct an analytic sum that was fitted to the judge's own samples. They were trained
under constraints: no tree falls where the batch, or the width, pooling factor or rows of a shard rise. Outside of the
training data the correction is that of the nearest leaf, and the analytic sum goes on. Like the oracle's network, trees
know two contexts, see `CONTEXTS`.
"""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import DEVICE_PARTS, WORK_NAMES, Groups, Shards, device_parts, device_vectors
from shardgym.costs.simulator.oracle import LEAST_MS, SLOPE, Params

PHASES = ("forward", "backward")

_WORK = len(WORK_NAMES)


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


class JudgeTrees:
    """See `Networks`.

    Args:
        params: of trees and the analytic sum, see `Weights`.
        context: that is predicted, a number in `CONTEXTS`.
    """

    def __init__(self, params: Params, context: int) -> None:
        self.encoded_shape: tuple[int, ...] = (DEVICE_PARTS,)
        self._params = params
        self._context = context
        self._trees = [Trees(params, phase) for phase in PHASES]

    def encode(self, shards: Shards) -> Floats:
        """Return what shards add to their device, shape (S, 19)."""
        return device_parts(shards)

    def compute(self, encoded: Floats, groups: Groups) -> Floats:
        """See `Networks`."""
        context = np.full(len(groups), self._context)
        base = analytic_ms(self._params, np.add.reduceat(encoded[:, :_WORK], groups.starts, axis=0), context)
        vectors = device_vectors(encoded, groups)
        ms = [
            flattened_ms(self._params, base, context, column)
            * np.exp(trees.predict(seen(base, column, vectors, context)))
            for column, trees in enumerate(self._trees)
        ]
        return np.column_stack(ms)


def analytic_ms(params: Params, amounts: Floats, context: Ints) -> Floats:
    """Return the analytic sum of devices, with one for the device itself: (n, 8) and contexts (n,) to (n, 2)."""
    scaled = np.column_stack([amounts / params["fixed.work_unit"], np.ones(len(amounts))])
    return np.asarray(np.einsum("nw,nwt->nt", scaled, params["fixed.prior"][context]) + LEAST_MS, dtype=np.float64)


def flattened_ms(params: Params, base: Floats, context: Ints, column: int) -> Floats:
    """Return what trees correct, (n, 2) to (n,): the analytic sum, to the power `SLOPE` inside of the training data."""
    logs = np.log(base[:, column])
    low = params["fixed.log_low"][context, column]
    high = params["fixed.log_high"][context, column]
    return np.asarray(np.exp(logs - (1 - SLOPE) * np.minimum(np.maximum(logs, low), high)), dtype=np.float64)


def seen(base: Floats, column: int, vectors: Floats, context: Ints) -> Floats:
    """Return what trees see: the logarithm of the analytic sum, what the device looks like, and the context.

    Args:
        base: from `analytic_ms`, shape (n, 2).
        column: 0 forward, 1 backward.
        vectors: from `device_vectors`, shape (n, 19).
        context: shape (n,).

    Returns:
        Shape (n, 21).
    """
    return np.column_stack([np.log(base[:, column]), vectors, context])
