"""What a folder of measurements holds: what it is about, its log, the rows of its Parquet files, and a summary."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from shardgym.arrays import Floats
from shardgym.collection.schedule import CollectionPlan, SampleId
from shardgym.collection.settings import KINDS
from shardgym.costs.fbgemm.communication import QUANTILE
from shardgym.costs.simulator.samples import CommRow, ComputeRow
from shardgym.errors import InputError
from shardgym.files import append_flushed, drop_torn_line, read_lines, write_whole
from shardgym.records import CONFIG, Digest, Name, Record
from shardgym.table import REUSE_BINS
from shardgym.task import ELEMENT_BYTES

INFO = "collection.json"
LOG = "measurements.jsonl"

Times = tuple[tuple[Annotated[float, Field(ge=0)], ...], ...]
Rows = Sequence[ComputeRow] | Sequence[CommRow]


@dataclass(frozen=True, config=CONFIG)
class CollectionInfo(Record):
    """What the measurements of one folder have in common, so that they are never mixed with others.

    Attributes:
        hardware: tag of the machine.
        versions: of what can change a time.
        settings: which samples, and how they are measured.
    """

    hardware: Name
    versions: dict[str, str]
    settings: dict[str, Any]
    schema: Literal["shardgym.collection/1"] = "shardgym.collection/1"

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """Read the file of a folder; raises `InputError` when it has none."""
        path = folder / INFO
        if not path.exists():
            raise InputError(f"{folder} holds no {INFO}: expected a folder that 'shardgym collect' wrote into")
        return cls.load(path)

    def write_or_check(self, folder: Path) -> None:
        """Write the file of a new folder, or check that the folder is about the same.

        Raises:
            InputError: the folder is about something else; the first field that differs is named.
        """
        if not (folder / INFO).exists():
            others = sorted(p.name for p in folder.iterdir() if p.suffix in (".jsonl", ".parquet"))
            if others:
                raise InputError(f"{folder} holds {others[0]} but no {INFO}: give an empty folder")
            write_whole(folder / INFO, self.to_json(indent=2) + "\n")
            return
        old = CollectionInfo.of_folder(folder)
        before = {"hardware": old.hardware, **old.settings, **old.versions}
        now = {"hardware": self.hardware, **self.settings, **self.versions}
        for name in {**before, **now}:
            if before.get(name) != now.get(name):
                raise InputError(
                    f"{folder} holds measurements of {name} {before.get(name)!r}, this run has {now.get(name)!r}: "
                    "give another folder"
                )


@dataclass(frozen=True, config=CONFIG)
class Measurement(Record):
    """What was measured for one sample, or why nothing was. The sample itself follows from its name and the seed.

    Attributes:
        sample_id: see `SampleId`.
        content: digest of what was measured.
        forward_ms: forward times, shape (steps, devices); one device for compute.
        backward_ms: backward times, likewise, not necessarily as many steps.
        reason: why there are no times; "" when there are.
    """

    sample_id: str
    content: Digest
    forward_ms: Times = ()
    backward_ms: Times = ()
    reason: str = ""
    schema: Literal["shardgym.measurement/1"] = "shardgym.measurement/1"

    @model_validator(mode="after")
    def _times_or_reason(self) -> Self:
        SampleId.parse(self.sample_id)
        if bool(self.forward_ms) != bool(self.backward_ms) or bool(self.forward_ms) == bool(self.reason):
            raise ValueError("expected forward_ms and backward_ms, or a reason why there are none")
        if len({len(step) for step in (*self.forward_ms, *self.backward_ms)}) > 1:
            raise ValueError("every step of forward_ms and backward_ms must have the same number of devices")
        return self

    @property
    def sample(self) -> SampleId:
        """The measurement's name, in its parts."""
        return SampleId.parse(self.sample_id)


