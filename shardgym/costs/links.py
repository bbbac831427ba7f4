"""The all-to-all of pooled embeddings: how much each device sends to each, and the link model of the time.

Forward, device d holds pooled values of the whole batch for its shards and owes every peer p the rows of p's samples:
samples[p] x widths[d] elements. Backward, the gradients go the same way in reverse. Sum pooling lets row shards send
partial sums, so a row shard counts with its full width on each device that holds one.

`exchange_times` says how compute and exchanges add up to a step.

The link model is latency plus bytes over bandwidth, inside a fast domain and between domains apart. The analytic cost
uses it, and so does the measured one where a machine has fewer devices than the task. Links are full duplex and the two
kinds work at the same time, so a device needs as long as the busiest direction of its busier kind of link.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.plan_cost import Source
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask
from shardgym.topology import Topology

#: Loads of a shard or a device, by column: ids per sample, columns of its pooled output, shards. Exchanges take what
#: these say.
IDS, COLUMNS, SHARDS = range(3)
LOADS = 3


def pooled_widths(task: ShardingTask, plan: ShardingPlan) -> Ints:
    """Return the columns of each device's pooled output: the summed widths of its shards, shape (D,)."""
    return np.array([sum(s.num_columns for s in plan.on(d)) for d in range(task.num_devices)], dtype=np.int64)


def samples_per_device(batch_size: int, num_devices: int) -> Ints:
    """Split a global batch evenly; the first devices take one sample more when it does not divide, shape (D,)."""
    share, rest = divmod(batch_size, num_devices)
    return np.array([share + (d < rest) for d in range(num_devices)], dtype=np.int64)


def start_offsets(busy_ms: Floats) -> Floats:
    """Return how much later than the first each device is ready for the forward exchange, in ms, shape (..., D).

    Args:
        busy_ms: time of each device from a moment that all share until it is ready, shape (..., D); see
            `exchange_times`.
    """
    return np.asarray(busy_ms - busy_ms.min(axis=-1, keepdims=True), dtype=np.float64)


def wait_ms(busy_ms: Floats) -> Floats:
    """Return how long each device waits in the forward exchange for the last one to enter it, in ms, shape (..., D)."""
    return np.asarray(busy_ms.max(axis=-1, keepdims=True) - busy_ms, dtype=np.float64)


class ExchangeTimes(NamedTuple):
    """Communication of devices in ms, the wait for the last one included, each of shape (..., D)."""

    ids_ms: Floats
    forward_ms: Floats
    backward_ms: Floats


def exchange_times(
    compute_ms: Floats, transfer: Floats, *, ids_hidden: bool, ids_ms: Floats | None = None
) -> ExchangeTimes:
    """Return the time of each device in the exchanges of a step: how compute and exchanges add up.

    The forward exchange runs once all devices have entered it, and the wait for the last one counts as communication of
    those that wait. When a device enters depends on whether ids are hidden:

    - Where training goes step by step they are not. A device enters with its ids and its forward compute done. The
      exchange of gradients follows at once, and backward compute ends the step. So imbalance before the forward
      exchange and imbalance of backward compute add up.
    - Where the ids of the next step travel while this one computes, as in TorchRec's pipeline, nobody waits between two
      forward exchanges. A device enters with the exchange of gradients, backward compute and the next forward compute
      done, as all left the last forward exchange together (NeuroShard, `simulator.py`).

    Args:
        compute_ms: forward and backward compute of each device, of one placement or of many, shape (..., D, 2).
        transfer: what an exchange with aligned start takes in ms, both ways alike, shape (..., D).
        ids_hidden: see above.
        ids_ms: exchange of ids, shape (..., D); None where there is none.
    """
    if ids_ms is None:
        ids_ms = np.zeros(np.shape(transfer))
    forward_ms, backward_ms = compute_ms[..., 0], compute_ms[..., 1]
    busy_ms = forward_ms + backward_ms + transfer if ids_hidden else ids_ms + forward_ms
    return ExchangeTimes(ids_ms, wait_ms(busy_ms) + transfer, transfer)


