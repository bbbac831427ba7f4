"""The order of measuring: random, so that drift of the machine does not correlate with what is measured."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, get_args

from shardgym.collection.setup import KINDS, ROLES, Counts, Kind, Role
from shardgym.collection.stream import Stream
from shardgym.errors import InputError

#: Exchanges in a row over the same number of devices, because starting its processes takes seconds.
_BLOCK = 100

_ID = re.compile(rf"({'|'.join(get_args(Kind))})/({'|'.join(get_args(Role))})/(\d{{1,9}})/(\d{{1,3}})")


class Entry(NamedTuple):
    """One measurement: which sample, and whether it is the first of it (0) or a repeat.

    Attributes:
        kind: "compute" or "comm".
        role: who learns from it.
        number: of the sample within its kind and role; what it is follows from that and the seed.
        repeat: 0 for the first measurement.
    """

    kind: Kind
    role: Role
    number: int
    repeat: int

    @property
    def sample_id(self) -> str:
        """Name of the measurement, e.g. "compute/oracle/17/0"."""
        return f"{self.kind}/{self.role}/{self.number}/{self.repeat}"

    @classmethod
    def parse(cls, sample_id: str) -> Entry:
        """Return the entry of a name; raises `InputError`."""
        match = _ID.fullmatch(sample_id)
        if match is None:
            raise InputError(f"sample '{sample_id:.60}': expected KIND/ROLE/NUMBER/REPEAT")
        kind = next(k for k in KINDS if k == match[1])
        role = next(r for r in ROLES if r == match[2])
        return cls(kind, role, int(match[3]), int(match[4]))


class Block(NamedTuple):
    """Measurements that are made in one go: shard sets, then exchanges over one number of devices."""

    compute: tuple[Entry, ...]
    comm: tuple[Entry, ...]
    devices: int


def entries_of(kind: Kind, counts: Counts, repeat_share: float) -> list[Entry]:
    """Return all measurements of a kind; the first samples of every role are measured twice."""
    entries: list[Entry] = []
    for role, count in counts[kind].items():
        entries += [Entry(kind, role, number, 0) for number in range(count)]
        entries += [Entry(kind, role, number, 1) for number in range(round(repeat_share * count))]
    return entries


def devices_of(entry: Entry, device_counts: Sequence[int], seed: int) -> int:
    """Return over how many devices an exchange is measured."""
    return Stream(seed, "devices", entry.role, entry.number).choice(device_counts)


def schedule(counts: Counts, repeat_share: float, device_counts: Sequence[int], seed: int) -> list[Block]:
    """Return all measurements in order. Shard sets are in random order and spread evenly over the blocks.

    Args:
        counts: samples per kind and role.
        repeat_share: share of the samples that is measured twice.
        device_counts: that exchanges are measured over; none when the counts ask for no exchange.
        seed: of the order.
    """
    rng = Stream(seed, "order")
    compute = entries_of("compute", counts, repeat_share)
    compute = rng.sample(compute, len(compute))
    blocks = list(_comm_blocks(rng, entries_of("comm", counts, repeat_share), device_counts, seed)) or [((), 0)]
    edges = [round(i * len(compute) / len(blocks)) for i in range(len(blocks) + 1)]
    return [Block(tuple(compute[edges[i] : edges[i + 1]]), comm, devices) for i, (comm, devices) in enumerate(blocks)]


def _comm_blocks(
    rng: Stream, entries: list[Entry], device_counts: Sequence[int], seed: int
) -> Iterator[tuple[tuple[Entry, ...], int]]:
    """Yield blocks of exchanges, in random order of and within blocks."""
    by_devices: dict[int, list[Entry]] = {}
    for entry in rng.sample(entries, len(entries)):
        by_devices.setdefault(devices_of(entry, device_counts, seed), []).append(entry)
    blocks = [
        (tuple(group[start : start + _BLOCK]), devices)
        for devices, group in sorted(by_devices.items())
        for start in range(0, len(group), _BLOCK)
    ]
    yield from rng.sample(blocks, len(blocks))
