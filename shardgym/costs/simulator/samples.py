"""Measured samples: rows as they are collected, and arrays that models are trained and tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import Shards

Strings = npt.NDArray[np.str_]

#: Who may learn from a row: the oracle, the judge, or nobody. `test` rows measure errors; `plans` rows are the devices
#: of complete plans and measure how well plans are ranked; `transfer` rows are of a pool that no role learns from.
ROLES = ("oracle", "judge", "test", "plans", "transfer")


class ComputeRow(NamedTuple):
    """One measurement of what one device holds. Lists have one entry per shard.

    Attributes:
        sample_id: unique within a data set.
        role: one of `ROLES`.
        content: digest of everything the time depends on; repeats share it.
        repeat: 0 for the first measurement of a content, 1 for the next, ...
        batch_size: samples of the batch.
        precision: of the weights.
        optimizer: fused into the backward pass.
        num_embeddings: rows of each shard.
        embedding_dim: columns of each shard.
        pooling_factor: mean ids per sample that fall into each shard.
        reuse_histogram: of each shard's table, see `EmbeddingTable`.
        table_name: of each shard's table in its pool.
        forward_ms: forward pass.
        backward_ms: backward pass with the optimiser's update.
        noise: relative standard error of forward plus backward over the rounds of this measurement.
    """

    sample_id: str
    role: str
    content: str
    repeat: int
    batch_size: int
    precision: str
    optimizer: str
    num_embeddings: list[int]
    embedding_dim: list[int]
    pooling_factor: list[float]
    reuse_histogram: list[list[float]]
    table_name: list[str]
    forward_ms: float
    backward_ms: float
    noise: float


class CommRow(NamedTuple):
    """One measurement of an all-to-all in both directions. Lists have one entry per device.

    Attributes:
        sample_id, role, content, repeat: as in `ComputeRow`.
        num_devices: devices that take part.
        batch_size: samples over all devices.
        element_bytes: bytes of one value.
        widths: columns of each device's pooled output.
        start_offsets_ms: how much later than the first each device enters the forward exchange.
        forward_ms: from each device's own start to its end, the offset not counted.
        backward_ms: likewise for the gradients, all devices starting together.
        noise: relative standard error of the slowest device's times over the rounds of this measurement.
    """

    sample_id: str
    role: str
    content: str
    repeat: int
    num_devices: int
    batch_size: int
    element_bytes: int
    widths: list[int]
    start_offsets_ms: list[float]
    forward_ms: list[float]
    backward_ms: list[float]
    noise: float


@dataclass(frozen=True)
class Labels:
    """What both kinds of samples have besides features and times, each of shape (N,).

    `collection` is the name of the file that a sample was read from: files are of other days, and of other draws.
    """

    sample_id: Strings
    role: Strings
    content: Strings
    repeat: Ints
    noise: Floats
    collection: Strings

    def take(self, index: Ints) -> Labels:
        """Return the chosen labels."""
        return Labels(*(getattr(self, field.name)[index] for field in fields(self)))


@dataclass(frozen=True)
class ComputeSamples:
    """N measured contents.

    Attributes:
        labels: of each sample.
        shards: of all samples, one sample after the other.
        counts: shards of each sample, shape (N,).
        ms: forward and backward times, shape (N, 2).
        precision: of each sample, shape (N,).
        optimizer: of each sample, shape (N,).
        table: names of the shards' tables, shape (S,).
    """

    labels: Labels
    shards: Shards
    counts: Ints
    ms: Floats
    precision: Strings
    optimizer: Strings
    table: Strings

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, index: Ints) -> ComputeSamples:
        """Return the samples at `index` (positions, not a mask), in that order."""
        rows = ragged(self.counts, index)
        return ComputeSamples(
            self.labels.take(index), self.shards.take(rows), self.counts[index], self.ms[index],
            self.precision[index], self.optimizer[index], self.table[rows],
        )  # fmt: skip


@dataclass(frozen=True)
class CommSamples:
    """N measured exchanges.

    Attributes:
        labels: of each sample.
        counts: devices of each sample, shape (N,).
        batch: samples over all devices, shape (N,).
        element_bytes: of one value, shape (N,).
        widths: columns of each device's pooled output, one sample after the other, shape (S,).
        offsets_ms: start offsets forward, shape (S,).
        ms: forward and backward times, shape (S, 2).
    """

    labels: Labels
    counts: Ints
    batch: Floats
    element_bytes: Floats
    widths: Floats
    offsets_ms: Floats
    ms: Floats

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, index: Ints) -> CommSamples:
        """Return the samples at `index` (positions, not a mask), in that order."""
        rows = ragged(self.counts, index)
        return CommSamples(
            self.labels.take(index), self.counts[index], self.batch[index], self.element_bytes[index],
            self.widths[rows], self.offsets_ms[rows], self.ms[rows],
        )  # fmt: skip


Samples = TypeVar("Samples", ComputeSamples, CommSamples)


def joined(parts: Sequence[Samples]) -> Samples:
    """Return the samples of several data sets as one."""
    return _concatenated(parts) if len(parts) > 1 else parts[0]


def _concatenated(parts: Sequence[Any]) -> Any:
    """Join arrays, and dataclasses of arrays field by field."""
    first = parts[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    return type(first)(*(_concatenated([getattr(part, field.name) for part in parts]) for field in fields(first)))


def with_role(samples: Samples, role: str) -> Samples:
    """Return the samples of one role."""
    return samples.take(np.flatnonzero(samples.labels.role == role))


def ragged(counts: Ints, index: Ints) -> Ints:
    """Return positions in a flat list of the members of the groups at `index`, group after group."""
    ends = np.cumsum(counts)
    sizes = counts[index]
    starts = np.repeat((ends - counts)[index] - (np.cumsum(sizes) - sizes), sizes)
    return np.asarray(starts + np.arange(sizes.sum()), dtype=np.int64)
