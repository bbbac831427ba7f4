"""Which samples are measured and in which order: random, so that drift of the machine does not look like a property."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

from shardgym.collection.sampling import DRAWS, ExchangeSample, PoolSampler, StableRandom, shard_set_digest
from shardgym.collection.settings import (
    KINDS,
    OVERFULL,
    ROLES,
    SETUPS,
    SPACE_STEPS,
    STEPS,
    Counts,
    Kind,
    Role,
    Space,
    StepCounts,
)
from shardgym.collection.space_sampling import SPACE_DRAWS, SpaceSampler
from shardgym.costs.fbgemm.jobs import ShardSet
from shardgym.errors import InputError

#: Exchanges in a row over the same number of devices, because starting its processes takes seconds.
_BLOCK = 100

_ID = re.compile(rf"({'|'.join(KINDS)})/({'|'.join(ROLES)})/(\d{{1,9}})/(\d{{1,3}})")


class SampleId(NamedTuple):
    """Name of one measurement, e.g. "compute/oracle/17/0" as text.

    Attributes:
        kind: "compute" or "comm".
        role: who learns from it.
        number: of the sample within its kind and role; what it is follows from that and the seed.
        repeat: 0 for the first measurement of the sample, 1 for the second.
    """

    kind: Kind
    role: Role
    number: int
    repeat: int

    def __str__(self) -> str:
        return f"{self.kind}/{self.role}/{self.number}/{self.repeat}"

    @classmethod
    def parse(cls, text: str) -> SampleId:
        """Return the name that a text is; raises `InputError`."""
        match = _ID.fullmatch(text)
        if match is None:
            raise InputError(f"sample '{text:.60}': expected KIND/ROLE/NUMBER/REPEAT")
        return cls(cast("Kind", match[1]), cast("Role", match[2]), int(match[3]), int(match[4]))


class Block(NamedTuple):
    """Measurements that are made in one go: shard sets, then exchanges over one number of devices."""

    shard_sets: tuple[SampleId, ...]
    exchanges: tuple[SampleId, ...]
    devices: int


def devices_of(sample: SampleId, device_counts: Sequence[int], seed: int) -> int:
    """Return over how many devices an exchange is measured."""
    return StableRandom(seed, "devices", sample.role, sample.number).choice(device_counts)


def schedule(counts: Counts, repeat_share: float, device_counts: Sequence[int], seed: int) -> list[Block]:
    """Return all measurements in order: blocks of exchanges, between which the shard sets are spread evenly.

    Args:
        counts: samples per kind and role.
        repeat_share: share of the samples that is measured twice: the first ones of every role.
        device_counts: that exchanges are measured over; none when the counts ask for no exchange.
        seed: of the order.
    """
    rng = StableRandom(seed, "order")
    samples: dict[Kind, list[SampleId]] = {}
    for kind in KINDS:
        samples[kind] = []
        for role, count in counts[kind].items():
            samples[kind] += [SampleId(kind, role, number, 0) for number in range(count)]
            samples[kind] += [SampleId(kind, role, number, 1) for number in range(round(repeat_share * count))]
    shard_sets = rng.sample(samples["compute"], len(samples["compute"]))
    by_devices: dict[int, list[SampleId]] = {}
    for sample in rng.sample(samples["comm"], len(samples["comm"])):
        by_devices.setdefault(devices_of(sample, device_counts, seed), []).append(sample)
    runs = [
        (devices, exchanges[start : start + _BLOCK])
        for devices, exchanges in sorted(by_devices.items())
        for start in range(0, len(exchanges), _BLOCK)
    ]
    runs = rng.sample(runs, len(runs)) or [(0, [])]
    edges = [round(i * len(shard_sets) / len(runs)) for i in range(len(runs) + 1)]
    return [
        Block(tuple(shard_sets[edges[i] : edges[i + 1]]), tuple(exchanges), devices)
        for i, (devices, exchanges) in enumerate(runs)
    ]


@dataclass(frozen=True)
class CollectionPlan:
    """Everything that follows from the arguments before anything is measured.

    Attributes:
        device: "cpu" or "cuda".
        counts: samples per kind and role, without repeats.
        repeat_share: share of them that is measured twice.
        device_counts: that exchanges are measured over.
        seed: of all draws and of the order.
        space: that a wide collection draws from; None when samples are of a pool.
    """

    device: str
    counts: Counts
    repeat_share: float
    device_counts: tuple[int, ...]
    seed: int
    space: Space | None = None

    @property
    def steps(self) -> StepCounts:
        """Steps per sample."""
        return STEPS if self.space is None else SPACE_STEPS

    def settings(self) -> dict[str, Any]:
        """Return what identifies the samples and how they are measured; the number of samples is not part of it."""
        common = {**self.steps._asdict(), "device_counts": list(self.device_counts), "seed": self.seed}
        if self.space is not None:
            return {"device": self.device, "space": self.space.to_dict(), **common, "draws": f"space {SPACE_DRAWS}"}
        return {
            "device": self.device, **SETUPS[self.device]._asdict(), "overfull": OVERFULL, **common, "draws": DRAWS,
        }  # fmt: skip

    @cached_property
    def blocks(self) -> list[Block]:
        """All measurements in order. A wide collection has a time limit, so whole plans come first."""
        if self.space is None:
            return schedule(self.counts, self.repeat_share, self.device_counts, self.seed)
        first: dict[Kind, dict[Role, int]] = {"compute": {"plans": self.counts["compute"].get("plans", 0)}, "comm": {}}
        rest: Counts = {
            kind: {role: count for role, count in roles.items() if role != "plans"}
            for kind, roles in self.counts.items()
        }
        plans = schedule(first, 1.0, (), self.seed)
        return plans + schedule(rest, self.repeat_share, self.device_counts, self.seed)

    def samples(self) -> Iterator[SampleId]:
        """Yield all measurements in order."""
        for block in self.blocks:
            yield from (*block.shard_sets, *block.exchanges)

    def shard_set(self, sample: SampleId) -> ShardSet:
        """Return the shard set of a compute sample."""
        return self._sampler.shard_set(sample.role, sample.number)

    def exchange(self, sample: SampleId) -> ExchangeSample:
        """Return the exchange of a communication sample."""
        devices = devices_of(sample, self.device_counts, self.seed)
        return self._sampler.exchange(sample.role, sample.number, devices)

    def digest(self, sample: SampleId) -> str:
        """Return the identity of what is measured; repeats share it."""
        return self.set_digest(self.shard_set(sample)) if sample.kind == "compute" else self.exchange(sample).digest

    def set_digest(self, shard_set: ShardSet) -> str:
        """Return the identity of a shard set of this plan."""
        return shard_set_digest(shard_set, of_pool=self.space is None)

    @cached_property
    def _sampler(self) -> PoolSampler | SpaceSampler:
        if self.space is None:
            return PoolSampler(SETUPS[self.device], self.seed)
        return SpaceSampler(self.space, self.seed)
