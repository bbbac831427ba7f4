"""The simulator's oracle compiled: the head of its compute network and its exchange networks, for plans of one task.

Mirrors `shardgym.costs.simulator.oracle_networks`, where the networks are explained. Numbers of the architecture are
data here, too: machine code that is kept on disk must not hold on to them.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from neuroshard.jit import jit
from shardgym.arrays import Floats
from shardgym.costs.simulator.network import Params
from shardgym.costs.simulator.oracle_networks import NO_WAIT_MS, CommNet, ComputeNet
from shardgym.ties import QUANTUM


class Layers(NamedTuple):
    """Linear layers with ReLU between them: weights of shape (inputs, outputs), biases of shape (outputs,)."""

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]


class ComputeHead(NamedTuple):
    """Parameters of the head of the compute network; see `ComputeNet` for those that are not trained."""

    device_ms: Floats
    scalar_mean: Floats
    scalar_scale: Floats
    layers: Layers
    device_limit: float
    feature_limit: float
    least_work: float
    times: int
    scalars: int


class ExchangeNetwork(NamedTuple):
    """Parameters of one direction of exchange; see `CommNet` for those that are not trained."""

    feature_mean: Floats
    feature_scale: Floats
    ms_per_work: Floats
    encoder: Layers
    head: Layers
    limit: float
    feature_limit: float


def layers_of(params: Params, name: str) -> Layers:
    """Return a chain of layers of one network by its name, e.g. "head"."""
    numbers = list(itertools.takewhile(lambda n: f"{name}.{n}.weight" in params, itertools.count()))
    return Layers(
        tuple(np.ascontiguousarray(params[f"{name}.{n}.weight"]) for n in numbers),
        tuple(np.ascontiguousarray(params[f"{name}.{n}.bias"]).ravel() for n in numbers),
    )


def compute_head_of(params: Params) -> ComputeHead:
    """Return the head of one compute network."""
    return ComputeHead(
        device_ms=np.ascontiguousarray(params["fixed.device_ms"]),
        scalar_mean=np.ascontiguousarray(params["fixed.scalar_mean"]),
        scalar_scale=np.ascontiguousarray(params["fixed.scalar_scale"]),
        layers=layers_of(params, "head"),
        device_limit=ComputeNet.DEVICE_LIMIT,
        feature_limit=ComputeNet.FEATURE_LIMIT,
        least_work=ComputeNet.LEAST_WORK,
        times=ComputeNet.TIMES,
        scalars=ComputeNet.TIMES + ComputeNet.WORK,
    )


def exchange_network_of(params: Params) -> ExchangeNetwork:
    """Return the network of one direction of exchange."""
    return ExchangeNetwork(
        feature_mean=np.ascontiguousarray(params["fixed.feature_mean"]),
        feature_scale=np.ascontiguousarray(params["fixed.feature_scale"]),
        ms_per_work=params["fixed.prior"].ravel() / params["fixed.work_unit"],
        encoder=layers_of(params, "encoder"),
        head=layers_of(params, "head"),
        limit=CommNet.LIMIT,
        feature_limit=CommNet.FEATURE_LIMIT,
    )


@jit
def quantized_one(value: float) -> float:
    """Return what `shardgym.ties.quantized` makes of a number."""
    rounded: float = np.rint(value * (1 / QUANTUM)) * QUANTUM
    return rounded


@jit
def apply_layers(layers: Layers, x: Floats) -> Floats:
    """Apply all layers to x of shape (n, inputs)."""
    return apply_later_layers(layers, np.dot(x, layers.weights[0]) + layers.biases[0])


@jit
def apply_later_layers(layers: Layers, x: Floats) -> Floats:
    """Apply all layers but the first to what that one gives, shape (n, its outputs)."""
    for layer in range(1, len(layers.weights)):
        x = np.dot(np.maximum(x, 0.0), layers.weights[layer]) + layers.biases[layer]
    return x


@jit
def head_ms(head: ComputeHead, sums: Floats) -> Floats:
    """Return forward plus backward ms of devices that hold something, quantized.

    Args:
        head: parameters.
        sums: added latents of each device, shape (G, 32).

    Returns:
        Shape (G,).
    """
    seen = np.empty(sums.shape)
    log_base = np.empty((len(sums), head.times))
    for g in range(len(sums)):
        for n in range(head.scalars):
            if n < head.times:
                log = np.log(sums[g, n] + head.device_ms[n] + 1e-9)
                log_base[g, n] = log
            else:
                log = np.log(sums[g, n] + head.least_work)
            scaled = (log - head.scalar_mean[n]) / head.scalar_scale[n]
            seen[g, n] = min(max(scaled, -head.feature_limit), head.feature_limit)
        # The first amount of work counts shards, so that the rest becomes a mean.
        for n in range(head.scalars, sums.shape[1]):
            seen[g, n] = sums[g, n] / sums[g, head.times]
    out = apply_layers(head.layers, seen)
    ms = np.zeros(len(sums))
    limit = head.device_limit
    for g in range(len(sums)):
        for time in range(head.times):
            ms[g] += np.exp(log_base[g, time] + limit * np.tanh(out[g, time] / limit))
        ms[g] = quantized_one(ms[g])
    return ms


@jit
def slowest_ms(
    backward: ExchangeNetwork, forward: ExchangeNetwork, compute: Floats, widths: Floats, batch: float,
    element_bytes: float,
) -> Floats:  # fmt: skip
    """Return what the slowest device of each plan takes in ms, communication included and quantized.

    Args:
        backward: network.
        forward: network.
        compute: forward plus backward ms of every device, shape (P, D).
        widths: columns of every device, shape (P, D).
        batch: samples over all devices.
        element_bytes: of one value.

    Returns:
        Shape (P,).
    """
    busy = compute.copy()
    if widths.shape[1] > 1:
        busy += _exchange_ms(backward, widths, np.zeros_like(busy), batch, element_bytes)
        offsets = busy.copy()
        for plan in range(len(busy)):
            offsets[plan] -= busy[plan].min()
        busy += _exchange_ms(forward, widths, offsets, batch, element_bytes)
    slowest = np.zeros(len(widths))
    for plan in range(len(busy)):
        slowest[plan] = quantized_one(busy[plan].max())
    return slowest


@jit
def _exchange_ms(net: ExchangeNetwork, widths: Floats, offsets: Floats, batch: float, element_bytes: float) -> Floats:
    """Return what an exchange takes on each device, shape (P, D)."""
    plans, devices = widths.shape
    seen = np.empty((widths.size, len(net.feature_mean)))
    transfer = np.empty(widths.size)
    wait = np.empty(widths.size)
    for plan in range(plans):
        rows = slice(plan * devices, (plan + 1) * devices)
        _inputs(net, widths[plan], offsets[plan], batch, element_bytes, seen[rows], transfer[rows], wait[rows])
    code = np.maximum(apply_layers(net.encoder, seen), 0.0)
    size = code.shape[1]
    context = np.empty((plans, 2 * size))
    for plan in range(plans):
        for n in range(size):
            column = code[plan * devices : (plan + 1) * devices, n]
            context[plan, n] = column.sum() / devices
            context[plan, size + n] = column.max()
    # What all devices of a plan share goes through the first layer once.
    first = net.head.weights[0]
    shared = np.dot(context, first[size:]) + net.head.biases[0]
    out = np.dot(code, first[:size])
    for n in range(len(out)):
        out[n] += shared[n // devices]
    out = apply_later_layers(net.head, out)
    ms = np.empty(widths.shape)
    for n in range(widths.size):
        early = 1 / (1 + np.exp(4.0 - out[n, 1]))
        correction = np.exp(net.limit * np.tanh(out[n, 0] / net.limit))
        ms[n // devices, n % devices] = transfer[n] * correction + wait[n] * (1 - early) + 1e-6
    return ms


@jit
def _inputs(
    net: ExchangeNetwork, widths: Floats, offsets: Floats, batch: float, element_bytes: float, seen: Floats,
    transfer: Floats, wait: Floats,
) -> None:  # fmt: skip
    """Work out standardised features, analytic ms and waits of one plan, as `CommNet.inputs` does."""
    count = len(widths)
    samples = batch / count
    total = widths.sum() * element_bytes
    largest = widths.max() * element_bytes
    wait[:] = offsets.max() - offsets
    longest = wait.max()
    mean_wait = wait.sum() / count
    moved = total * (batch - samples)
    busiest = largest * (batch - samples)
    for d in range(count):
        row_bytes = widths[d] * element_bytes
        sent = row_bytes * (batch - samples)
        received = (total - row_bytes) * samples
        features = (
            np.log(count), np.log(batch), np.log(element_bytes),
            np.log1p(moved), np.log1p(busiest), np.log1p(sent), np.log1p(received),
            row_bytes / max(largest, 1.0), row_bytes * count / max(total, 1.0),
            np.log1p(wait[d]), np.log1p(longest), np.log1p(mean_wait),
            wait[d] / max(longest, 1e-3), 1.0 * (wait[d] < NO_WAIT_MS), 1.0 * (row_bytes == 0),
        )  # fmt: skip
        for n in range(len(features)):
            scaled = (features[n] - net.feature_mean[n]) / net.feature_scale[n]
            seen[d, n] = min(max(scaled, -net.feature_limit), net.feature_limit)
        work = net.ms_per_work
        transfer[d] = work[0] + work[1] * count + work[2] * moved + work[3] * busiest + work[4] * (sent + received)
