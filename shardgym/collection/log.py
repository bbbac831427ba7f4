"""The measurements of a folder while they are made: one JSON line each, appended and flushed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from shardgym.collection.schedule import Entry
from shardgym.errors import InputError
from shardgym.files import append_flushed, drop_torn_line, read_lines
from shardgym.records import CONFIG, Digest, Record

LOG = "measurements.jsonl"

Times = tuple[tuple[Annotated[float, Field(ge=0)], ...], ...]


@dataclass(frozen=True, config=CONFIG)
class Measurement(Record):
    """What was measured for one sample, or why nothing was. The sample itself follows from its name and the seed.

    Attributes:
        sample_id: see `Entry`.
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
        Entry.parse(self.sample_id)
        if bool(self.forward_ms) != bool(self.backward_ms) or bool(self.forward_ms) == bool(self.reason):
            raise ValueError("expected forward_ms and backward_ms, or a reason why there are none")
        if len({len(step) for step in (*self.forward_ms, *self.backward_ms)}) > 1:
            raise ValueError("every step of forward_ms and backward_ms must have the same number of devices")
        return self

    @property
    def ok(self) -> bool:
        """Whether there are times."""
        return not self.reason

    @property
    def entry(self) -> Entry:
        """The measurement's place in the plan."""
        return Entry.parse(self.sample_id)


class MeasurementLog:
    """The measurements of one folder. The caller holds the folder (`only_writer`) when it appends.

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
            self._keep(Measurement.from_json(line.text, source=line.where(self.path)), line.where(self.path))

    def append(self, measurement: Measurement) -> None:
        """Append one measurement and flush it to the disk; raises `InputError` when the disk is full."""
        append_flushed(self.path, (measurement.to_json() + "\n").encode())
        self._keep(measurement, str(self.path))

    def _keep(self, measurement: Measurement, where: str) -> None:
        name = measurement.sample_id
        if not measurement.ok:
            self.failed[name] = measurement.reason
            return
        if name in self.done:
            raise InputError(f"{where}: sample {name} has been measured already: remove one of its lines")
        self.failed.pop(name, None)
        self.done[name] = measurement
