"""Two figures of a device that the analytic cost has constants for: copy bandwidth and what launching costs."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.records import CONFIG, Record

Positive = Annotated[float, Field(gt=0)]


class Probe(NamedTuple):
    """A message to a worker: measure the device itself."""


@dataclass(frozen=True, config=CONFIG)
class DeviceFacts(Record):
    """What a device does besides FBGEMM kernels; medians of several rounds.

    Attributes:
        copy_bandwidth: bytes per second of a copy within the device's memory, reads and writes both counted.
        launch_ms: time of one operation on a single number, of many in a row: a kernel launch on a GPU.
    """

    copy_bandwidth: Positive
    launch_ms: Positive
    schema: Literal["shardgym.device_facts/1"] = "shardgym.device_facts/1"
