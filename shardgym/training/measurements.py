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
from shardgym.costs.fbgemm.jobs import ShardSet
from shardgym.costs.fbgemm.step import PARTS
from shardgym.costs.links import samples_per_device
from shardgym.costs.simulator.samples import STEP_PARTS, ComputeRow, StepRow
from shardgym.errors import InputError
from shardgym.files import append_flushed, drop_torn_line, read_lines, write_whole
from shardgym.records import CONFIG, Digest, Name, Record
from shardgym.tables.table import REUSE_BINS
from shardgym.training.schedule import CollectionPlan, SampleId
from shardgym.training.settings import KINDS

INFO = "collection.json"
LOG = "measurements.jsonl"

#: Parts of a step that are kept: exchanges are not timed, and plans have neither row shards nor replicas.
WORK = tuple(part for part in PARTS if part in {*STEP_PARTS, "forward", "backward"})

Times = tuple[tuple[tuple[Annotated[float, Field(ge=0)], ...], ...], ...]


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
        times_ms: shape (steps, devices, parts): forward and backward of one device for compute, `WORK` of all devices
            of a plan for steps.
        reason: why there are no times; "" when there are.
    """

    sample_id: str
    content: Digest
    times_ms: Times = ()
    reason: str = ""
    schema: Literal["shardgym.measurement/1"] = "shardgym.measurement/1"

    @model_validator(mode="after")
    def _times_or_reason(self) -> Self:
        kind = SampleId.parse(self.sample_id).kind
        if bool(self.times_ms) == bool(self.reason):
            raise ValueError("expected times_ms, or a reason why there are none")
        if len({len(step) for step in self.times_ms}) > 1:
            raise ValueError("times_ms: every step must have the same number of devices")
        parts = len(WORK) if kind == "steps" else 2
        if any(len(device) != parts for step in self.times_ms for device in step):
            raise ValueError(f"times_ms: expected {parts} parts of each device")
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


def rows_of(log: MeasurementLog, plan: CollectionPlan, kind: str) -> list[ComputeRow]:
    """Return the rows of the data set of one kind, sorted by the name of the sample, then by device.

    Raises:
        InputError: a measurement is of something else than the plan has under its name.
    """
    chosen = sorted((m for m in log.done.values() if m.sample.kind == kind), key=lambda m: m.sample)
    rows: list[ComputeRow] = []
    for measurement in chosen:
        expected = plan.digest(measurement.sample)
        if measurement.content != expected:
            raise InputError(
                f"sample {measurement.sample_id} was measured of {measurement.content[:12]}, this version of shardgym "
                f"draws {expected[:12]}: its rules of drawing or its pool differ; finish the folder with the version "
                "that made it"
            )
        devices = 1 if kind == "compute" else len(plan.task(measurement.sample).plans[measurement.sample.plan])
        if len(measurement.times_ms[0]) != devices:
            raise InputError(
                f"sample {measurement.sample_id} has times of {len(measurement.times_ms[0])} devices, expected "
                f"{devices}: remove its line, and it is measured again"
            )
        rows += [_compute_row(plan, measurement)] if kind == "compute" else _step_rows(plan, measurement)
    return rows


def _compute_row(plan: CollectionPlan, measurement: Measurement) -> ComputeRow:
    """Times are medians over the steps."""
    sample = measurement.sample
    times = np.array(measurement.times_ms)[:, 0]
    forward_ms, backward_ms = np.median(times, axis=0).tolist()
    return ComputeRow(
        sample_id=measurement.sample_id, role=sample.role, content=measurement.content, repeat=sample.repeat,
        **_held(plan.shard_set(sample)),
        forward_ms=forward_ms, backward_ms=backward_ms, noise=_relative_error(times.sum(axis=1)),
    )  # fmt: skip


def _step_rows(plan: CollectionPlan, measurement: Measurement) -> list[StepRow]:
    """Return a row for each device that holds something. Times are medians over the steps."""
    sample = measurement.sample
    task = plan.task(sample)
    devices = task.plans[sample.plan]
    held = [shard_set for shard_set in devices if shard_set is not None]
    batch_size = held[0].batch_size
    samples = samples_per_device(batch_size, len(devices)).tolist()
    times = np.array(measurement.times_ms)
    plan_ids = batch_size * sum(shard.ids_per_sample for shard_set in held for shard in shard_set.shards)
    rows = []
    for device, (shard_set, content) in enumerate(zip(devices, task.digests(sample.plan), strict=True)):
        if shard_set is None or content is None:
            continue
        of_device = dict(zip(WORK, times[:, device].T, strict=True))
        typical: dict[str, Any] = {part: float(np.median(ms)) for part, ms in of_device.items()}
        rows.append(StepRow(
            # The repeat stands last, as in names of compute samples.
            sample_id=f"steps/{sample.role}/{sample.number}/{device}/{sample.repeat}",
            role=sample.role, content=content, repeat=sample.repeat, **_held(shard_set),
            forward_ms=typical["forward"], backward_ms=typical["backward"],
            noise=_relative_error(of_device["forward"] + of_device["backward"]),
            plan=f"{sample.role}/{sample.task}/{sample.plan}", device=device, num_devices=len(devices),
            samples=samples[device],
            plan_shards=sum(len(shard_set.shards) for shard_set in held),
            plan_ids=plan_ids,
            plan_columns=sum(shard_set.width for shard_set in held),
            **{f"{part}_ms": typical[part] for part in STEP_PARTS},
        ))  # fmt: skip
    return rows


def _held(shard_set: ShardSet) -> dict[str, Any]:
    """Return the columns of a row that say what a device holds."""
    shards = shard_set.shards
    return {
        "batch_size": shard_set.batch_size,
        "precision": shard_set.precision,
        "optimizer": shard_set.optimizer,
        "num_embeddings": [s.num_rows for s in shards],
        "embedding_dim": [s.width for s in shards],
        "pooling_factor": [s.ids_per_sample for s in shards],
        "reuse_histogram": [list(s.table.reuse_histogram or (0.0,) * REUSE_BINS) for s in shards],
        "table_name": [s.table.name for s in shards],
    }


def _relative_error(times: Floats) -> float:
    """Return the relative standard error of the mean of some times; 0 for a single one."""
    if len(times) < 2:
        return 0.0
    return float(times.std(ddof=1) / np.sqrt(len(times)) / times.mean())


@dataclasses.dataclass(frozen=True)
class RepeatNoise:
    """How two measurements of the same thing differ, by all work of a device.

    Attributes:
        pairs: rows that were measured twice.
        cv: coefficient of variation, root mean square over the pairs.
        mape: mean absolute percentage error of one measurement against the other, as a share.
    """

    pairs: int
    cv: float
    mape: float

    def __str__(self) -> str:
        return f"repeats: CV {100 * self.cv:.1f} %, MAPE {100 * self.mape:.1f} % over {self.pairs} pairs"


def repeat_noise(rows: Sequence[ComputeRow]) -> RepeatNoise | None:
    """Compare the first measurement of every row with its repeat; None without pairs."""
    totals = {row.sample_id: row.work_ms for row in rows}
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
        counts: measurements by kind and role, repeats included; of steps plans.
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
