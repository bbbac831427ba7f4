"""Which samples are measured and in which order: random, so that drift of the machine does not look like a property."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

from shardgym.costs.fbgemm.jobs import ShardSet
from shardgym.errors import InputError
from shardgym.training.sampling import DRAWS, PoolSampler, StableRandom, shard_set_digest
from shardgym.training.settings import (
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
from shardgym.training.space_sampling import SPACE_DRAWS, SpaceSampler
from shardgym.training.step_sampling import DEVICES, STEP_DRAWS, StepSampler, StepTask, plans_per_task

_ID = re.compile(rf"({'|'.join(KINDS)})/({'|'.join(ROLES)})/(\d{{1,9}})/(\d{{1,3}})")


class SampleId(NamedTuple):
    """Name of one measurement, e.g. "compute/oracle/17/0" as text.

    Attributes:
        kind: "compute" or "steps".
        role: who learns from it.
        number: of the sample within its kind and role; what it is follows from that and the seed. Plan P of task T is
            number T * `plans_per_task` + P.
        repeat: 0 for the first measurement of the sample, 1 for the second.
    """

    kind: Kind
    role: Role
    number: int
    repeat: int

    def __str__(self) -> str:
        return f"{self.kind}/{self.role}/{self.number}/{self.repeat}"

    @property
    def task(self) -> int:
        """Number of the task of a sample of steps, within its role."""
        return self.number // plans_per_task(self.role)

    @property
    def plan(self) -> int:
        """Number of the plan of a sample of steps, within its task."""
        return self.number % plans_per_task(self.role)

    @classmethod
    def parse(cls, text: str) -> SampleId:
        """Return the name that a text is; raises `InputError`."""
        match = _ID.fullmatch(text)
        if match is None:
            raise InputError(f"sample '{text:.60}': expected KIND/ROLE/NUMBER/REPEAT")
        return cls(cast("Kind", match[1]), cast("Role", match[2]), int(match[3]), int(match[4]))


class Block(NamedTuple):
    """Measurements that are made in one go: shard sets, then the plans of one task."""

    shard_sets: tuple[SampleId, ...]
    plans: tuple[SampleId, ...]


def schedule(counts: Counts, repeat_share: float, seed: int) -> list[Block]:
    """Return all measurements in order: plans task by task, between which the shard sets are spread evenly.

    Args:
        counts: samples per kind and role, of steps tasks.
        repeat_share: share of the samples that is measured twice: the first ones of every role.
        seed: of the order.
    """

    def numbers(kind: Kind) -> Iterator[tuple[Role, int, int]]:
        for role, count in counts[kind].items():
            yield from ((role, number, 0) for number in range(count))
            yield from ((role, number, 1) for number in range(round(repeat_share * count)))

    rng = StableRandom(seed, "order")
    samples = [SampleId("compute", *named) for named in numbers("compute")]
    shard_sets = rng.sample(samples, len(samples))
    tasks = [plans_of_task(*named) for named in numbers("steps")]
    tasks = rng.sample(tasks, len(tasks)) or [()]
    edges = [round(i * len(shard_sets) / len(tasks)) for i in range(len(tasks) + 1)]
    return [Block(tuple(shard_sets[edges[i] : edges[i + 1]]), plans) for i, plans in enumerate(tasks)]


def plans_of_task(role: Role, task: int, repeat: int) -> tuple[SampleId, ...]:
    """Return the samples that are the plans of a task."""
    count = plans_per_task(role)
    return tuple(SampleId("steps", role, task * count + plan, repeat) for plan in range(count))


@dataclass(frozen=True)
class CollectionPlan:
    """Everything that follows from the arguments before anything is measured.

    Attributes:
        device: "cpu" or "cuda".
        counts: samples per kind and role, without repeats; of steps tasks.
        repeat_share: share of them that is measured twice.
        seed: of all draws and of the order.
        space: that the shard sets of a wide collection draw from; None when they are of a pool.
        most_devices: tasks of more devices are left out.
    """

    device: str
    counts: Counts
    repeat_share: float
    seed: int
    space: Space | None = None
    most_devices: int = max(DEVICES)

    @property
    def steps(self) -> StepCounts:
        """Steps per sample."""
        return STEPS if self.space is None else SPACE_STEPS

    def settings(self) -> dict[str, Any]:
        """Return what identifies the samples and how they are measured; the number of samples is not part of it."""
        common = {**self.steps._asdict(), "seed": self.seed, "step_draws": STEP_DRAWS}
        if self.space is not None:
            return {"device": self.device, "space": self.space.to_dict(), **common, "draws": f"space {SPACE_DRAWS}"}
        return {
            "device": self.device, **SETUPS[self.device]._asdict(), "overfull": OVERFULL, **common, "draws": DRAWS,
        }  # fmt: skip

    @cached_property
    def blocks(self) -> list[Block]:
        """All measurements in order. A wide collection has a time limit, so devices of whole plans come first."""
        if self.space is None:
            blocks = schedule(self.counts, self.repeat_share, self.seed)
        else:
            whole: Counts = {"compute": {"plans": self.counts["compute"].get("plans", 0)}, "steps": {}}
            rest: Counts = {
                kind: {role: count for role, count in roles.items() if role != "plans"}
                for kind, roles in self.counts.items()
            }
            blocks = schedule(whole, 1.0, self.seed) + schedule(rest, self.repeat_share, self.seed)
        return [block if self._can_run(block.plans) else block._replace(plans=()) for block in blocks]

    def _can_run(self, plans: Sequence[SampleId]) -> bool:
        return not plans or self._steps.devices(plans[0].role, plans[0].task) <= self.most_devices

    def samples(self) -> Iterator[SampleId]:
        """Yield all measurements in order."""
        for block in self.blocks:
            yield from (*block.shard_sets, *block.plans)

    def shard_set(self, sample: SampleId) -> ShardSet:
        """Return the shard set of a compute sample."""
        return self._sampler.shard_set(sample.role, sample.number)

    def task(self, sample: SampleId) -> StepTask:
        """Return the task of a sample of steps."""
        return self._steps.task(sample.role, sample.task)

    def digest(self, sample: SampleId) -> str:
        """Return the identity of what is measured; repeats share it."""
        if sample.kind == "steps":
            return self.task(sample).digest(sample.plan)
        return self.set_digest(self.shard_set(sample))

    def set_digest(self, shard_set: ShardSet) -> str:
        """Return the identity of a shard set of this plan."""
        return shard_set_digest(shard_set, of_pool=self.space is None)

    @cached_property
    def _sampler(self) -> PoolSampler | SpaceSampler:
        if self.space is None:
            return PoolSampler(SETUPS[self.device], self.seed)
        return SpaceSampler(self.space, self.seed)

    @cached_property
    def _steps(self) -> StepSampler:
        return StepSampler(self.seed)
