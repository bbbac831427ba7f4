"""What exchanges take where every device has a link of its own: a model fitted to real all-to-alls.

Processes on few cores cannot show it: over the loopback interface all of them share the cores that copy their bytes. So
`tools/fit_link_model.py` gives each process a network namespace with a link of a known rate, times gloo's
all-to-alls there, and fits what the rate does not explain.

Other exchanges are priced as all-to-alls of the bytes that they move. In a reduce-scatter each device sends each other
one what is for its samples; an all-gather is the reverse; an all-reduce is one of each. Adding up is no part of it:
`shardgym.costs.fbgemm.step` measures that as work, apart from what gloo adds up in an all-reduce.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.links import (
    COLUMNS,
    DOMAIN_ROW_COLUMNS,
    IDS,
    REPLICA_BYTES,
    REPLICAS,
    ROW_COLUMNS,
    SHARDS,
    ExchangeTimes,
    link_prices,
    samples_per_device,
)
from shardgym.records import CONFIG, Name, Record
from shardgym.task import ELEMENT_BYTES, ShardingTask
from shardgym.topology import Topology

NotNegative = Annotated[float, Field(ge=0)]

#: Of an id, and of the length of a bag.
_ID_BYTES = 8


class StepWork(NamedTuple):
    """Work of each device between the exchanges of a step, in ms, each of shape (..., D).

    Attributes:
        pack_ids: before lengths of bags are exchanged.
        count_ids: before ids are exchanged.
        group_ids: before the forward compute, which needs ids by table.
        forward: compute, before pooled values are exchanged.
        join_outputs: puts together what has come.
        pack_gradients: before gradients are exchanged.
        backward: compute, which ends the step; no exchange waits for it.
    """

    pack_ids: Floats
    count_ids: Floats
    group_ids: Floats
    forward: Floats
    join_outputs: Floats
    pack_gradients: Floats
    backward: Floats


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

    def exit_ms(
        self, topology: Topology, entry_ms: Floats, sent_bytes: Ints | Floats, peers: int | None = None
    ) -> Floats:
        """Return when each device is through with an exchange, in ms, shape (..., D).

        Args:
            topology: devices, and rates and latencies of their links inside a fast domain and between domains.
            entry_ms: when each device begins, shape (..., D).
            sent_bytes: what each device (row) sends to each (column), shape (..., D, D); the diagonal does not count.
            peers: how many others a device exchanges with; None where it is all others.
        """
        busy_ms = np.zeros((*np.shape(entry_ms), 2))
        host_bytes = np.zeros(np.shape(entry_ms))
        latency_ms = np.zeros((*np.shape(entry_ms)[:-1], 1))
        rates = (topology.intra_bandwidth, topology.inter_bandwidth)
        latencies = (topology.intra_latency_ms, topology.inter_latency_ms)
        for payload, rate, latency in zip(wire_bytes(topology, sent_bytes), rates, latencies, strict=True):
            latency_ms = np.maximum(latency_ms, latency * payload.any(axis=-1).any(axis=-1, keepdims=True))
            busy_ms = np.maximum(busy_ms, self.wire_factor * 1e3 / rate * payload)
            host_bytes += payload.sum(axis=-1)
        through_ms = entry_ms[..., None] + busy_ms + self.host_ns_per_byte / 1e6 * host_bytes[..., None]
        sends = (np.asarray(sent_bytes) > 0) | np.eye(topology.num_devices, dtype=bool)
        last_byte_ms = np.where(sends, through_ms[..., :1], -np.inf).max(axis=-2)
        others = topology.num_devices - 1 if peers is None else peers
        start_ms = self.start_ms + self.peer_ms * others + latency_ms
        return np.asarray(start_ms + np.maximum(last_byte_ms, through_ms[..., 1]), dtype=np.float64)

    def step_times(self, task: ShardingTask, work: StepWork, loads: Floats) -> ExchangeTimes:
        """Return the phases of a step in which devices wait, of many placements at once.

        Each exchange takes what `exit_ms` says, and a device enters it when its work before it is done. So this is what
        `shardgym.costs.fbgemm.step.phases_of` makes of a measured step, but for the gradients of replicas, which are
        backward compute here, and so come after the exchange that waits for them there. On one device nothing is
        exchanged. A placement that lacks what an exchange is of does without it; one of nothing has those of ids and
        pooled values.

        Args:
            task: batch, precision and topology.
            work: between the exchanges.
            loads: of each device, by the columns of `shardgym.costs.links`, shape (..., D, LOADS).

        Returns:
            All before the forward compute; the exchanges of pooled values and joining them; packing gradients and
            exchanging them, those of replicas included.
        """
        if task.num_devices == 1:
            ids_ms = work.pack_ids + work.count_ids + work.group_ids
            return ExchangeTimes(ids_ms, work.join_outputs, work.pack_gradients)
        own = loads[..., IDS:]
        no_ids: Bools | None = None
        no_columns: Bools | None = None
        if has_collectives := bool(loads[..., :IDS].any()):
            own = own.copy()
            own[..., SHARDS - IDS] -= loads[..., REPLICAS]
            is_empty = np.all(loads[..., SHARDS] == 0, axis=-1, keepdims=True)
            no_ids = np.all(own[..., SHARDS - IDS] == 0, axis=-1, keepdims=True) & ~is_empty
            no_columns = np.all(loads[..., COLUMNS] == 0, axis=-1, keepdims=True) & ~is_empty
        ids, columns, lengths = self._transfers(task, own)
        counted_ms = _unless(no_ids, work.pack_ids, lengths.to_owners(work.pack_ids)) + work.count_ids
        ids_ms = _unless(no_ids, counted_ms, ids.to_owners(counted_ms)) + work.group_ids
        ready_ms = ids_ms + work.forward
        pooled_ms = _unless(no_columns, ready_ms, columns.from_owners(ready_ms))
        collectives = collectives_of(task, loads) if has_collectives else None
        if collectives is not None:
            for exchange in collectives.forward:
                pooled_ms = self._after(task.topology, pooled_ms, exchange)
        joined_ms = pooled_ms + work.join_outputs
        packed_ms = joined_ms + work.pack_gradients
        done_ms = _unless(no_columns, packed_ms, columns.to_owners(packed_ms))
        if collectives is not None:
            for exchange in collectives.backward:
                done_ms = self._after(task.topology, done_ms, exchange)
        return ExchangeTimes(ids_ms, joined_ms - ready_ms, done_ms - joined_ms)

    def _after(self, topology: Topology, entry_ms: Floats, exchange: Collective) -> Floats:
        """Return when devices are through with an exchange; placements with nothing to exchange do without."""
        takes_place = exchange.sent_bytes.any(axis=-1).any(axis=-1, keepdims=True)
        if not takes_place.any():
            return entry_ms
        return np.where(takes_place, self.exit_ms(topology, entry_ms, exchange.sent_bytes, exchange.peers), entry_ms)

    def _transfers(self, task: ShardingTask, loads: Floats) -> list[_Transfer]:
        """Return what the exchange of each load takes: ids, pooled values or gradients, and lengths of bags.

        Args:
            task: batch, precision and topology.
            loads: ids, columns and shards of each device, shape (..., D, 3).
        """
        topology = task.topology
        prices = link_prices(topology, task.batch_size, 1)
        samples = samples_per_device(task.batch_size, task.num_devices)
        # Bytes that a device owns of each sample, in the order of loads, each load in one piece.
        item_bytes = np.array([_ID_BYTES, ELEMENT_BYTES[task.precision], _ID_BYTES])
        owned = np.ascontiguousarray(np.moveaxis(loads * item_bytes, -1, 0))
        if topology.fast_domain_size in (1, topology.num_devices):
            others = owned.sum(axis=-1, keepdims=True) - owned
            is_slow = topology.fast_domain_size < topology.num_devices
            kinds = [(int(is_slow), others, topology.inter_latency_ms if is_slow else topology.intra_latency_ms)]
        else:
            firsts = np.arange(0, topology.num_devices, topology.fast_domain_size)
            of_domains = np.add.reduceat(owned, firsts, axis=-1)
            # Added up by domains, as what others have of nothing is then nothing, and not what rounding leaves.
            total = of_domains.sum(axis=-1, keepdims=True)
            inside = of_domains[..., prices.domains]
            others = total - owned
            kinds = [(0, inside - owned, topology.intra_latency_ms), (1, total - inside, topology.inter_latency_ms)]
        owner_ms = np.zeros(owned.shape)
        holder_ms = np.zeros(owned.shape)
        latency_ms = np.zeros((*owned.shape[:-1], 1))
        for kind, theirs, latency in kinds:
            from_others_ms = prices.received_ms[kind] * theirs
            holder_ms = np.maximum(holder_ms, self.wire_factor * from_others_ms)
            owner_ms = np.maximum(owner_ms, self.wire_factor * prices.sent_ms[kind] * owned)
            latency_ms = np.maximum(latency_ms, latency * (from_others_ms > 0).any(axis=-1, keepdims=True))
        # The core hands over what is sent and what is received, both as an owner and as a holder of samples.
        host_ms = self.host_ns_per_byte / 1e6 * (owned * (task.batch_size - samples) + samples * others)
        owner_ms += host_ms
        holder_ms += host_ms
        start_ms = self.start_ms + self.peer_ms * (task.num_devices - 1) + latency_ms
        owns = owned > 0
        has_samples = samples > 0
        return [_Transfer(start_ms[n], owner_ms[n], holder_ms[n], owns[n], has_samples) for n in range(len(owned))]


class Collective(NamedTuple):
    """An exchange of a collective, in the form of an all-to-all.

    Attributes:
        sent_bytes: what each device sends to each, shape (..., D, D).
        peers: how many others a device exchanges with.
    """

    sent_bytes: Floats
    peers: int

    def reversed(self) -> Collective:
        """Return the exchange in which all goes back."""
        return Collective(self.sent_bytes.swapaxes(-1, -2), self.peers)


class Collectives(NamedTuple):
    """The collectives of a step in order: of partial sums, and of gradients, those of replicas last."""

    forward: tuple[Collective, ...]
    backward: tuple[Collective, ...]


def collectives_of(task: ShardingTask, loads: Floats) -> Collectives:
    """Return what placements exchange because of tables cut by rows and of replicas.

    Args:
        task: batch, precision and topology.
        loads: of each device, by the columns of `shardgym.costs.links`, shape (..., D, LOADS).
    """
    devices = task.num_devices
    size = task.topology.fast_domain_size
    samples = samples_per_device(task.batch_size, devices)
    sample_bytes = samples * ELEMENT_BYTES[task.precision]
    width = loads[..., ROW_COLUMNS].sum(axis=-1)[..., None, None]
    reduce = Collective(np.broadcast_to(width * sample_bytes, (*width.shape[:-2], devices, devices)), devices - 1)
    half = loads[..., REPLICA_BYTES].max(axis=-1)[..., None, None] / devices * np.ones((devices, devices))
    all_reduce = (Collective(half, devices - 1),) * 2
    if not loads[..., DOMAIN_ROW_COLUMNS].any():
        return Collectives((reduce,), (reduce.reversed(), *all_reduce))
    numbers = np.arange(devices)
    domains, places = numbers // size, numbers % size
    of_domain = np.add.reduceat(loads[..., DOMAIN_ROW_COLUMNS], numbers[::size], axis=-1)[..., domains, None]
    # A device adds up for the samples of all devices at its place.
    inside = (domains[:, None] == domains) * np.bincount(places, weights=sample_bytes)[places]
    np.fill_diagonal(inside, 0)
    domain = Collective(of_domain * inside, size - 1)
    between = Collective(of_domain * ((places[:, None] == places) * sample_bytes), devices // size - 1)
    return Collectives(
        (reduce, domain, between), (reduce.reversed(), between.reversed(), domain.reversed(), *all_reduce)
    )


def _unless(without: Bools | None, entry_ms: Floats, exit_ms: Floats) -> Floats:
    """Return `exit_ms`, and `entry_ms` of placements that do without the exchange; None is none of them."""
    return exit_ms if without is None else np.where(without, entry_ms, exit_ms)


class _Transfer(NamedTuple):
    """An exchange between the owners of shards and the holders of samples, in either direction.

    Every device is both, so it has two loads: what it sends as the one it receives as the other in reverse.

    Attributes:
        start_ms: until it starts, shape (..., 1).
        owner_ms: busy with what goes to or comes from all others for its shards, shape (..., D).
        holder_ms: busy with what comes from or goes to all others for its samples, shape (..., D).
        owns: whether a device has anything to send as an owner, shape (..., D).
        has_samples: likewise as a holder, shape (D,).
    """

    start_ms: Floats
    owner_ms: Floats
    holder_ms: Floats
    owns: Bools
    has_samples: Bools

    def from_owners(self, entry_ms: Floats) -> Floats:
        """Return when each device is through with pooled values, as `LinkModel.exit_ms`; both of shape (..., D)."""
        return self._exit_ms(entry_ms + self.owner_ms, entry_ms + self.holder_ms, self.owns, self.has_samples)

    def to_owners(self, entry_ms: Floats) -> Floats:
        """Return the same for lengths, ids and gradients."""
        return self._exit_ms(entry_ms + self.holder_ms, entry_ms + self.owner_ms, self.has_samples, self.owns)

    def _exit_ms(self, sent_ms: Floats, received_ms: Floats, sends: Bools, takes: Bools) -> Floats:
        """Return the same from when each device has sent and received, and which ones send and take anything."""
        last_ms = np.where(sends, sent_ms, -np.inf).max(axis=-1, keepdims=True)
        last_byte_ms = np.where(takes, np.maximum(sent_ms, last_ms), sent_ms)
        return np.asarray(self.start_ms + np.maximum(last_byte_ms, received_ms), dtype=np.float64)


def wire_bytes(topology: Topology, sent_bytes: Ints | Floats) -> tuple[Floats, Floats]:
    """Return the bytes that each device sends and receives inside its domain, and between domains.

    Args:
        topology: says which devices are in one domain.
        sent_bytes: as for `LinkModel.exit_ms`.

    Returns:
        Bytes sent and received, each of shape (..., D, 2).
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
