"""The judge's compute model: shards of a device look at each other before they are pooled.

Another architecture than the oracle's on purpose, so that what exploits the oracle's errors does not please the judge:
no analytic sum underneath, other features, and instead of added latents two rounds of pooling (sum, mean and largest),
the second after every shard has seen what the first found. It cannot be evaluated by adding vectors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats
from shardgym.costs.simulator.features import judge_features
from shardgym.costs.simulator.ops import Array, Groups, Ops, Params, dense
from shardgym.costs.simulator.samples import Shards

WIDTH = 64
_FEATURE_LIMIT = 4.0


#: Parameters that are not trained, see `fixed`.
FIXED = ("feature_mean", "feature_scale", "log_mean", "log_scale", "mean_count")


def inputs(shards: Shards) -> tuple[Floats]:
    """Return features of shape (S, 27)."""
    return (judge_features(shards),)


def sizes() -> dict[str, tuple[int, ...]]:
    """Return widths of the layers of each chain, the input's first (the features' comes from the data)."""
    return {"encoder": (WIDTH, WIDTH), "mixer": (4 * WIDTH + 1, WIDTH, WIDTH), "head": (3 * WIDTH + 1, WIDTH, 2)}


def fixed(features: Floats, counts: npt.NDArray[np.int64], ms: Floats) -> dict[str, Floats]:
    """Return scales of features and of logarithmic times, taken from training data once."""
    spread = features.std(axis=0)
    return {
        "fixed.feature_mean": features.mean(axis=0),
        "fixed.feature_scale": np.where(spread > 1e-6, spread, 1.0),
        "fixed.log_mean": np.log(ms).mean(axis=0),
        "fixed.log_scale": np.maximum(np.log(ms).std(axis=0), 1e-3),
        "fixed.mean_count": np.array([counts.mean()]),
    }


def _pool(ops: Ops, params: Params, x: Array, shards: Array, groups: Groups) -> Array:
    """Return sum, mean and largest over each group and the logarithm of its size, (K, S, C) to (K, G, 3 C + 1)."""
    total = ops.group_sum(x, groups)
    count = ops.group_sum(shards, groups)
    scaled = ops.log(1 + total / params["fixed.mean_count"])
    return ops.concat([scaled, total / count, ops.group_max(x, groups), ops.log(count)])


def log_ms(ops: Ops, params: Params, features: Array, groups: Groups) -> Array:
    """Return the logarithms of forward and backward ms of whole device contents, shape (K, G, 2)."""
    x = (features - params["fixed.feature_mean"]) / params["fixed.feature_scale"]
    one = features[..., :1] * 0 + 1
    first = ops.relu(dense(ops, params, "encoder", ops.clip(x, -_FEATURE_LIMIT, _FEATURE_LIMIT)))
    context = ops.spread(_pool(ops, params, first, one, groups), groups)
    second = ops.relu(dense(ops, params, "mixer", ops.concat([first, context])))
    out = dense(ops, params, "head", _pool(ops, params, second, one, groups))
    return params["fixed.log_mean"] + params["fixed.log_scale"] * out
