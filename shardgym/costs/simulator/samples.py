"""Measured samples: rows as they are collected, and arrays that models are trained and tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import Shards

Strings = npt.NDArray[np.str_]

#: Who may learn from a row: the oracle, the judge, or nobody. `test` rows measure errors; `plans` rows are the devices
#: of complete plans and measure how well plans are ranked; `transfer` rows are of a pool that no role learns from.
ROLES = ("oracle", "judge", "test", "plans", "transfer")


#: Parts of a complete step, beside forward and backward, that are work of a device alone; in order.
STEP_PARTS = ("pack_ids", "count_ids", "group_ids", "join_outputs", "pack_gradients")


@dataclass(frozen=True)
class ComputeRow:
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
        noise: relative standard error of forward plus backward over the steps of this measurement.
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

    @property
    def work_ms(self) -> float:
        """All that was measured of the device."""
        return self.forward_ms + self.backward_ms


@dataclass(frozen=True)
class StepRow(ComputeRow):
    """One device that holds something, in complete steps of a plan. `content` is that of its shard set alone.

    Times are CPU times of the device's process, of work alone: exchanges between devices are not in them.

    Attributes:
        plan: "ROLE/TASK/PLAN"; rows with the same plan, repeat and file were measured in the same steps.
        device: number of the device in its plan.
        num_devices: of the plan; those that hold nothing have no row.
        samples: this device's share of the batch.
        plan_shards: shards on all devices.
        plan_ids: ids that all shards look up in a step, expected; ids that two column shards need count twice.
        plan_columns: columns of all shards.
        pack_ids_ms: joining the ids of the device's own samples, in the order in which they are sent.
        count_ids_ms: counting ids by the lengths of bags, before ids are exchanged.
        group_ids_ms: bringing received ids into the order of shards.
        join_outputs_ms: joining pooled values of all devices.
        pack_gradients_ms: joining gradients of all devices, in the order in which they are sent.
    """

    plan: str
    device: int
    num_devices: int
    samples: int
    plan_shards: int
    plan_ids: float
    plan_columns: int
    pack_ids_ms: float
    count_ids_ms: float
    group_ids_ms: float
    join_outputs_ms: float
    pack_gradients_ms: float

    @property
    def work_ms(self) -> float:
        """All that was measured of the device."""
        return super().work_ms + float(sum(getattr(self, f"{part}_ms") for part in STEP_PARTS))


@dataclass(frozen=True)
class Labels:
    """What samples have besides features and times, each of shape (N,).

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
class StepSamples:
    """N devices in complete steps; see `StepRow`.

    Attributes:
        compute: what each device holds, with its forward and backward times.
        plan: of each device, shape (N,).
        device, num_devices, samples: likewise.
        plan_shards, plan_ids, plan_columns: of each device's plan, shape (N,).
        parts_ms: times of `STEP_PARTS`, shape (N, 5).
    """

    compute: ComputeSamples
    plan: Strings
    device: Ints
    num_devices: Ints
    samples: Ints
    plan_shards: Ints
    plan_ids: Floats
    plan_columns: Ints
    parts_ms: Floats

    def __len__(self) -> int:
        return len(self.plan)

    @property
    def labels(self) -> Labels:
        """Labels of each device."""
        return self.compute.labels

    def take(self, index: Ints) -> StepSamples:
        """Return the devices at `index` (positions, not a mask), in that order."""
        columns = [getattr(self, field.name)[index] for field in fields(self)[1:]]
        return StepSamples(self.compute.take(index), *columns)


Samples = TypeVar("Samples", ComputeSamples, StepSamples)


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
