"""All-to-alls between GPUs, of pooled embeddings and of ids: what links really carry, and what small messages cost.

GPUs of one domain exchange over NVLink through a switch, all pairs at once; GPUs of different domains over one network
card each. Both kinds of link work at the same time, each GPU takes as long as the busier direction of its busier link
(`shardgym.costs.links`). To that come three things that collectives were measured to have:

- links carry a share of what their data sheets say;
- an exchange takes a start-up time, however small it is;
- from small to large messages NCCL changes its protocol, which costs a ramp: with messages of `ramp_bytes` to each
  peer, half of it.

So an exchange of `(floor + ramp) * bandwidth` bytes is half as fast as a large one. All constants but `ramp_bytes` are
fitted to published collectives by `python benchmarks/published_gpu/run.py --fit`.

Between nodes there are two ways. *Flat*, every GPU sends to every other one. In *two steps*, GPUs of a node first hand
each other what is for peers of the same place in other nodes; then each place has an exchange of its own over the
network (as hierarchical all-to-alls do, and NCCL's PXN for single messages). Messages between nodes are fewer and
larger, the GPUs of a node share its network cards evenly, and what leaves the node crosses NVLink once more.

Ids go before the forward pass. Each device holds the ids of its samples, and each shard needs those of all samples.
TorchRec's `KJTAllToAll` (torchrec/distributed/dist_data.py) sends them in three collectives: how much will come, the
lengths of bags, the ids. Every piece of a table that is cut by columns gets all of its ids. Of one that is cut by rows,
each id goes to one piece and the lengths go to all. A device takes as long as its busier link takes to receive. What it
sends are the ids of its own samples, about as much as all others do, so sending holds up no device that has its share
of the ids.

Where a task sends ids without repeats, each device sends every distinct id of its own samples once per table. Of
unpooled tables rows come back without repeats as well. Of pooled ones, which TorchRec does not do, it sends the
position of each lookup's id besides, by which the holder pools bags; lookups and pooled values stay as they are. What
is published of it, 14 % and 26 % of a step, is of unpooled tables. Finding distinct ids, and repeating rows where they
are needed, is not counted: it is the same for all plans.
"""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.gpu.cards import Card
from shardgym.costs.gpu.kernels import ID_BYTES
from shardgym.costs.links import IDS, REPLICAS, SHARDS, samples_per_device, transfer_ms
from shardgym.errors import InputError
from shardgym.tasks.topology import Topology

#: How an all-to-all goes between nodes.
Algorithm = Literal["flat", "two_step"]
#: Precision of pooled values and of their gradients in exchanges: the task's, or at most FP16.
Wire = Literal["task", "fp16"]
#: Of ids: splits, lengths and ids.
_COLLECTIVES = 3


@dataclass(frozen=True)
class LinkConstants:
    """What all links share."""

    fast_share: float = 0.712  #: of NVLink's bandwidth that an all-to-all gets
    slow_share: float = 0.916  #: likewise of a network card's
    fast_floor_us: float = 15.5  #: start-up time inside of a domain
    slow_floor_us: float = 30.5  #: start-up time between domains
    ramp_us: float = 12.3  #: extra cost of large messages
    ramp_bytes: float = 65536.0  #: to each peer, with which half of the ramp is paid


LINKS = LinkConstants()


def topology_of(card: Card, num_devices: int) -> Topology:
    """Return servers of a card with links of their data sheets, and start-up times as measured."""
    return Topology(
        num_devices=num_devices, memory_bytes=(1,) * num_devices, fast_domain_size=min(card.domain_size, num_devices),
        intra_bandwidth=card.nvlink, inter_bandwidth=card.nic,
        intra_latency_ms=LINKS.fast_floor_us * 1e-3, inter_latency_ms=LINKS.slow_floor_us * 1e-3,
    )  # fmt: skip


def sheet_topology(card: Card | None, topology: Topology) -> Topology:
    """Return the devices of a task with links as data sheets have them: those of a card, or of the task's topology.

    Where the task has several nodes of one size, plans cut tables and form groups by them, so they stay nodes with a
    card's links as well. A card whose fast links fewer devices share is refused.
    """
    if card is None:
        return topology
    links = topology_of(card, topology.num_devices)
    size = topology.fast_domain_size
    if not 1 < size < topology.num_devices or topology.num_devices % size:
        return links
    if links.fast_domain_size < size:
        raise InputError(
            f"hardware of cost 'gpu': fast links join {links.fast_domain_size} of these cards, but the task's nodes "
            f"have {size} devices: price a task with nodes of that card"
        )
    return dataclasses.replace(links, fast_domain_size=size)


