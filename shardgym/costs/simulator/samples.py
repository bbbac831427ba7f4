"""Samples as arrays: what models are trained and tested on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats, Ints
from shardgym.task import ELEMENT_BYTES, OPTIMIZER_STATE

Strings = npt.NDArray[np.str_]


@dataclass(frozen=True)
class Shards:
    """The shards of any number of device contents, in one flat list of S shards.

    Attributes:
        rows: shape (S,).
        columns: shape (S,).
        pooling: mean ids per sample, shape (S,).
        reuse: reuse histograms, shape (S, 17).
        batch: samples of the batch, shape (S,).
        element_bytes: bytes of one weight, shape (S,).
        state_per_weight: FP32 elements of optimiser state per weight, shape (S,).
        state_per_row: likewise per row, shape (S,).
    """

    rows: Floats
    columns: Floats
    pooling: Floats
    reuse: Floats
    batch: Floats
    element_bytes: Floats
    state_per_weight: Floats
    state_per_row: Floats

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: npt.NDArray[Any]) -> Shards:
        """Return the chosen shards."""
        return Shards(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Labels:
    """What both kinds of samples have besides features and times, each of shape (N,)."""

    sample_id: Strings
    role: Strings
    content: Strings
    repeat: Ints
    noise: Floats


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

    def take(self, index: npt.NDArray[Any]) -> ComputeSamples:
        """Return the samples at `index` (positions, not a mask), in that order."""
        rows = ragged(self.counts, index)
        labels = Labels(*(getattr(self.labels, name)[index] for name in Labels.__dataclass_fields__))
        return ComputeSamples(
            labels, self.shards.take(rows), self.counts[index], self.ms[index],
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

    def take(self, index: npt.NDArray[Any]) -> CommSamples:
        """Return the samples at `index` (positions, not a mask), in that order."""
        rows = ragged(self.counts, index)
        labels = Labels(*(getattr(self.labels, name)[index] for name in Labels.__dataclass_fields__))
        return CommSamples(
            labels, self.counts[index], self.batch[index], self.element_bytes[index], self.widths[rows],
            self.offsets_ms[rows], self.ms[rows],
        )  # fmt: skip


Samples = TypeVar("Samples", ComputeSamples, CommSamples)


def with_role(samples: Samples, role: str) -> Samples:
    """Return the samples of one role."""
    return samples.take(np.flatnonzero(samples.labels.role == role))


def ragged(counts: Ints, index: npt.NDArray[Any]) -> Ints:
    """Return positions in a flat list of the members of the groups at `index`, group after group."""
    ends = np.cumsum(counts)
    sizes = counts[index]
    starts = np.repeat((ends - counts)[index] - (np.cumsum(sizes) - sizes), sizes)
    return np.asarray(starts + np.arange(sizes.sum()), dtype=np.int64)


def compute_samples(table: Any) -> ComputeSamples:
    """Convert a checked `pyarrow.Table` of compute rows."""
    counts = _counts(table, "num_embeddings")
    precision, optimizer = _strings(table, "precision"), _strings(table, "optimizer")
    state = np.array([OPTIMIZER_STATE[name] for name in optimizer], dtype=np.float64)
    shards = Shards(
        rows=_flat(table, "num_embeddings"),
        columns=_flat(table, "embedding_dim"),
        pooling=_flat(table, "pooling_factor"),
        reuse=_flat(table, "reuse_histogram").reshape(int(counts.sum()), -1),
        batch=np.repeat(_flat(table, "batch_size"), counts),
        element_bytes=np.repeat([float(ELEMENT_BYTES[p]) for p in precision], counts),
        state_per_weight=np.repeat(state[:, 0], counts),
        state_per_row=np.repeat(state[:, 1], counts),
    )
    ms = np.column_stack([_flat(table, "forward_ms"), _flat(table, "backward_ms")])
    return ComputeSamples(_labels(table), shards, counts, ms, precision, optimizer, _strings(table, "table_name"))


def comm_samples(table: Any) -> CommSamples:
    """Convert a checked `pyarrow.Table` of communication rows."""
    return CommSamples(
        _labels(table), _counts(table, "widths"), _flat(table, "batch_size"), _flat(table, "element_bytes"),
        _flat(table, "widths"), _flat(table, "start_offsets_ms"),
        np.column_stack([_flat(table, "forward_ms"), _flat(table, "backward_ms")]),
    )  # fmt: skip


def _labels(table: Any) -> Labels:
    return Labels(
        _strings(table, "sample_id"), _strings(table, "role"), _strings(table, "content"),
        _flat(table, "repeat").astype(np.int64), _flat(table, "noise"),
    )  # fmt: skip


def _values(table: Any, name: str) -> Any:
    column = table.column(name).combine_chunks()
    while hasattr(column.type, "value_type"):
        column = column.flatten()
    return column


def _flat(table: Any, name: str) -> Floats:
    return np.asarray(_values(table, name).to_numpy(zero_copy_only=False), dtype=np.float64)


def _strings(table: Any, name: str) -> Strings:
    return np.array(_values(table, name).to_pylist(), dtype=np.str_)


def _counts(table: Any, name: str) -> Ints:
    return np.asarray(table.column(name).combine_chunks().value_lengths().to_numpy(), dtype=np.int64)
