"""The time that a tally takes on links, and how much of it crosses which kind of link."""

from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.links import (
    DOMAIN_ROW_COLUMNS,
    ROW_COLUMNS,
    part_of,
    peers_of,
    reduce_scatter_ms,
    samples_per_device,
    with_row_exchange_ms,
)
from shardgym.costs.replay.tally import Tally
from shardgym.tasks.task import ELEMENT_BYTES, ShardingTask
from shardgym.tasks.topology import Topology

#: Collectives of an exchange of ids: how much will come, lengths of bags, ids (TorchRec's `KJTAllToAll`).
_ID_COLLECTIVES = 3


class Traffic(NamedTuple):
    """Bytes that each device sends in a step, each of shape (D, 2): inside of its fast domain, and to other domains.

    All-to-alls are counted pair by pair. Collectives of partial sums and of replicas are rings, in which every device
    passes on its share; between domains a ring is cut into as many as a domain has devices.
    """

    ids: Floats
    outputs: Floats  #: looked-up or pooled rows, and partial sums
    gradients: Floats  #: of these, on the way back
    replicas: Floats  #: what holders of the same rows exchange

    @property
    def total(self) -> Floats:
        """All of it, shape (D, 2)."""
        return self.ids + self.outputs + self.gradients + self.replicas

    @property
    def global_all_to_all_bytes(self) -> float:
        """Bytes of ids, outputs and gradients that all devices together send to other domains."""
        return float((self.ids + self.outputs + self.gradients)[:, 1].sum())


def all_to_all_ms(topology: Topology, num_bytes: Floats, collectives: int = 1) -> Floats:
    """Return the time of an all-to-all with aligned start on each device, in ms, shape (D,); 0 if nothing is sent.

    Bytes go from each device to each, shape (D, D), in so many collectives that start one after another.
    """
    if not num_bytes.any():
        return np.zeros(topology.num_devices)
    sent = by_level(topology, num_bytes)
    received = by_level(topology, num_bytes.T)
    domains = np.arange(topology.num_devices) // topology.fast_domain_size
    in_domain = np.bincount(domains)[domains]
    used = np.stack([in_domain > 1, in_domain < topology.num_devices], axis=1)
    latency_ms = collectives * np.array([topology.intra_latency_ms, topology.inter_latency_ms])
    bandwidth = np.array([topology.intra_bandwidth, topology.inter_bandwidth])
    return np.asarray((used * (latency_ms + np.maximum(sent, received) / bandwidth * 1e3)).max(axis=1))


def by_level(topology: Topology, num_bytes: Floats) -> Floats:
    """Return what each device sends inside of its domain and to others, shape (D, 2), of bytes of shape (D, D)."""
    domains = np.arange(topology.num_devices) // topology.fast_domain_size
    inside = np.where(domains[:, None] == domains, num_bytes, 0.0).sum(axis=1)
    return np.stack([inside, num_bytes.sum(axis=1) - inside], axis=1)


class Exchanges(NamedTuple):
    """Times of exchanges with aligned start, in ms, each of shape (D,)."""

    ids_ms: Floats
    outputs_ms: Floats  #: of outputs; gradients take as long
    replicas_ms: Floats  #: what holders of the same rows take


def exchanges(task: ShardingTask, found: Tally) -> Exchanges:
    """Return the times that the link model of the task's topology gives a tally."""
    topology = task.topology
    outputs_ms = all_to_all_ms(topology, found.outputs)
    for copies, loads in found.partial_sums.items():
        part, of_blocks, column_bytes = _blocks(task, copies, loads)
        nothing = np.zeros(of_blocks.shape[:2])
        times = with_row_exchange_ms(part, nothing, of_blocks, column_bytes)
        outputs_ms = outputs_ms + times.ravel()
    replicas_ms = np.zeros(topology.num_devices)
    for copies, num_bytes in found.copied.items():
        peers = peers_of(topology, topology.num_devices // copies)
        replicas_ms = replicas_ms + 2 * reduce_scatter_ms(peers, num_bytes)
    return Exchanges(all_to_all_ms(topology, found.ids, _ID_COLLECTIVES), outputs_ms, replicas_ms)


def traffic(task: ShardingTask, found: Tally) -> Traffic:
    """Return what devices send in a tally."""
    topology = task.topology
    devices = topology.num_devices
    sums = np.zeros((devices, 2))
    for copies, loads in found.partial_sums.items():
        part, of_blocks, column_bytes = _blocks(task, copies, loads)
        sums += _partial_sum_bytes(part, of_blocks, column_bytes).reshape(devices, 2)
    replicas = np.zeros((devices, 2))
    for copies, num_bytes in found.copied.items():
        replicas += 2 * _ring_bytes(peers_of(topology, devices // copies), num_bytes)
    return Traffic(
        ids=by_level(topology, found.ids),
        outputs=by_level(topology, found.outputs) + sums,
        gradients=by_level(topology, found.outputs.T) + sums,
        replicas=replicas,
    )


def _blocks(task: ShardingTask, copies: int, loads: Floats) -> tuple[Topology, Floats, float]:
    """Return the devices of one of `copies` blocks, loads by block, and bytes of a column of a block's samples."""
    per_block = task.num_devices // copies
    samples = samples_per_device(task.batch_size, task.num_devices).reshape(copies, per_block).sum(axis=1)
    of_blocks = loads.reshape(copies, per_block, -1)
    column_bytes = float(samples.max() * ELEMENT_BYTES[task.precision])
    return part_of(task.topology, per_block), of_blocks, column_bytes


def _ring_bytes(topology: Topology, num_bytes: Floats) -> Floats:
    """Return what each device sends in a reduce-scatter or an all-gather, shape (..., 2); arguments as its time."""
    devices = topology.num_devices
    domain = topology.fast_domain_size
    sent = (devices - 1) / devices * num_bytes
    between = sent / domain if domain < devices else np.zeros_like(sent)
    return np.stack([sent - between, between], axis=-1)


def _partial_sum_bytes(topology: Topology, loads: Floats, column_bytes: float) -> Floats:
    """Return what each device sends of partial sums, shape (blocks, D of a block, 2); loads as in `_blocks`."""
    domain = topology.fast_domain_size
    everywhere = column_bytes * loads[..., ROW_COLUMNS].sum(axis=-1, keepdims=True)
    found = np.broadcast_to(_ring_bytes(topology, everywhere), (*loads.shape[:2], 2)).copy()
    if loads[..., DOMAIN_ROW_COLUMNS].any():
        firsts = np.arange(0, topology.num_devices, domain)
        domains = np.arange(topology.num_devices) // domain
        own = column_bytes * np.add.reduceat(loads[..., DOMAIN_ROW_COLUMNS], firsts, axis=-1)[..., domains]
        found += _ring_bytes(part_of(topology, domain), own)
        found[..., 1] += own / topology.num_devices * (len(firsts) - 1)
    return found
