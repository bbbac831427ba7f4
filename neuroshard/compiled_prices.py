"""Prices of one task in compiled code, for simulators: devices and exchanges by networks, or exchanges over links.

Mirrors `shardgym.costs.simulator.predictor.AdditivePredictor` and `shardgym.costs.link_model.LinkModel.exchange_times`,
where the models are explained.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neuroshard.compiled_predictor import compute_head_of, exchange_network_of, head_ms, quantized_one, slowest_ms
from neuroshard.device_sets import AdditivePrices
from neuroshard.jit import jit
from neuroshard.shard_table import ShardTable
from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.link_model import LinkModel
from shardgym.costs.links import link_prices, samples_per_device
from shardgym.costs.simulator.predictor import AdditivePredictor
from shardgym.task import ELEMENT_BYTES, ShardingTask


class CompiledPrices(AdditivePrices):
    """The same prices; for the few devices of a call, NumPy takes several times as long.

    Exchanges are predicted by networks or follow a fitted link model, as the weights say. With weights that have
    neither they are modelled by latency and rate, which is left to NumPy.

    Args:
        shards: of the task.
        costs: of an oracle of the simulator.

    Attributes:
        head: of the compute network.

    Raises:
        InputError: `costs` knows no tasks of this kind.
    """

    def __init__(self, shards: ShardTable, costs: AdditivePredictor) -> None:
        super().__init__(shards, costs)
        task = shards.task
        links = costs.weights.links
        self.head = compute_head_of(costs.networks.best)
        self._exchanges = {name: exchange_network_of(params) for name, params in costs.networks.comm.items()}
        self._links = None if links is None else link_arrays_of(links, task)
        self._batch_and_bytes = float(task.batch_size), float(ELEMENT_BYTES[task.precision])

    def compute_ms(self, sums: Floats, counts: Ints) -> Floats:
        """See `AdditivePrices`."""
        busy = counts > 0
        ms = np.zeros(busy.shape)
        ms[busy] = head_ms(self.head, np.ascontiguousarray(sums[busy]))
        return ms

    def slowest_ms(self, compute: Floats, widths: Floats) -> Floats:
        """See `AdditivePrices`."""
        if self._links is not None:
            return slowest_ms_over_links(self._links, compute, widths)
        if self._exchanges:
            networks = self._exchanges["backward"], self._exchanges["forward"]
            return slowest_ms(*networks, compute, widths, *self._batch_and_bytes)
        return super().slowest_ms(compute, widths)


class LinkArrays(NamedTuple):
    """Prices of the exchanges of one task; row 0 of pairs is for links inside of a domain, row 1 for those between.

    Attributes:
        sent_ms: on the wire per column of the device, shape (2, D).
        received_ms: on the wire per column of the others, shape (2, D).
        host_sent_ms: of the core per column of the device, shape (D,).
        host_received_ms: of the core per column of the others, shape (D,).
        latency_ms: of an exchange with anything on these links, shape (2,).
        start_ms: of every exchange.
        domains: fast domain of every device, shape (D,).
        has_samples: whether a device has samples of the batch, shape (D,).
    """

    sent_ms: Floats
    received_ms: Floats
    host_sent_ms: Floats
    host_received_ms: Floats
    latency_ms: Floats
    start_ms: float
    domains: Ints
    has_samples: Bools


def link_arrays_of(links: LinkModel, task: ShardingTask) -> LinkArrays:
    """Return the prices of a task's exchanges."""
    topology = task.topology
    item = ELEMENT_BYTES[task.precision]
    prices = link_prices(topology, task.batch_size, item)
    samples = samples_per_device(task.batch_size, task.num_devices)
    host_ms = links.host_ns_per_byte / 1e6 * item
    return LinkArrays(
        sent_ms=links.wire_factor * prices.sent_ms,
        received_ms=links.wire_factor * prices.received_ms,
        host_sent_ms=np.asarray(host_ms * (task.batch_size - samples), dtype=np.float64),
        host_received_ms=np.asarray(host_ms * samples, dtype=np.float64),
        latency_ms=np.array([topology.intra_latency_ms, topology.inter_latency_ms]),
        start_ms=links.start_ms + links.peer_ms * (task.num_devices - 1),
        domains=prices.domains,
        has_samples=samples > 0,
    )


@jit
def slowest_ms_over_links(links: LinkArrays, compute: Floats, widths: Floats) -> Floats:
    """Return what the slowest device of each plan takes in ms, communication included.

    Args:
        links: of the task.
        compute: forward plus backward ms of every device, shape (P, D).
        widths: columns of every device, shape (P, D).

    Returns:
        Quantized, shape (P,).
    """
    plans, devices = widths.shape
    slowest = np.zeros(plans)
    clocks = np.empty(devices)
    for plan in range(plans):
        clocks[:] = 0.0
        if devices > 1:
            _exchange(links, widths[plan], clocks, True)
        clocks += compute[plan]
        if devices > 1:
            _exchange(links, widths[plan], clocks, False)
        slowest[plan] = quantized_one(clocks.max())
    return slowest


@jit
def _exchange(links: LinkArrays, widths: Floats, clocks: Floats, backward: bool) -> None:
    """Move the clocks of all devices from where they enter an exchange to where they are through with it."""
    devices = len(widths)
    inside = np.zeros(devices)  # by domain
    for d in range(devices):
        inside[links.domains[d]] += widths[d]
    total = widths.sum()
    sent = np.empty(devices)
    received = np.empty(devices)
    latency = 0.0
    last = -np.inf
    for d in range(devices):
        out_ms = 0.0
        in_ms = 0.0
        for kind in range(2):
            others = inside[links.domains[d]] - widths[d] if kind == 0 else total - inside[links.domains[d]]
            out_ms = max(out_ms, links.sent_ms[kind, d] * widths[d])
            from_others_ms = links.received_ms[kind, d] * others
            in_ms = max(in_ms, from_others_ms)
            if from_others_ms > 0:
                latency = max(latency, links.latency_ms[kind])
        entered = clocks[d] + links.host_sent_ms[d] * widths[d] + links.host_received_ms[d] * (total - widths[d])
        sent[d] = entered + (in_ms if backward else out_ms)
        received[d] = entered + (out_ms if backward else in_ms)
        if links.has_samples[d] if backward else widths[d] > 0:
            last = max(last, sent[d])
    for d in range(devices):
        takes = widths[d] > 0 if backward else links.has_samples[d]
        last_byte = max(sent[d], last) if takes else sent[d]
        clocks[d] = links.start_ms + latency + max(last_byte, received[d])
