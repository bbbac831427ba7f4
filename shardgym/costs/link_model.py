"""When devices leave exchanges where each of them has a link of its own: a model fitted to real exchanges.

Processes on few cores cannot show it: over the loopback interface all of them share the cores that copy their bytes. So
`tools/fit_link_model.py` gives each process a network namespace with a link of a known rate, times when each of them
leaves the measured cost's exchanges there, and fits what the rate does not explain.

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
from shardgym.tasks.task import ELEMENT_BYTES, ShardingTask
from shardgym.tasks.topology import Topology

NotNegative = Annotated[float, Field(ge=0)]
_ID_BYTES = 8


class StepWork(NamedTuple):
    """Work of each device between the exchanges of a step, in ms, each of shape (..., D)."""

    pack_ids: Floats  #: before lengths of bags are exchanged
    count_ids: Floats  #: before ids are exchanged
    group_ids: Floats  #: before the forward compute, which needs ids by table
    forward: Floats  #: compute, before pooled values are exchanged
    join_outputs: Floats  #: puts together what has come
    pack_gradients: Floats  #: before gradients are exchanged
    backward: Floats  #: compute, which ends the step; no exchange waits for it


@dataclass(frozen=True, config=CONFIG)
class LinkModel(Record):
    """When devices leave an all-to-all by its bytes; every device has a full-duplex link.

    A device leaves when it has what is for it and its peers have what it sent. Flows share a link fairly, so that those
    of a busy link end together, when the device that it belongs to has entered and has taken the time of its busier
    direction. Every device has a flow on the busiest link, and so all leave when that is through. This holds where
    what is sent is large against the buffers of the network, as between GPUs; for the measured cost see
    `shardgym.costs.fbgemm.step_rank.Clock`.
    """

    start_ms: NotNegative  #: start-up time of an exchange
    peer_ms: NotNegative  #: start-up time for every other device
    wire_factor: NotNegative  #: bytes on the wire for each byte of payload, in the busier direction
    hardware: Name  #: tag of the machine it was fitted on
    error: NotNegative  #: relative errors of when exchanges are over that it was not fitted to: their median
    worst_tenth: NotNegative  #: what nine in ten of these errors are below
    exchanges: int  #: how many exchanges it was fitted to
    schema: Literal["shardgym.link_model/3"] = "shardgym.link_model/3"

    def exit_ms(
        self, topology: Topology, entry_ms: Floats, sent_bytes: Ints | Floats, groups: Ints | None = None
    ) -> Floats:
        """Return when each device is through with an exchange, in ms, shape (..., D).

        Args:
            topology: devices, and rates and latencies of their links inside a fast domain and between domains.
            entry_ms: when each device begins, shape (..., D).
            sent_bytes: what each device (row) sends to each (column), shape (..., D, D); the diagonal does not count.
            groups: number of the group of each device, which exchanges inside of it, shape (D,); None where all
                devices exchange with each other.
        """
        through_ms = entry_ms + self.busy_ms(topology, sent_bytes)
        if groups is None:
            peers = topology.num_devices - 1
            last_ms = through_ms.max(axis=-1, keepdims=True)
        else:
            together = groups[:, None] == groups
            peers = int(together[0].sum()) - 1
            last_ms = np.where(together, through_ms[..., None, :], -np.inf).max(axis=-1)
        exit_ms = self.start_ms + self.peer_ms * peers + latency_ms(topology, sent_bytes) + last_ms
        return np.broadcast_to(exit_ms, np.shape(through_ms))

    def busy_ms(self, topology: Topology, sent_bytes: Ints | Floats) -> Floats:
        """Return how long the busier direction of each device's busier link takes; arguments and shape as `exit_ms`."""
        rates = (topology.intra_bandwidth, topology.inter_bandwidth)
        kinds = zip(wire_bytes(topology, sent_bytes), rates, strict=True)
        inside_ms, between_ms = (self.wire_factor * 1e3 / rate * payload.max(axis=-1) for payload, rate in kinds)
        return np.asarray(np.maximum(inside_ms, between_ms), dtype=np.float64)

    def step_times(self, task: ShardingTask, work: StepWork, loads: Floats) -> ExchangeTimes:
        """Return the phases of a step in which devices wait, of many placements at once.

        Each exchange takes what `exit_ms` says, and a device enters it when its work before it is done. So this is what
        `shardgym.costs.fbgemm.step.phases_of` makes of a measured step, but for the gradients of replicas, which are
        backward compute here, and so come after the exchange that waits for them there. On one device nothing is
        exchanged. A placement that lacks what an exchange is of does without it; one of nothing has those of ids and
        pooled values. Loads are by the columns of `shardgym.costs.links`, shape (..., D, LOADS).

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
        counted_ms = _unless(no_ids, work.pack_ids, lengths.exit_ms(work.pack_ids)) + work.count_ids
        ids_ms = _unless(no_ids, counted_ms, ids.exit_ms(counted_ms)) + work.group_ids
        ready_ms = ids_ms + work.forward
        pooled_ms = _unless(no_columns, ready_ms, columns.exit_ms(ready_ms))
        in_domains: tuple[Collective, ...] = ()
        if has_collectives:
            sums, replicas = self._everywhere(task, loads)
            pooled_ms = sums.exit_ms(pooled_ms) if sums is not None else pooled_ms
            in_domains = exchanges_in_domains(task, loads)
            for exchange in in_domains:
                pooled_ms = self._after(task.topology, pooled_ms, exchange)
        joined_ms = pooled_ms + work.join_outputs
        packed_ms = joined_ms + work.pack_gradients
        done_ms = _unless(no_columns, packed_ms, columns.exit_ms(packed_ms))
        if has_collectives:
            done_ms = sums.exit_ms(done_ms) if sums is not None else done_ms
            for exchange in reversed(in_domains):
                done_ms = self._after(task.topology, done_ms, exchange.reversed())
            if replicas is not None:  # halves are added up, and come back
                done_ms = replicas.exit_ms(replicas.exit_ms(done_ms))
        return ExchangeTimes(ids_ms, joined_ms - ready_ms, done_ms - joined_ms)

    def _after(self, topology: Topology, entry_ms: Floats, exchange: Collective) -> Floats:
        """Return when devices are through with an exchange; placements with nothing to exchange do without."""
        takes_place = exchange.sent_bytes.any(axis=-1).any(axis=-1, keepdims=True)
        if not takes_place.any():
            return entry_ms
        return np.where(takes_place, self.exit_ms(topology, entry_ms, exchange.sent_bytes, exchange.groups), entry_ms)

    def _everywhere(self, task: ShardingTask, loads: Floats) -> tuple[_Transfer | None, _Transfer | None]:
        """Return the exchange of partial sums among all devices, and that of replicas; None where there is none."""
        factors = _factors(self, task.topology, task.batch_size, ELEMENT_BYTES[task.precision])
        found: list[_Transfer | None] = []
        columns = loads[..., ROW_COLUMNS].sum(axis=-1, keepdims=True)
        gradients = loads[..., REPLICA_BYTES].max(axis=-1, keepdims=True)
        for amount, ms in ((columns, factors.sums_ms), (gradients, factors.replicas_ms)):
            takes_place = amount > 0
            if takes_place.any():
                only = None if takes_place.all() else takes_place
                found.append(_Transfer(factors.everywhere_start_ms, amount * ms, only))
            else:
                found.append(None)
        return found[0], found[1]

    def _transfers(self, task: ShardingTask, loads: Floats) -> list[_Transfer]:
        """Return what the exchange of each load takes: ids, pooled values or gradients, and lengths of bags."""
        factors = _factors(self, task.topology, task.batch_size, ELEMENT_BYTES[task.precision])
        # Bytes that a device owns of each sample, in the order of loads, each load in one piece.
        owned = np.ascontiguousarray(np.moveaxis(loads * factors.item_bytes, -1, 0))
        if factors.domains is None:
            kinds = [np.add.reduce(owned, axis=-1, keepdims=True) - owned]
        else:
            firsts = np.arange(0, task.num_devices, task.topology.fast_domain_size)
            of_domains = np.add.reduceat(owned, firsts, axis=-1)
            # Added up by domains, as what others have of nothing is then nothing, and not what rounding leaves.
            total = np.add.reduce(of_domains, axis=-1, keepdims=True)
            inside = of_domains[..., factors.domains]
            kinds = [inside - owned, total - inside]
        start_ms: Floats = np.zeros(())
        busy_ms: Floats = np.zeros(())
        for number, theirs in enumerate(kinds):
            from_others_ms = factors.received_ms[number] * theirs
            some = np.logical_or.reduce(from_others_ms > 0, axis=-1, keepdims=True)
            start_ms = np.maximum(start_ms, factors.latency_ms[number] * some)
            busy_ms = np.maximum(busy_ms, from_others_ms)
        start_ms = start_ms + factors.start_ms
        busy_ms = np.maximum(factors.owner_ms * owned, self.wire_factor * busy_ms)
        return [_Transfer(start_ms[n], busy_ms[n]) for n in range(3)]


class _Factors(NamedTuple):
    """What bytes of a sample take in exchanges of one kind of task; by kinds of links are those that it has, K."""

    item_bytes: Ints  #: of an id, of a column, and of the length of a bag, shape (3,)
    domains: Ints | None  #: fast domain of every device; None where all devices have links of one kind, shape (D,)
    received_ms: Floats  #: of a byte that others own over these links, shape (K, D)
    latency_ms: Floats  #: of these links, shape (K,)
    owner_ms: Floats  #: of a byte that the device owns and sends, shape (D,)
    start_ms: float  #: of an exchange, without latency
    sums_ms: Floats  #: of a column of partial sums among all devices, shape (D,)
    replicas_ms: Floats  #: of a byte of gradients that all devices have, in one way of an all-reduce, shape (D,)
    everywhere_start_ms: float  #: of these two exchanges, with latency


@functools.lru_cache(maxsize=256)  # environments and searches ask about few placements at a time
def _factors(links: LinkModel, topology: Topology, batch_size: int, element_bytes: int) -> _Factors:
    devices = topology.num_devices
    prices = link_prices(topology, batch_size, 1)
    samples = samples_per_device(batch_size, devices)
    latency_ms = np.array([topology.intra_latency_ms, topology.inter_latency_ms])
    is_mixed = topology.fast_domain_size not in (1, devices)
    used = slice(0, 2) if is_mixed else slice(1, 2) if topology.fast_domain_size < devices else slice(0, 1)
    start_ms = links.start_ms + links.peer_ms * (devices - 1)
    return _Factors(
        item_bytes=np.array([_ID_BYTES, element_bytes, _ID_BYTES]),
        domains=prices.domains if is_mixed else None,
        received_ms=prices.received_ms[used],
        latency_ms=latency_ms[used],
        owner_ms=links.wire_factor * prices.sent_ms[used].max(axis=0),
        start_ms=start_ms,
        sums_ms=links.busy_ms(topology, np.broadcast_to(samples * element_bytes, (devices, devices))),
        replicas_ms=links.busy_ms(topology, np.full((devices, devices), 1 / devices)),
        everywhere_start_ms=start_ms + latency_ms[used].max(),
    )


class Collective(NamedTuple):
    """An exchange of a collective, in the form of an all-to-all."""

    sent_bytes: Floats  #: what each device sends to each, shape (..., D, D)
    groups: Ints  #: which devices exchange with each other, as `LinkModel.exit_ms` has them, shape (D,)

    def reversed(self) -> Collective:
        """Return the exchange in which all goes back."""
        return Collective(self.sent_bytes.swapaxes(-1, -2), self.groups)


def exchanges_in_domains(task: ShardingTask, loads: Floats) -> tuple[Collective, ...]:
    """Return what placements exchange of tables whose rows one fast domain holds: inside of it, and between domains.

    Args:
        task: batch, precision and topology.
        loads: loads of each device, by the columns of `shardgym.costs.links`, shape (..., D, LOADS).
    """
    if not loads[..., DOMAIN_ROW_COLUMNS].any():
        return ()
    devices = task.num_devices
    size = task.topology.fast_domain_size
    sample_bytes = samples_per_device(task.batch_size, devices) * ELEMENT_BYTES[task.precision]
    numbers = np.arange(devices)
    domains, places = numbers // size, numbers % size
    of_domain = np.add.reduceat(loads[..., DOMAIN_ROW_COLUMNS], numbers[::size], axis=-1)[..., domains, None]
    # A device adds up for the samples of all devices at its place.
    inside = (domains[:, None] == domains) * np.bincount(places, weights=sample_bytes)[places]
    np.fill_diagonal(inside, 0)
    between = (places[:, None] == places) * sample_bytes
    return Collective(of_domain * inside, domains), Collective(of_domain * between, places)


def _unless(without: Bools | None, entry_ms: Floats, exit_ms: Floats) -> Floats:
    """Return `exit_ms`, and `entry_ms` of placements that do without the exchange; None is none of them."""
    return exit_ms if without is None else np.where(without, entry_ms, exit_ms)


class _Transfer(NamedTuple):
    """An exchange between the owners of shards and the holders of samples, which takes as long in either direction."""

    start_ms: Floats | float  #: until it starts, shape (..., 1)
    busy_ms: Floats  #: of the busier direction of each device's busier link, shape (..., D)
    #: In which placements there is anything to exchange, shape (..., 1); None where in all.
    takes_place: Bools | None = None

    def exit_ms(self, entry_ms: Floats) -> Floats:
        """Return when each device is through, as `LinkModel.exit_ms`; both of shape (..., D)."""
        last_ms = np.maximum.reduce(entry_ms + self.busy_ms, axis=-1, keepdims=True)
        exit_ms = np.broadcast_to(self.start_ms + last_ms, entry_ms.shape)
        return exit_ms if self.takes_place is None else np.where(self.takes_place, exit_ms, entry_ms)


def wire_bytes(topology: Topology, sent_bytes: Ints | Floats) -> tuple[Floats, Floats]:
    """Return the bytes that each device sends, and those that it receives, inside its domain and between domains.

    Both have shape (..., D, 2); `sent_bytes` are as for `LinkModel.exit_ms`.
    """
    domains = np.arange(topology.num_devices) // topology.fast_domain_size
    same = domains[:, None] == domains
    kinds = []
    for counted in (same & ~np.eye(len(domains), dtype=bool), ~same):
        payload = np.where(counted, sent_bytes, 0)
        kinds.append(np.stack([payload.sum(axis=-1), payload.sum(axis=-2)], axis=-1).astype(np.float64))
    return kinds[0], kinds[1]


def latency_ms(topology: Topology, sent_bytes: Ints | Floats) -> Floats:
    """Return the latency of the slower kind of links that an exchange uses, shape (..., 1); arguments as there."""
    found = np.zeros((*np.shape(sent_bytes)[:-2], 1))
    latencies = (topology.intra_latency_ms, topology.inter_latency_ms)
    for payload, latency in zip(wire_bytes(topology, sent_bytes), latencies, strict=True):
        found = np.maximum(found, latency * payload.any(axis=-1).any(axis=-1, keepdims=True))
    return found


@functools.cache
def shipped_model() -> LinkModel:
    """Return the model that comes with the package."""
    return LinkModel.load(Path(__file__).with_name("link_model.json"))