class MeasurementLog:
    """The measurements of a folder: one JSON line each, appended and flushed while they are made.

    The caller holds the folder (`only_writer`) when it appends.

    Attributes:
        path: the file.
        done: measurements with times by name.
        failed: reasons by name, for what has no times (yet): a later measurement replaces them.
        dropped: whether a last line was removed because a kill had cut it off.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG
        self.done: dict[str, Measurement] = {}
        self.failed: dict[str, str] = {}
        self.dropped = drop_torn_line(self.path) is not None
        for line in read_lines(self.path) if self.path.exists() else []:
            self._add(Measurement.from_json(line.text, source=line.where(self.path)), line.where(self.path))

    def append(self, measurement: Measurement) -> None:
        """Append one measurement and flush it to the disk; raises `InputError` when the disk is full."""
        append_flushed(self.path, (measurement.to_json() + "\n").encode())
        self._add(measurement, str(self.path))

    def _add(self, measurement: Measurement, where: str) -> None:
        name = measurement.sample_id
        if measurement.reason:
            self.failed[name] = measurement.reason
            return
        if name in self.done:
            raise InputError(f"{where}: sample {name} has been measured already: remove one of its lines")
        self.failed.pop(name, None)
        self.done[name] = measurement


def rows_of(log: MeasurementLog, plan: CollectionPlan, kind: str) -> Rows:
    """Return the rows of the data set of one kind, sorted by name.

    Raises:
        InputError: a measurement is of something else than the plan has under its name.
    """
    chosen = sorted((m for m in log.done.values() if m.sample.kind == kind), key=lambda m: m.sample)
    for measurement in chosen:
        expected = plan.digest(measurement.sample)
        if measurement.content != expected:
            raise InputError(
                f"sample {measurement.sample_id} was measured of {measurement.content[:12]}, this version of shardgym "
                f"draws {expected[:12]}: its rules of drawing or its pool differ; finish the folder with the version "
                "that made it"
            )
    if kind == "compute":
        return [_compute_row(plan, measurement) for measurement in chosen]
    return [_comm_row(plan, measurement) for measurement in chosen]


def _compute_row(plan: CollectionPlan, measurement: Measurement) -> ComputeRow:
    """Times are medians over the steps."""
    sample = measurement.sample
    shard_set = plan.shard_set(sample)
    shards = shard_set.shards
    forward = np.array(measurement.forward_ms)[:, 0]
    backward = np.array(measurement.backward_ms)[:, 0]
    return ComputeRow(
        measurement.sample_id, sample.role, measurement.content, sample.repeat,
        shard_set.batch_size, shard_set.precision, shard_set.optimizer,
        num_embeddings=[s.num_rows for s in shards],
        embedding_dim=[s.width for s in shards],
        pooling_factor=[s.ids_per_sample for s in shards],
        reuse_histogram=[list(s.table.reuse_histogram or (0.0,) * REUSE_BINS) for s in shards],
        table_name=[s.table.name for s in shards],
        forward_ms=float(np.median(forward)),
        backward_ms=float(np.median(backward)),
        noise=_relative_error(forward + backward),
    )  # fmt: skip


def _comm_row(plan: CollectionPlan, measurement: Measurement) -> CommRow:
    """Times are lower quartiles over the iterations, as in the measured cost."""
    sample = measurement.sample
    exchange = plan.exchange(sample)
    forward = np.array(measurement.forward_ms)
    backward = np.array(measurement.backward_ms)
    fewest = min(len(forward), len(backward))
    forward_ms = np.quantile(forward, QUANTILE, axis=0)
    backward_ms = np.quantile(backward, QUANTILE, axis=0)
    slowest = int((forward_ms + backward_ms).argmax())
    return CommRow(
        measurement.sample_id, sample.role, measurement.content, sample.repeat,
        num_devices=len(exchange.widths), batch_size=exchange.batch_size,
        element_bytes=ELEMENT_BYTES[exchange.precision],
        widths=list(exchange.widths), start_offsets_ms=list(exchange.offsets_ms),
        forward_ms=forward_ms.tolist(), backward_ms=backward_ms.tolist(),
        noise=_relative_error(forward[:fewest, slowest] + backward[:fewest, slowest]),
    )  # fmt: skip


def _relative_error(times: Floats) -> float:
    """Return the relative standard error of the mean of some times; 0 for a single one."""
    if len(times) < 2:
        return 0.0
    return float(times.std(ddof=1) / np.sqrt(len(times)) / times.mean())


@dataclasses.dataclass(frozen=True)
class RepeatNoise:
    """How two measurements of the same thing differ: forward plus backward, of the slowest device for exchanges.

    Attributes:
        pairs: samples that were measured twice.
        cv: coefficient of variation, root mean square over the pairs.
        mape: mean absolute percentage error of one measurement against the other, as a share.
    """

    pairs: int
    cv: float
    mape: float

    def __str__(self) -> str:
        return f"repeats: CV {100 * self.cv:.1f} %, MAPE {100 * self.mape:.1f} % over {self.pairs} pairs"


def repeat_noise(rows: Rows) -> RepeatNoise | None:
    """Compare the first measurement of every sample with its repeat; None without pairs."""
    totals = {row.sample_id: float(np.max(np.add(row.forward_ms, row.backward_ms))) for row in rows}
    ratios = [
        totals[first] / totals[row.sample_id]
        for row in rows
        if row.repeat == 1 and (first := row.sample_id.removesuffix("/1") + "/0") in totals
    ]
    if not ratios:
        return None
    cv = math.sqrt((np.log(ratios) ** 2).mean() / 2)
    return RepeatNoise(len(ratios), cv, float(np.abs(np.subtract(ratios, 1)).mean()))


@dataclasses.dataclass(frozen=True)
class Summary:
    """The state of a folder.

    Attributes:
        counts: measurements by kind and role, repeats included.
        noise: by kind; a kind without pairs is missing.
        failed: reasons by sample, of what could not be measured.
        missing: measurements of the plan that the folder lacks.
        measured: by kind, how many were made by this run.
        minutes: by kind, how long this run measured it.
        files: paths by content.
        notices: sentences that a reader must know.
    """

    counts: dict[str, dict[str, int]]
    noise: dict[str, RepeatNoise]
    failed: dict[str, str]
    missing: int
    measured: dict[str, int]
    minutes: dict[str, float]
    files: dict[str, str]
    notices: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data, with samples per minute of this run by kind."""
        return {**dataclasses.asdict(self), "per_minute": self.per_minute}

    def lines(self) -> list[str]:
        """Return it as text."""
        found: list[str] = []
        for kind in (kind for kind in KINDS if kind in self.counts):
            roles = ", ".join(f"{role} {count}" for role, count in self.counts[kind].items())
            parts = [f"{kind}: {sum(self.counts[kind].values())} ({roles})"]
            if kind in self.per_minute:
                parts.append(f"{self.per_minute[kind]:.0f} per minute")
            if kind in self.noise:
                parts.append(str(self.noise[kind]))
            found.append("; ".join(parts))
        found += [f"failed: {name}: {reason}" for name, reason in list(self.failed.items())[:3]]
        if self.failed:
            found.append(f"{len(self.failed)} samples failed; the same command tries them again")
        if self.missing:
            found.append(f"{self.missing} samples are missing; the same command continues")
        return [*found, *self.notices, *(f"{what}: {path}" for what, path in self.files.items())]

    @property
    def per_minute(self) -> dict[str, float]:
        """Samples per minute of this run, by kind."""
        return {kind: self.measured[kind] / self.minutes[kind] for kind in self.measured if self.minutes[kind] > 0}
