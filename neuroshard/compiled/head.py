"""The head of the simulator's compute model: what `ComputeNet.head` does, for one network and compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neuroshard.compiled.jit import jit
from neuroshard.compiled.layers import Chain, chain_of, dense
from shardgym.arrays import Floats
from shardgym.costs.simulator.network import Params
from shardgym.costs.simulator.oracle_networks import ComputeNet

_FIXED = ("device_ms", "scalar_mean", "scalar_scale")


class Head(NamedTuple):
    """Parameters of the head; see `ComputeNet` for those that are not trained.

    Numbers of the architecture are data, too: code that is kept on disk must not hold on to them.
    """

    device_ms: Floats
    scalar_mean: Floats
    scalar_scale: Floats
    layers: Chain
    device_limit: float
    feature_limit: float
    least_work: float
    times: int
    scalars: int


def head_of(params: Params) -> Head:
    """Return the head of one compute network."""
    device_ms, mean, scale = (np.ascontiguousarray(params[f"fixed.{name}"]) for name in _FIXED)
    return Head(
        device_ms, mean, scale, chain_of(params, "head"), ComputeNet.DEVICE_LIMIT, ComputeNet.FEATURE_LIMIT,
        ComputeNet.LEAST_WORK, ComputeNet.TIMES, ComputeNet.TIMES + ComputeNet.WORK,
    )  # fmt: skip


@jit
def price(head: Head, sums: Floats) -> Floats:
    """Return forward plus backward ms of contents.

    Args:
        head: parameters.
        sums: added latents of each content, none empty, shape (G, 32).

    Returns:
        Shape (G,).
    """
    seen, log_base = _seen(head, sums)
    out = dense(head.layers, seen)
    ms, limit = np.zeros(len(sums)), head.device_limit
    for g in range(len(sums)):
        for time in range(head.times):
            ms[g] += np.exp(log_base[g, time] + limit * np.tanh(out[g, time] / limit))
    return ms


@jit
def _seen(head: Head, sums: Floats) -> tuple[Floats, Floats]:
    """Return what the first layer sees, shape (G, 32), and the logarithms of the added times, shape (G, 2)."""
    seen, log_base = np.empty(sums.shape), np.empty((len(sums), head.times))
    for g in range(len(sums)):
        for n in range(head.scalars):
            if n < head.times:
                log = log_base[g, n] = np.log(sums[g, n] + head.device_ms[n] + 1e-9)
            else:
                log = np.log(sums[g, n] + head.least_work)
            scaled = (log - head.scalar_mean[n]) / head.scalar_scale[n]
            seen[g, n] = min(max(scaled, -head.feature_limit), head.feature_limit)
        for n in range(head.scalars, sums.shape[1]):
            seen[g, n] = sums[g, n] / sums[g, head.times]
    return seen, log_base
