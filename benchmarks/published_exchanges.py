"""What the GPU model says of published exchanges: who sends what over which links, and how long that takes."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from published_rows import NotPredicted, Row

from shardgym.costs.gpu.exchange import LinkConstants, ramp_ms

#: Links by what rows say of the GPU: NVLink and network card, 10**9 bytes per second of each GPU and direction, by the
#: data sheets. 0 where a source does not say: then the rate follows from its largest message, which is not counted.
_LINKS = (
    (r"GB300", 900, 100),
    (r"B200", 900, 50),
    (r"H20-3e", 450, 0),
    (r"H800", 200, 50),
    (r"RTX 6000D", 63, 0),
    (r"H200|H100", 450, 50),
    (r"EFA", 450, 50),
    (r"A100", 300, 25),
    (r"V100", 150, 12.5),
    (r"2080 Ti", 15.75, 1.25),
)
#: Bytes that DeepEP's low-latency kernels send per GPU at one byte per value: tokens x experts x width.
_DEEPEP_BYTES = 128 * 8 * 7168
_DEEPEP_DOMAIN = 8


@dataclass(frozen=True)
class Exchange:
    """Bytes that each GPU sends in an exchange.

    Attributes:
        fast: over NVLink.
        slow: over the network.
        message: to each peer.
        busbw: bytes that count for the bandwidth that a source prints.
    """

    fast: float
    slow: float
    message: float
    busbw: float


@functools.lru_cache(maxsize=1024)
def exchange_of(row: Row) -> Exchange:
    """Return what GPUs send; raises `NotPredicted` where that is not known."""
    if row.op.startswith(("DeepEP V1 dispatch", "DeepEP V1 combine")):
        peak = 1e12  # a bandwidth: of so large a message
        return Exchange(peak, 0.0, peak, peak) if row.ranks <= _DEEPEP_DOMAIN else Exchange(0.0, peak, peak, peak)
    if row.op.startswith("p2p"):  # without peer access the copy goes over the host: up and down
        return Exchange(2e12, 0.0, 1e12, 1e12)
    ranks = row.ranks
    domain = row.domain
    size = row.message_bytes or 1e12
    if "low-latency" in row.op:
        domain = min(_DEEPEP_DOMAIN, ranks)
        size = float(_DEEPEP_BYTES * row.element_bytes)
    if row.op.startswith("ib_write"):
        return Exchange(0.0, size, size, size)
    if row.op.startswith("sendrecv"):
        return Exchange(size, 0.0, size, size)
    others = size * (ranks - 1) / ranks
    if row.op.startswith("all_reduce"):
        return Exchange(2 * others, 0.0, size / ranks, 2 * others)
    return Exchange(size * (domain - 1) / ranks, size * (ranks - domain) / ranks, size / ranks, others)


@functools.lru_cache(maxsize=1024)
def rates_of(row: Row) -> tuple[float, float]:
    """Return NVLink's and the network card's bandwidth in bytes per second; `NotPredicted` where nothing is known."""
    found = next(((fast, slow) for pattern, fast, slow in _LINKS if re.search(pattern, row.gpu)), None)
    if found is None:
        raise NotPredicted("nothing is known of its links")
    cards = row.domain if "1 HCA only" in row.note else 1
    return found[0] * 1e9, found[1] * 1e9 / cards


def exchange_us(row: Row, rows: Sequence[Row], links: LinkConstants) -> float:
    """Return the time of an exchange in us.

    Args:
        row: of the exchange.
        rows: all rows; where a source does not say how fast its network is, its largest exchange does.
        links: constants.

    Raises:
        NotPredicted: the row itself is that, or nothing is known of its links.
    """
    fast, slow = rates_of(row)
    sent = exchange_of(row)
    if not slow and sent.slow:
        largest = max((r for r in rows if r.source == row.source), key=lambda r: exchange_of(r).message)
        if row is largest:
            raise NotPredicted("taken for the bandwidth of the network, which the source does not say")
        of_largest = exchange_of(largest)
        fixed_us = links.slow_floor_us + 1e3 * float(ramp_ms(np.float64(of_largest.message), links))
        slow = of_largest.slow / (largest.time_us - fixed_us) * 1e6 / links.slow_share
    times = [
        floor + 1e6 * sent_bytes / (bandwidth * share)
        for floor, sent_bytes, bandwidth, share in (
            (links.fast_floor_us, sent.fast, fast, links.fast_share),
            (links.slow_floor_us, sent.slow, slow, links.slow_share),
        )
        if sent_bytes
    ]
    return max(times) + 1e3 * float(ramp_ms(np.float64(sent.message), links))
