"""The simulator's communication model: what `CommNet` and `Predictor.slowest_ms` do for plans of one task, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neuroshard.compiled.jit import jit
from neuroshard.compiled.layers import Chain, chain_of, dense, finish
from shardgym.arrays import Floats
from shardgym.costs.simulator.network import Params
from shardgym.costs.simulator.oracle_networks import CommNet


class Exchange(NamedTuple):
    """Parameters of one direction; see `CommNet` for those that are not trained."""

    feature_mean: Floats
    feature_scale: Floats
    ms_per_work: Floats
    encoder: Chain
    head: Chain
    limit: float
    feature_limit: float


def exchange_of(params: Params) -> Exchange:
    """Return one direction's network."""
    fixed = {name: params[f"fixed.{name}"] for name in CommNet.FIXED}
    ms_per_work = fixed["prior"].ravel() / fixed["work_unit"]
    return Exchange(
        np.ascontiguousarray(fixed["feature_mean"]), np.ascontiguousarray(fixed["feature_scale"]), ms_per_work,
        chain_of(params, "encoder"), chain_of(params, "head"), CommNet.LIMIT, CommNet.FEATURE_LIMIT,
    )  # fmt: skip


@jit
def totals(
    backward: Exchange, forward: Exchange, compute_ms: Floats, widths: Floats, batch: float, element_bytes: float
) -> Floats:
    """Return what the slowest device of each plan takes in ms, communication included.

    Args:
        backward: network.
        forward: network.
        compute_ms: forward plus backward compute of every device, shape (P, D).
        widths: columns of every device, shape (P, D).
        batch: samples over all devices.
        element_bytes: of one value.

    Returns:
        Shape (P,).
    """
    best = np.zeros(len(widths))
    busy = compute_ms.copy()
    if widths.shape[1] > 1:
        busy += _exchange_ms(backward, widths, np.zeros_like(busy), batch, element_bytes)
        offsets = busy.copy()
        for plan in range(len(busy)):
            offsets[plan] -= busy[plan].min()
        busy += _exchange_ms(forward, widths, offsets, batch, element_bytes)
    for plan in range(len(busy)):
        best[plan] = busy[plan].max()
    return best


@jit
def _exchange_ms(net: Exchange, widths: Floats, offsets: Floats, batch: float, element_bytes: float) -> Floats:
    """Return what an exchange takes on each device, shape (P, D)."""
    plans, devices = widths.shape
    seen, transfer, wait = np.empty((widths.size, len(net.feature_mean))), np.empty(widths.size), np.empty(widths.size)
    for plan in range(plans):
        here = slice(plan * devices, (plan + 1) * devices)
        _inputs(net, widths[plan], offsets[plan], batch, element_bytes, seen[here], transfer[here], wait[here])
    code = np.maximum(dense(net.encoder, seen), 0.0)
    size = code.shape[1]
    context = np.empty((plans, 2 * size))
    for plan in range(plans):
        for n in range(size):
            column = code[plan * devices : (plan + 1) * devices, n]
            context[plan, n], context[plan, size + n] = column.sum() / devices, column.max()
    # What all devices of a plan share goes through the first layer once.
    first = net.head.weights[0]
    shared = np.dot(context, first[size:]) + net.head.biases[0]
    out = np.dot(code, first[:size])
    for n in range(len(out)):
        out[n] += shared[n // devices]
    out = finish(net.head, out)
    ms = np.empty(widths.shape)
    for n in range(widths.size):
        early = 1 / (1 + np.exp(4.0 - out[n, 1]))
        correction = np.exp(net.limit * np.tanh(out[n, 0] / net.limit))
        ms[n // devices, n % devices] = transfer[n] * correction + wait[n] * (1 - early) + 1e-6
    return ms


@jit
def _inputs(
    net: Exchange, widths: Floats, offsets: Floats, batch: float, element_bytes: float, seen: Floats, transfer: Floats,
    wait: Floats,
) -> None:  # fmt: skip
    """Work out what `CommNet.inputs` does for one plan: standardised features, analytic ms, waits."""
    count = len(widths)
    samples = batch / count
    total, largest, latest = widths.sum() * element_bytes, widths.max() * element_bytes, offsets.max()
    wait[:] = latest - offsets
    longest, mean_wait = wait.max(), wait.sum() / count
    moved, busiest = total * (batch - samples), largest * (batch - samples)
    for d in range(count):
        row_bytes = widths[d] * element_bytes
        sent, received = row_bytes * (batch - samples), (total - row_bytes) * samples
        features = (
            np.log(count), np.log(batch), np.log(element_bytes),
            np.log1p(moved), np.log1p(busiest), np.log1p(sent), np.log1p(received),
            row_bytes / max(largest, 1.0), row_bytes * count / max(total, 1.0),
            np.log1p(wait[d]), np.log1p(longest), np.log1p(mean_wait),
            wait[d] / max(longest, 1e-3), 1.0 * (wait[d] == 0), 1.0 * (row_bytes == 0),
        )  # fmt: skip
        for n in range(len(features)):
            scaled = (features[n] - net.feature_mean[n]) / net.feature_scale[n]
            seen[d, n] = min(max(scaled, -net.feature_limit), net.feature_limit)
        work = net.ms_per_work
        transfer[d] = work[0] + work[1] * count + work[2] * moved + work[3] * busiest + work[4] * (sent + received)