def transfer_ms(topology: Topology, widths: Ints | Floats, batch_size: int, element_bytes: int) -> Floats:
    """Return the time of one all-to-all with aligned start on each device, in ms, shape (..., D).

    Forward and backward take the same time, as the backward exchange swaps what is sent and what is received.

    Args:
        topology: devices and links.
        widths: columns of each device's pooled output, of one plan or of many, shape (..., D).
        batch_size: samples over all devices.
        element_bytes: bytes of one value.
    """
    prices = link_prices(topology, batch_size, element_bytes)
    total = widths.sum(axis=-1, keepdims=True)

    def busier_direction_ms(kind: int, others: Ints | Floats) -> Floats:
        received_ms = prices.received_ms[kind] * others
        return np.asarray(prices.latency_ms[kind] + np.maximum(prices.sent_ms[kind] * widths, received_ms))

    # Most machines are one domain, and searches ask about one plan at a time: then half of the arithmetic is enough.
    if topology.fast_domain_size >= topology.num_devices:
        return busier_direction_ms(0, total - widths)
    firsts = np.arange(0, topology.num_devices, topology.fast_domain_size)
    inside = np.add.reduceat(widths, firsts, axis=-1)[..., prices.domains]
    return np.maximum(busier_direction_ms(0, inside - widths), busier_direction_ms(1, total - inside))


class LinkPrices(NamedTuple):
    """The lines whose maximum is `transfer_ms`; optimisers need them piece by piece.

    With row 0 for links inside of a fast domain and row 1 for those between domains, the transfer of device d takes as
    long as the largest of four figures: `latency_ms[k, d] + sent_ms[k, d] * own` and
    `latency_ms[k, d] + received_ms[k, d] * others`. `own` are the device's columns; `others` are those of the rest of
    its domain for k = 0, and those of all other domains for k = 1. All are 0 for links that a device does not use.

    Attributes:
        latency_ms: start-up time, shape (2, D).
        sent_ms: per column of the device, shape (2, D).
        received_ms: per column of the others, shape (2, D).
        domains: fast domain of every device, shape (D,).
    """

    latency_ms: Floats
    sent_ms: Floats
    received_ms: Floats
    domains: Ints


@functools.lru_cache(maxsize=256)  # searches ask about one plan at a time
def link_prices(topology: Topology, batch_size: int, element_bytes: int) -> LinkPrices:
    """Return the link model of `transfer_ms` as lines; arguments as there."""
    devices = topology.num_devices
    domains = np.arange(devices) // topology.fast_domain_size
    samples = samples_per_device(batch_size, devices)
    in_domain = np.bincount(domains, weights=samples)[domains]
    used = np.array([np.bincount(domains)[domains] > 1, np.full(devices, topology.fast_domain_size < devices)])
    column_ms = np.array([[element_bytes / topology.intra_bandwidth], [element_bytes / topology.inter_bandwidth]]) * 1e3
    latency_ms = used * np.array([[topology.intra_latency_ms], [topology.inter_latency_ms]])
    sent_ms = used * column_ms * np.array([in_domain - samples, batch_size - in_domain])
    return LinkPrices(latency_ms, sent_ms, used * column_ms * samples, domains)


#: Has the default links.
_DEFAULT = Topology(num_devices=1, memory_bytes=(1,))
_LINKS = ("interconnect", "intra_bandwidth", "inter_bandwidth", "intra_latency_ms", "inter_latency_ms")


def link_notes(task: ShardingTask, communication: Source, hardware: str) -> tuple[str, ...]:
    """Return a note if exchanges were measured or predicted and the task's topology has links that are not the default.

    Args:
        task: its topology describes links, which only modelled communication uses.
        communication: source of the communication times.
        hardware: tag of the machine on which exchanges were measured.
    """
    topology = task.topology
    same = all(getattr(topology, name) == getattr(_DEFAULT, name) for name in _LINKS)
    is_default = same and topology.fast_domain_size == topology.num_devices
    if communication == "modelled" or task.num_devices == 1 or is_default:
        return ()
    name = topology.interconnect
    return (f"{communication} communication is that of {hardware}: the task's links ('{name}') play no part",)
