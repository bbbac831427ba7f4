"""Exchanges between devices: how much each sends to each, and the link model of the time.

Forward, device d holds pooled values of the whole batch for its shards and owes every peer p the rows of p's samples:
samples[p] x widths[d] elements. Backward, the gradients go the same way in reverse. Row shards hold partial sums, which
are added up by a reduce-scatter; replicas look up their own samples and exchange gradients, see `output_exchange_ms`
and `replica_exchange_ms`.

`exchange_times` says how compute and exchanges add up to a step.

The link model is latency plus bytes over bandwidth, inside a fast domain and between domains apart. The analytic cost
uses it, and so does the measured one where a machine has fewer devices than the task. Links are full duplex and the two
kinds work at the same time, so a device needs as long as the busiest direction of its busier kind of link.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.errors import InputError
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology

#: Loads of a shard or a device, by column. Exchanges take what these say.
#:
#: - columns of tables cut by rows, weighted by the rows of a shard, so that the shards of a table add up to its width:
#:   where all devices exchange their sums, and where one fast domain adds them up first;
#: - bytes of the gradients of what all devices hold, and of the weights and states that the same places of groups hold;
#: - shards that all devices hold, each for its own samples;
#: - ids per sample that come from all devices, columns of pooled output that go to all, and shards in all.
ROW_COLUMNS, DOMAIN_ROW_COLUMNS, REPLICA_BYTES, GROUP_BYTES, REPLICAS, IDS, COLUMNS, SHARDS = range(8)
LOADS = 8


def samples_per_device(batch_size: int, num_devices: int) -> Ints:
    """Split a global batch evenly; the first devices take one sample more when it does not divide, shape (D,)."""
    share, rest = divmod(batch_size, num_devices)
    return np.array([share + (d < rest) for d in range(num_devices)], dtype=np.int64)


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

    Waiting for others counts as communication of those that wait. It depends on whether ids are hidden:

    - Where training goes step by step they are not. A device enters the forward exchange with its ids and its forward
      compute done. All leave it together, when the last one has entered and its link is through, as measured steps do
      (`shardgym.costs.link_model`). The exchange of gradients follows at once; all leave it when the busiest link is
      through, and backward compute ends the step.
    - Where the ids of the next step travel while this one computes, as in TorchRec's pipeline, nobody waits between two
      forward exchanges. A device enters with the exchange of gradients, backward compute and the next forward compute
      done, as all left the last forward exchange together (NeuroShard, `simulator.py`). Each leaves the two exchanges
      when its own link is through, after the last one has entered. The step takes the same if it leaves with the last.

    Args:
        compute_ms: forward and backward compute of each device, of one placement or of many, shape (..., D, 2).
        transfer: what an exchange with aligned start takes in ms, both ways alike, shape (..., D).
        ids_hidden: see above.
        ids_ms: exchange of ids, shape (..., D); None where there is none.
    """
    if ids_ms is None:
        ids_ms = np.zeros(np.shape(transfer))
    forward_ms, backward_ms = compute_ms[..., 0], compute_ms[..., 1]
    if ids_hidden:
        return ExchangeTimes(ids_ms, wait_ms(forward_ms + backward_ms + transfer) + transfer, transfer)
    entry_ms = ids_ms + forward_ms
    last_ms = (entry_ms + transfer).max(axis=-1, keepdims=True)
    busiest_ms = np.broadcast_to(transfer.max(axis=-1, keepdims=True), transfer.shape)
    return ExchangeTimes(ids_ms, last_ms - entry_ms, busiest_ms)