@functools.lru_cache(maxsize=256)
def exchange_topology(card: Card | None, topology: Topology) -> Topology:
    """Return what a task's exchanges are priced with: those links, as all-to-alls were measured to use them."""
    links = sheet_topology(card, topology)
    return dataclasses.replace(
        links,
        intra_bandwidth=links.intra_bandwidth * LINKS.fast_share,
        inter_bandwidth=links.inter_bandwidth * LINKS.slow_share,
    )


def exchange_ms(topology: Topology, widths: Floats, batch_size: int, element_bytes: int) -> Floats:
    """Return the time of one all-to-all with aligned start on each device, in ms, shape (..., D).

    The topology is as `exchange_topology` returns it; other arguments are as `links.transfer_ms`.
    """
    if topology.num_devices == 1:
        return np.zeros_like(widths)
    samples = float(samples_per_device(batch_size, topology.num_devices)[0])
    message = widths.mean(axis=-1, keepdims=True) * samples * element_bytes
    return transfer_ms(topology, widths, batch_size, element_bytes) + ramp_ms(message)


def two_step_ms(topology: Topology, widths: Floats, batch_size: int, element_bytes: int) -> Floats:
    """Return the same for an all-to-all in two steps, inside of nodes and then between them, shape (..., D).

    The second step starts on a node when the first one has ended on all of its devices. With one node, or with one
    device in each, there is one step, and the time is that of `exchange_ms`; arguments as there. Nodes of different
    sizes are refused.
    """
    devices = topology.num_devices
    domain = topology.fast_domain_size
    if domain in (1, devices):
        return exchange_ms(topology, widths, batch_size, element_bytes)
    if devices % domain:
        raise InputError(
            f"exchange='two_step' needs nodes of equal size, but {devices} devices are not a multiple of {domain}: use "
            "exchange='flat'"
        )
    nodes = devices // domain
    # Bytes of one column of the samples of one device.
    column_bytes = batch_size / devices * element_bytes
    inside = widths.reshape(*widths.shape[:-1], nodes, domain)
    of_node = inside.sum(axis=-1, keepdims=True)
    # Inside: each peer gets the samples of its place in all nodes, of the columns of this device.
    message = column_bytes * nodes * widths.mean(axis=-1, keepdims=True)
    sent = column_bytes * nodes * np.maximum((domain - 1) * inside, of_node - inside)
    first = topology.intra_latency_ms + sent.max(axis=-1) / topology.intra_bandwidth * 1e3 + ramp_ms(message)
    # Between: each peer gets its own samples, of the columns of the whole node.
    total = of_node.sum(axis=-2, keepdims=True)
    sent = column_bytes * np.maximum((nodes - 1) * of_node, total - of_node)[..., 0]
    message = column_bytes * domain * widths.mean(axis=-1, keepdims=True)
    second = topology.inter_latency_ms + sent / topology.inter_bandwidth * 1e3 + ramp_ms(message)
    return np.repeat(first + second, domain, axis=-1)


def ramp_ms(message_bytes: Floats, links: LinkConstants = LINKS) -> Floats:
    """Return what an exchange costs beyond floor and bandwidth, in ms, by the bytes that go to each peer."""
    return np.asarray(links.ramp_us * 1e-3 * message_bytes / (message_bytes + links.ramp_bytes), dtype=np.float64)


def id_exchange_ms(topology: Topology, loads: Floats, batch_size: int) -> Floats:
    """Return what each device takes to receive lengths and ids, in ms, shape (..., D).

    Ids of replicas stay where they are; a device that holds nothing else takes none. The topology is as
    `exchange_topology` returns it; loads are those of each device, shape (..., D, LOADS).
    """
    devices = topology.num_devices
    domain = topology.fast_domain_size
    # Bytes from each peer.
    shards = loads[..., SHARDS] - loads[..., REPLICAS]
    lengths = shards * batch_size * ID_BYTES / devices
    ids = loads[..., IDS] * batch_size * ID_BYTES / devices
    busier_ms = np.zeros_like(ids)
    if domain > 1:
        fast_ms = (domain - 1) * (lengths + ids) / topology.intra_bandwidth * 1e3
        busier_ms = _COLLECTIVES * topology.intra_latency_ms + fast_ms
    if devices > domain:
        slow_ms = (devices - domain) * (lengths + ids) / topology.inter_bandwidth * 1e3
        busier_ms = np.maximum(busier_ms, _COLLECTIVES * topology.inter_latency_ms + slow_ms)
    receives = (shards > 0) & (devices > 1)
    return np.where(receives, busier_ms + ramp_ms(lengths) + ramp_ms(ids), 0.0)
