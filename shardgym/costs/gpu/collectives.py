"""Row collectives between GPUs: reduce-scatters of partial sums, all-gathers, and all-reduces of replicas' gradients.

Tables that are cut by rows leave partial sums on every device: a reduce-scatter adds them up, and an all-gather brings
gradients back. Tables that several devices hold add up their gradients by an all-reduce.

NCCL runs reduce-scatter and all-gather as rings through all GPUs, as many rings as a node has network cards. Each GPU
passes on all data but its own part, (n - 1) / n of the whole, at the *bus bandwidth*: the smaller of what a ring gets
of NVLink and of what it gets of all network cards of a node, which falls with every doubling of the nodes.

An all-reduce on GPUs whose switches add up (NVLink SHARP, from H100 on) goes by a tree over the nodes: each network
card carries its share of the data of its node once to others and back, and inside of nodes GPUs get more than of a
ring. Without such switches it is a reduce-scatter and an all-gather in one ring, twice its bytes.

Rings start as slowly as they are long: each GPU waits for the one before it. Large messages pass in larger pieces, with
another protocol, and start slower yet by a factor; with `ramp_bytes` for each device half of that is paid. Trees start
in a time that grows with the logarithm of the nodes, and by a factor of their own. All constants but the bytes at half
are fitted to published measurements by `python benchmarks/published_gpu/run.py --fit`.

Topologies here are those of data sheets, as tasks have them or `shardgym.costs.gpu.exchange.topology_of` returns them,
and not those of `exchange_topology`: rings get other shares of links than all-to-alls.
"""

from dataclasses import dataclass

import numpy as np

from shardgym.arrays import Floats
from shardgym.tasks.topology import Topology

#: NVLink, in bytes per second of a GPU and direction, from which its switches add up: that of H100 and later has
#: 450e9 and does, that of A100 has 300e9 and does not.
_SWITCHES_ADD_FROM = 400e9


@dataclass(frozen=True)
class CollectiveConstants:
    """What all links share in row collectives."""

    ring_share: float = 0.756  #: of NVLink's bandwidth that a ring gets
    #: Of it that all-reduces get where switches add up; they move fewer bytes than are counted.
    switch_share: float = 0.907
    card_share: float = 0.939  #: of the bandwidth of network cards
    node_fall: float = 0.0496  #: what each doubling of the nodes adds to the time that the network takes, as a share
    device_us: float = 1.87  #: start-up time of a ring for each of its devices
    node_us: float = 2.96  #: extra, for each of its nodes if there are several
    ramp: float = 2.45  #: start-up time that large messages add to that of small ones, as a factor
    ramp_bytes: float = 65536.0  #: for each device, with which half of the ramp is paid
    reduce_us: float = 20.6  #: start-up time of an all-reduce
    reduce_node_us: float = 14.9  #: extra, for each doubling of the nodes
    reduce_ramp: float = 6.18  #: as `ramp`, of all-reduces
    reduce_ramp_bytes: float = 16777216.0  #: in all, with which half of that is paid


COLLECTIVES = CollectiveConstants()


def reduce_scatter_ms(topology: Topology, input_bytes: Floats, constants: CollectiveConstants = COLLECTIVES) -> Floats:
    """Return the time of one reduce-scatter among all devices, in ms, in the shape of `input_bytes`.

    Within domains only, as the first stage of TorchRec's `table_row_wise`, every domain has one of its own at the same
    time: pass a topology of one domain. Links are those of data sheets. Each device puts in so many bytes, and gets
    `1 / num_devices` of them back, added up.
    """
    sizes = np.asarray(input_bytes, dtype=np.float64)
    devices = topology.num_devices
    if devices == 1:
        return np.zeros_like(sizes)
    nodes = _nodes(topology)
    start_us = constants.device_us * devices + (constants.node_us * nodes if nodes > 1 else 0.0)
    moved_ms = sizes * ((devices - 1) / devices / _ring_bandwidth(topology, constants) * 1e3)
    part = sizes / devices
    ramp = constants.ramp * part / (part + constants.ramp_bytes)
    return np.asarray(start_us * 1e-3 * (1 + ramp) + moved_ms, dtype=np.float64)


def all_reduce_ms(topology: Topology, num_bytes: Floats, constants: CollectiveConstants = COLLECTIVES) -> Floats:
    """Return the time of one all-reduce among all devices, in ms, in the shape of `num_bytes`.

    Between replicas that are fewer than all devices: see `shardgym.costs.links.peers_of`. Links are those of data
    sheets. Each device puts in so many bytes, and gets as many back, added up.
    """
    sizes = np.asarray(num_bytes, dtype=np.float64)
    devices = topology.num_devices
    if devices == 1:
        return np.zeros_like(sizes)
    nodes = _nodes(topology)
    if topology.intra_bandwidth >= _SWITCHES_ADD_FROM:
        inside = 2 * (devices - 1) / devices / (topology.intra_bandwidth * constants.switch_share)
        between = 2 * (nodes - 1) / nodes / _node_bandwidth(topology, constants)
        moved_ms = sizes * (max(inside if topology.fast_domain_size > 1 else 0.0, between) * 1e3)
    else:
        moved_ms = sizes * (2 * (devices - 1) / devices / _ring_bandwidth(topology, constants) * 1e3)
    start_us = constants.reduce_us + constants.reduce_node_us * np.log2(nodes)
    ramp = constants.reduce_ramp * sizes / (sizes + constants.reduce_ramp_bytes)
    return np.asarray(start_us * 1e-3 * (1 + ramp) + moved_ms, dtype=np.float64)


def _nodes(topology: Topology) -> int:
    """Return the domains of a topology; the last one may have fewer devices."""
    return -(-topology.num_devices // topology.fast_domain_size)


def _node_bandwidth(topology: Topology, constants: CollectiveConstants) -> float:
    """Return what the network cards of one node carry in bytes per second; of the smallest node where they differ."""
    nodes = _nodes(topology)
    cards = topology.num_devices - topology.fast_domain_size * (nodes - 1)
    return topology.inter_bandwidth * cards * constants.card_share / (1 + constants.node_fall * float(np.log2(nodes)))


def _ring_bandwidth(topology: Topology, constants: CollectiveConstants) -> float:
    """Return the bus bandwidth of a ring through all devices in bytes per second."""
    fast = topology.intra_bandwidth * constants.ring_share if topology.fast_domain_size > 1 else np.inf
    slow = _node_bandwidth(topology, constants) if _nodes(topology) > 1 else np.inf
    return float(min(fast, slow))
