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
from shardgym.records import CONFIG, Name, Record
from shardgym.topology import Topology

NotNegative = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, config=CONFIG)
class LinkModel(Record):
    """Time of an all-to-all by its bytes; every device has a full-duplex link.

    Nobody is through before the widest device has sent its last byte, so all devices take as long as the widest:
    start-up time, bytes over the rate of its link, and what its core needs to hand the bytes to and from the network.

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

    def exchange_ms(self, topology: Topology, sent_bytes: Ints | Floats) -> Floats:
        """Return the time of exchanges that all devices enter at once, in ms.

        Args:
            topology: devices, and rates and latencies of their links inside a fast domain and between domains.
            sent_bytes: what each device (row) sends to each (column), shape (..., D, D); the diagonal does not count.

        Returns:
            Shape (..., D), the same for all devices of an exchange.
        """
        kinds = wire_bytes(topology, sent_bytes)
        rates = (topology.intra_bandwidth, topology.inter_bandwidth)
        latencies = (topology.intra_latency_ms, topology.inter_latency_ms)
        wire_ms = np.zeros(sent_bytes.shape[:-1])
        start_ms = self.start_ms + self.peer_ms * (topology.num_devices - 1)
        for payload, rate, latency_ms in zip(kinds, rates, latencies, strict=True):
            used = np.any(payload, axis=(-2, -1), keepdims=True)[..., 0]
            wire_ms = np.maximum(wire_ms, used * latency_ms + self.wire_factor * 1e3 / rate * payload.max(axis=-1))
        host_ms = self.host_ns_per_byte / 1e6 * sum(payload.sum(axis=-1) for payload in kinds)
        slowest = (wire_ms + host_ms).max(axis=-1, keepdims=True)
        return np.asarray(np.broadcast_to(start_ms + slowest, sent_bytes.shape[:-1]), dtype=np.float64)


def wire_bytes(topology: Topology, sent_bytes: Ints | Floats) -> tuple[Floats, Floats]:
    """Return the bytes that each device sends and receives inside its domain, and between domains.

    Args:
        topology: says which devices are in one domain.
        sent_bytes: as for `LinkModel.exchange_ms`.

    Returns:
        Each of shape (..., D, 2).
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