def transfer_ms(topology: Topology, widths: Ints | Floats, batch_size: int, element_bytes: int) -> Floats:
    """Return the time of one all-to-all with aligned start on each device, in ms, shape (..., D).

    Forward and backward take the same time, as the backward exchange swaps what is sent and what is received.
    `widths` are the values of each device's output per sample, of one plan or of many, shape (..., D).
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


def output_exchange_ms(topology: Topology, loads: Floats, batch_size: int, element_bytes: int) -> Floats:
    """Return the time of all exchanges of pooled outputs on each device, in ms, shape (..., D).

    What is whole in its rows goes by an all-to-all. Partial sums of tables cut by rows are added up on the way: by a
    reduce-scatter of all devices; or, of tables that one fast domain holds, by one inside of it, and then an all-to-all
    between the same places of all domains. These exchanges follow each other. The backward pass takes as long, with
    all-gathers in place of reduce-scatters. Loads are those of each device, shape (..., D, LOADS).
    """
    transfer = transfer_ms(topology, loads[..., COLUMNS], batch_size, element_bytes)
    return with_row_exchange_ms(topology, transfer, loads, batch_size * element_bytes)


def reduce_scatter_ms(topology: Topology, num_bytes: Floats) -> Floats:
    """Return the time of a reduce-scatter or an all-gather among all devices, in ms; nothing takes no time.

    A ring passes every device. Each link carries all but one share of the bytes; between domains a ring has the links
    of all devices of a domain, as it is cut into as many rings. `num_bytes`, of any shape, are what each device puts
    in, or gets out of an all-gather.
    """
    devices = topology.num_devices
    domain = topology.fast_domain_size
    bandwidth = topology.intra_bandwidth
    latency_ms = topology.intra_latency_ms
    if domain < devices:
        bandwidth = min(bandwidth if domain > 1 else np.inf, domain * topology.inter_bandwidth)
        latency_ms = topology.inter_latency_ms
    ms = latency_ms + (devices - 1) / devices * num_bytes / bandwidth * 1e3
    return np.where(num_bytes > 0, ms if devices > 1 else 0.0, 0.0)


#: Returns the time of a reduce-scatter among the devices of a topology, by the bytes that each puts in.
ReduceScatter = Callable[[Topology, Floats], Floats]


def with_row_exchange_ms(
    topology: Topology, transfer: Floats, loads: Floats, column_bytes: float,
    reduce_scatter: ReduceScatter = reduce_scatter_ms,
) -> Floats:  # fmt: skip
    """Return the time of an all-to-all, where there is one, and of the exchange of partial sums, in ms, (..., D).

    The all-to-all takes `transfer`, of the same shape. `column_bytes` are those of one column of the whole batch.
    """
    if not loads[..., :IDS].any():
        return transfer
    found = np.where(loads[..., COLUMNS].any(axis=-1, keepdims=True), transfer, 0.0)
    if topology.num_devices > 1 and loads[..., ROW_COLUMNS].any():
        num_bytes = column_bytes * loads[..., ROW_COLUMNS].sum(axis=-1, keepdims=True)
        found = found + np.where(num_bytes > 0, reduce_scatter(topology, num_bytes), 0.0)
    if loads[..., DOMAIN_ROW_COLUMNS].any():
        found = found + _in_two_stages_ms(topology, loads[..., DOMAIN_ROW_COLUMNS], column_bytes, reduce_scatter)
    return np.asarray(found, dtype=np.float64)


def _in_two_stages_ms(
    topology: Topology, columns: Floats, column_bytes: float, reduce_scatter: ReduceScatter
) -> Floats:
    """Return the time of tables that single domains hold by rows, in ms, shape (..., D); `columns` likewise."""
    domain = topology.fast_domain_size
    firsts = np.arange(0, topology.num_devices, domain)
    domains = np.arange(topology.num_devices) // domain
    of_domains = np.add.reduceat(columns, firsts, axis=-1)
    widest_bytes = column_bytes * of_domains.max(axis=-1, keepdims=True)
    inside = reduce_scatter(part_of(topology, domain), widest_bytes)
    share = column_bytes / topology.num_devices  # bytes of a column of one device's samples
    own = of_domains[..., domains]
    received = share * (of_domains.sum(axis=-1, keepdims=True) - own)
    sent = share * own * (len(firsts) - 1)
    between = topology.inter_latency_ms + np.maximum(sent, received) / topology.inter_bandwidth * 1e3
    return np.where(widest_bytes > 0, inside + between, 0.0)


@functools.lru_cache(maxsize=256)  # a record of a thousand devices checks itself for a while
def part_of(topology: Topology, num_devices: int) -> Topology:
    """Return the first devices of a topology, with the links among them."""
    return dataclasses.replace(
        topology,
        num_devices=num_devices,
        memory_bytes=topology.memory_bytes[:num_devices],
        fast_domain_size=min(topology.fast_domain_size, num_devices),
        host_size=None,
    )


@functools.lru_cache(maxsize=256)
def group_of(task: ShardingTask, size: int) -> ShardingTask:
    """Return the task of one group of `size` devices: its share of the samples, and the links among its devices."""
    samples = max(1, task.batch_size * size // task.num_devices)
    return dataclasses.replace(task, topology=part_of(task.topology, size), batch_size=samples, step_memory=None)


def peers_of(topology: Topology, group_size: int) -> Topology:
    """Return the devices that have the same place in every group, as a topology of their own.

    Groups are `group_size` consecutive devices that hold the model together; the peers of device d are d modulo
    `group_size` in every group. All sets of peers exchange at the same time, and do not share links: where groups are
    whole nodes, each peer has its node's links of its own place.

    Raises:
        InputError: groups do not divide the devices, or are neither whole nodes nor equal parts of one.
    """
    devices = topology.num_devices
    domain = topology.fast_domain_size
    if group_size < 1 or devices % group_size:
        raise InputError(f"group_size: expected a divisor of {devices} devices, got {group_size}")
    if group_size % domain and domain % group_size:
        raise InputError(
            f"group_size: expected whole nodes of {domain} devices or equal parts of one, got {group_size}"
        )
    peers = part_of(topology, devices // group_size)
    return dataclasses.replace(peers, fast_domain_size=min(max(domain // group_size, 1), peers.num_devices))


def replica_exchange_ms(topology: Topology, loads: Floats, groups: int, interval: int = 1) -> Floats:
    """Return the time of exchanging what replicas have in common, in ms, shape (..., D).

    Gradients of what all devices hold are all-reduced, densely, as TorchRec's data-parallel tables do. The same places
    of all groups all-reduce their weights and optimiser states, as TorchRec's 2D parallelism does. An all-reduce is a
    reduce-scatter and an all-gather. Loads have shape (..., D, LOADS). There are so many groups of consecutive devices,
    which exchange after so many steps: a step takes its share.
    """
    everywhere = 2 * reduce_scatter_ms(topology, loads[..., REPLICA_BYTES])
    if groups == 1:
        return everywhere
    peers = peers_of(topology, topology.num_devices // groups)
    return everywhere + 2 * reduce_scatter_ms(peers, loads[..., GROUP_BYTES]) / interval


def operators(loads: Floats) -> Ints:
    """Return how many fused operators devices run by their loads, shape (...): one for each way to exchange outputs."""
    special = loads[..., [ROW_COLUMNS, DOMAIN_ROW_COLUMNS, REPLICAS]] > 0
    return np.asarray(special.sum(axis=-1) + (loads[..., COLUMNS] > 0))


class LinkPrices(NamedTuple):
    """The lines whose maximum is `transfer_ms`; optimisers need them piece by piece.

    With row 0 for links inside of a fast domain and row 1 for those between domains, the transfer of device d takes as
    long as the largest of four figures: `latency_ms[k, d] + sent_ms[k, d] * own` and
    `latency_ms[k, d] + received_ms[k, d] * others`. `own` are the device's columns; `others` are those of the rest of
    its domain for k = 0, and those of all other domains for k = 1. All are 0 for links that a device does not use.
    """

    latency_ms: Floats  #: start-up time, shape (2, D)
    sent_ms: Floats  #: per column of the device, shape (2, D)
    received_ms: Floats  #: per column of the others, shape (2, D)
    domains: Ints  #: fast domain of every device, shape (D,)


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
