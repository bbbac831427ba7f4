"""The oracle's compute model: a deep set over the shards of a device, on top of a fitted analytic sum.

Every shard becomes a *latent*: its own forward and backward time, its amounts of work, and what an encoder makes of its
features. Latents are added up over the shards of a device, and a head turns the sum into times: the added times,
multiplied by a correction that depends on how much work there is in all and on the mean of the encoder's outputs.
So adding a shard is one vector addition and one call of the head, and no time can be negative.

The published model (NeuroShard, `compute_cost_model.py`) sums encodings too, but its head has to produce times of all
magnitudes from them, and can go below zero.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats
from shardgym.costs.simulator.features import WORK_NAMES, shard_features, work
from shardgym.costs.simulator.ops import Array, Groups, Ops, Params, bounded, dense
from shardgym.costs.simulator.samples import Shards

#: Names of hidden layers' sizes, as they are in the model card.
ENCODER_SIZES = (64, 64)
HEAD_SIZES = (64, 64)
ENCODING = 22
_TIMES = 2
_WORK = len(WORK_NAMES)
LATENT = _TIMES + _WORK + ENCODING

#: A shard's time stays within a factor of exp(1.5) of the analytic one, a device's within exp(1) of its shards' sum.
_SHARD_LIMIT, DEVICE_LIMIT = 1.5, 1.0
#: Standardised features beyond this say no more.
FEATURE_LIMIT = 4.0
#: Work in units of the mean shard; keeps logarithms finite.
LEAST_WORK = 1e-3


#: Parameters that are not trained, see `fixed`.
FIXED = ("feature_mean", "feature_scale", "work_unit", "scalar_mean", "scalar_scale", "prior", "device_ms")


def inputs(shards: Shards) -> tuple[Floats, Floats]:
    """Return features of shape (S, 27) and amounts of work of shape (S, 8)."""
    return shard_features(shards), work(shards)


def sizes() -> dict[str, tuple[int, ...]]:
    """Return widths of the layers of each chain, the input's first (the features' comes from the data)."""
    return {
        "encoder": (*ENCODER_SIZES, _TIMES + ENCODING),
        "head": (_TIMES + _WORK + ENCODING, *HEAD_SIZES, _TIMES),
    }


def fixed(
    features: Floats, amounts: Floats, counts: npt.NDArray[np.int64], prior: Floats, device_ms: Floats
) -> dict[str, Floats]:
    """Return what is taken from training data once and not trained afterwards.

    Args:
        features: of all shards, shape (S, F).
        amounts: of work, shape (S, 8).
        counts: shards of each sample, shape (N,).
        prior: ms per mean amount of work, forward and backward, shape (8, 2).
        device_ms: ms per device, shape (2,).
    """
    unit = np.maximum(amounts.mean(axis=0), 1e-9)
    starts = np.cumsum(counts) - counts
    totals = np.add.reduceat(amounts / unit, starts, axis=0)
    scalars = np.log(np.hstack([totals @ prior + device_ms, totals]) + LEAST_WORK)
    return {
        "fixed.feature_mean": features.mean(axis=0),
        "fixed.feature_scale": _scale(features),
        "fixed.work_unit": unit,
        "fixed.scalar_mean": scalars.mean(axis=0),
        "fixed.scalar_scale": _scale(scalars),
        "fixed.prior": prior,
        "fixed.device_ms": device_ms,
    }


def _scale(values: Floats) -> Floats:
    spread = values.std(axis=0)
    return np.where(spread > 1e-6, spread, 1.0)


def encode(ops: Ops, params: Params, features: Array, amounts: Array) -> Array:
    """Return the latents of shards, shape (K, S, 32): two times in ms, amounts of work, encoding."""
    x = (features - params["fixed.feature_mean"]) / params["fixed.feature_scale"]
    scaled = amounts / params["fixed.work_unit"]
    encoded = dense(ops, params, "encoder", ops.clip(x, -FEATURE_LIMIT, FEATURE_LIMIT))
    factors = ops.exp(bounded(ops, encoded[..., :_TIMES], _SHARD_LIMIT))
    return ops.concat([(scaled @ params["fixed.prior"]) * factors, scaled, encoded[..., _TIMES:]])


def head(ops: Ops, params: Params, sums: Array) -> Array:
    """Return the logarithms of forward and backward ms of devices that hold at least one shard.

    Args:
        ops: of the arrays' library.
        params: of K networks.
        sums: added latents of each device, shape (K, G, 32).

    Returns:
        Shape (K, G, 2).
    """
    base = sums[..., :_TIMES] + params["fixed.device_ms"]
    totals = sums[..., _TIMES : _TIMES + _WORK]
    # The first amount of work counts shards, in units of the mean, which is one.
    mean = sums[..., _TIMES + _WORK :] / totals[..., :1]
    log_base = ops.log(base + 1e-9)
    scalars = ops.concat([log_base, ops.log(totals + LEAST_WORK)])
    x = (scalars - params["fixed.scalar_mean"]) / params["fixed.scalar_scale"]
    seen = ops.concat([ops.clip(x, -FEATURE_LIMIT, FEATURE_LIMIT), mean])
    return log_base + bounded(ops, dense(ops, params, "head", seen), DEVICE_LIMIT)


def log_ms(ops: Ops, params: Params, features: Array, amounts: Array, groups: Groups) -> Array:
    """Return the logarithms of forward and backward ms of whole device contents, shape (K, G, 2)."""
    return head(ops, params, ops.group_sum(encode(ops, params, features, amounts), groups))
