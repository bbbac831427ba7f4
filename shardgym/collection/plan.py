"""CollectionPlan: everything that follows from the arguments before anything is measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardgym.collection.contents import ContentSampler, content_digest
from shardgym.collection.exchanges import ExchangeSampler, ExchangeSpec
from shardgym.collection.schedule import Block, Entry, devices_of, schedule
from shardgym.collection.setup import EFFORT, OVERFULL, SETUPS, Counts
from shardgym.costs.fbgemm.content import Content

#: Number of the rules that samples are drawn by. It must grow when any draw changes, so that folders are not mixed.
DRAWS = 2


@dataclass(frozen=True)
class CollectionPlan:
    """Which samples there are and in which order they are measured.

    Attributes:
        device: "cpu" or "cuda".
        counts: samples per kind and role, without repeats.
        repeat_share: share of them that is measured twice.
        device_counts: that exchanges are measured over.
        seed: of all draws and of the order.
    """

    device: str
    counts: Counts
    repeat_share: float
    device_counts: tuple[int, ...]
    seed: int

    def settings(self) -> dict[str, Any]:
        """Return what identifies the samples and how they are measured; the number of samples is not part of it."""
        return {
            "device": self.device, **SETUPS[self.device]._asdict(), "overfull": OVERFULL, **EFFORT._asdict(),
            "device_counts": list(self.device_counts), "seed": self.seed, "draws": DRAWS,
        }  # fmt: skip

    @cached_property
    def blocks(self) -> list[Block]:
        """All measurements in order."""
        return schedule(self.counts, self.repeat_share, self.device_counts, self.seed)

    def entries(self) -> Iterator[Entry]:
        """Yield all measurements."""
        for block in self.blocks:
            yield from (*block.compute, *block.comm)

    def content(self, entry: Entry) -> Content:
        """Return the shard set of a compute measurement."""
        return self.contents.content(entry.role, entry.number)

    def exchange(self, entry: Entry) -> ExchangeSpec:
        """Return the exchange of a communication measurement."""
        devices = devices_of(entry, self.device_counts, self.seed)
        return self._exchanges.exchange(entry.role, entry.number, devices)

    def digest(self, entry: Entry) -> str:
        """Return the identity of what is measured; repeats share it."""
        return content_digest(self.content(entry)) if entry.kind == "compute" else self.exchange(entry).digest

    @cached_property
    def contents(self) -> ContentSampler:
        """Draws shard sets."""
        return ContentSampler(SETUPS[self.device], self.seed)

    @cached_property
    def _exchanges(self) -> ExchangeSampler:
        return ExchangeSampler(SETUPS[self.device], self.seed)
