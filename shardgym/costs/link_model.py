"""What an all-to-all takes where every device has a link of its own: a model fitted to real exchanges.

Processes on few cores cannot show it: over the loopback interface all of them share the cores that copy their bytes. So
`tools/fit_link_model.py` gives each process a network namespace with a link of a known rate, times gloo's
all-to-alls there, and fits what the rate does not explain.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.arrays import Floats, Ints
from shardgym.costs.links import ExchangeTimes, link_prices, samples_per_device, start_offsets
from shardgym.records import CONFIG, Name, Record
from shardgym.task import ELEMENT_BYTES, ShardingTask
from shardgym.topology import Topology

NotNegative = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, config=CONFIG)
class LinkModel(Record):
    """Time of an all-to-all by its bytes; every device has a full-duplex link.

    A device is through when it has taken in what is for it and every sender's last byte has left. Sending takes the
    bytes over the rate of the link, and what the core needs to hand them to the network; receiving likewise. So of
    devices that start together, all take about as long as the widest one. A wide device that starts before the others
    has sent much of it when they come.

    Attributes:
        start_ms: start-up time of an exchange.
        peer_ms: start-up time for every other device.
        wire_factor: bytes on the wire for each byte of payload, in the busier direction.
        host_ns_per_byte: time of a core for each byte that it sends or receives.
        hardware: tag of the machine it was fitted on.
        error: median relative error of the fit.
        exchanges: how many exchanges it was fitted to.
    """

    start_ms: NotNegative
    peer_ms: NotNegative
    wire_factor: NotNegative
    host_ns_per_byte: NotNegative
    hardware: Name
    error: NotNegative
    exchanges: int
    schema: Literal["shardgym.link_model/1"] = "shardgym.link_model/1"

    def exit_ms(self, topology: Topology, entry_ms: Floats, sent_bytes: Ints | Floats) -> Floats:
        """Return when each device is through with an exchange, in ms, shape (D,).

        Args:
            topology: devices, and rates and latencies of their links inside a fast domain and between domains.
            entry_ms: when each device begins, shape (D,).
            sent_bytes: what each device (row) sends to each (column), shape (D, D); the diagonal does not count.
        """
        busy_ms = np.zeros((topology.num_devices, 2))
        host_bytes = np.zeros(topology.num_devices)
        latency_ms = 0.0
        rates = (topology.intra_bandwidth, topology.inter_bandwidth)
        latencies = (topology.intra_latency_ms, topology.inter_latency_ms)
        for payload, rate, latency in zip(wire_bytes(topology, sent_bytes), rates, latencies, strict=True):
            if payload.any():
                latency_ms = max(latency_ms, latency)
            busy_ms = np.maximum(busy_ms, self.wire_factor * 1e3 / rate * payload)
            host_bytes += payload.sum(axis=1)
        through_ms = entry_ms[:, None] + busy_ms + self.host_ns_per_byte / 1e6 * host_bytes[:, None]
        sends = (np.asarray(sent_bytes) > 0) | np.eye(topology.num_devices, dtype=bool)
        last_byte_ms = np.where(sends, through_ms[:, :1], -np.inf).max(axis=0)
        start_ms = self.start_ms + self.peer_ms * (topology.num_devices - 1) + latency_ms
        return np.asarray(start_ms + np.maximum(last_byte_ms, through_ms[:, 1]), dtype=np.float64)

    def exchange_times(self, task: ShardingTask, compute_ms: Floats, widths: Ints | Floats) -> ExchangeTimes:
        """Return the time of each device in the exchanges of pooled values and of their gradients.

        The same as `shardgym.costs.links.exchange_times`, at the prices of this model. As in version 2 of the measured
        cost, all devices enter the exchange of gradients together, and that of pooled values when they have computed.

        Args:
            task: its topology names latencies and bandwidths.
            compute_ms: forward plus backward compute of each device, of one placement or of many, shape (..., D).
            widths: columns of each device's pooled output, shape (..., D).

        Returns:
            All 0 on one device, which exchanges nothing.
        """
        none = np.zeros_like(compute_ms, dtype=np.float64)
        if task.num_devices == 1:
            return ExchangeTimes(none, none, none)
        backward_ms = self._pooled_exit_ms(task, none, widths, backward=True)
        ready_ms = compute_ms + backward_ms
        forward_ms = self._pooled_exit_ms(task, ready_ms, widths, backward=False) - ready_ms
        return ExchangeTimes(forward_ms, backward_ms, start_offsets(ready_ms))

    def _pooled_exit_ms(self, task: ShardingTask, entry_ms: Floats, widths: Ints | Floats, *, backward: bool) -> Floats:
        """Return what `exit_ms` says of an exchange of pooled values or gradients, of many placements at once.

        Args:
            task: batch, precision and topology.
            entry_ms: when each device begins, shape (..., D).
            widths: columns of each device's pooled output, shape (..., D).
            backward: gradients go back to where the pooled values came from.
        """
        topology = task.topology
        item = ELEMENT_BYTES[task.precision]
        prices = link_prices(topology, task.batch_size, item)
        samples = samples_per_device(task.batch_size, task.num_devices)
        total = widths.sum(axis=-1, keepdims=True)
        firsts = np.arange(0, topology.num_devices, topology.fast_domain_size)
        inside = np.add.reduceat(widths, firsts, axis=-1)[..., prices.domains]
        out_ms = np.zeros(np.shape(widths))
        in_ms = np.zeros(np.shape(widths))
        latency_ms = np.zeros(np.shape(total))
        kinds = ((inside - widths, topology.intra_latency_ms), (total - inside, topology.inter_latency_ms))
        for kind, (others, latency) in enumerate(kinds):
            from_others_ms = prices.received_ms[kind] * others
            in_ms = np.maximum(in_ms, self.wire_factor * from_others_ms)
            out_ms = np.maximum(out_ms, self.wire_factor * prices.sent_ms[kind] * widths)
            latency_ms = np.maximum(latency_ms, latency * (from_others_ms > 0).any(axis=-1, keepdims=True))
        host_bytes = item * (widths * (task.batch_size - samples) + samples * (total - widths))
        host_ms = self.host_ns_per_byte / 1e6 * host_bytes
        # Forward, devices with columns send to those with samples; backward, those with samples to those with columns.
        sends = samples > 0 if backward else widths > 0
        takes = widths > 0 if backward else samples > 0
        sent_ms = entry_ms + host_ms + (in_ms if backward else out_ms)
        received_ms = entry_ms + host_ms + (out_ms if backward else in_ms)
        last_ms = np.where(sends, sent_ms, -np.inf).max(axis=-1, keepdims=True)
        last_byte_ms = np.where(takes, np.maximum(sent_ms, last_ms), sent_ms)
        start_ms = self.start_ms + self.peer_ms * (task.num_devices - 1) + latency_ms
        return np.asarray(start_ms + np.maximum(last_byte_ms, received_ms), dtype=np.float64)


def wire_bytes(topology: Topology, sent_bytes: Ints | Floats) -> tuple[Floats, Floats]:
    """Return the bytes that each device sends and receives inside its domain, and between domains.

    Args:
        topology: says which devices are in one domain.
        sent_bytes: as for `LinkModel.exit_ms`.

    Returns:
        Bytes sent and received, each of shape (D, 2).
    """
    domains = np.arange(topology.num_devices) // topology.fast_domain_size
    same = domains[:, None] == domains
    kinds = []
    for counted in (same & ~np.eye(len(domains), dtype=bool), ~same):
        payload = np.where(counted, sent_bytes, 0)
        kinds.append(np.stack([payload.sum(axis=-1), payload.sum(axis=-2)], axis=-1).astype(np.float64))
    return kinds[0], kinds[1]


@functools.cache
def shipped_model() -> LinkModel:
    """Return the model that comes with the package."""
    return LinkModel.load(Path(__file__).with_name("link_model.json"))


def model_fitted_on(hardware: str) -> LinkModel | None:
    """Return the model that was fitted on hardware of a tag; None when none ships for it."""
    return shipped_model() if shipped_model().hardware == hardware else None
