"""The pace of a machine: what fixed work takes on it, over what that took on the machine of `pace.json`.

Processors differ, and one processor differs from day to day by a third. The rates of links are fixed, so without a
pace a slow machine would measure tasks in which exchanges weigh less. Measured exchanges therefore take as many times
longer as the machine's work does: a cost measured at another pace is the same cost in other units, see
`PlanCost.at_pace`.
"""

import functools
import math
import statistics
import time
from collections import deque
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.arrays import Floats
from shardgym.costs.fbgemm.jobs import ReferenceJob, ShardSet, ShardSpec, TimingJob
from shardgym.costs.fbgemm.workers import Workers
from shardgym.records import CONFIG, Name, Record
from shardgym.tables.table import EmbeddingTable, ZipfIds

#: Seconds after which the reference is timed again; how often it is timed at first, and of how many of the last times
#: the median counts. One time is off by 4 %, and now and then by a third.
_AGAIN_S = 60.0
_FIRST = 3
_KEPT = 9
_WARMUPS = 1
_ITERATIONS = 3

#: Shard sets of the reference, and what is in them: as in the suites for CPUs.
_SETS = 12
_TABLES_PER_SET = 5
_BATCH_SIZE = 8192
_ROWS = (300, 5_000, 40_000, 200_000, 600_000)
_WIDTHS = (4, 8, 16, 32, 64, 128)
_POOLING_FACTORS = (1.0, 2.0, 5.0, 12.0, 30.0, 60.0, 4.0)


@dataclass(frozen=True, config=CONFIG)
class Reference(Record):
    """What the reference took on the machine that paces are relative to; `tools/time_reference.py` writes it."""

    #: Forward plus backward compute of each shard set.
    compute_ms: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=_SETS, max_length=_SETS)]
    hardware: Name  #: tag of that machine
    created: Name  #: UTC, ISO 8601
    schema: Literal["shardgym.pace/1"] = "shardgym.pace/1"


class Pace:
    """The pace of the processes of complete steps, one for each device; they run no steps meanwhile."""

    def __init__(self, group: Workers, num_devices: int) -> None:
        self._group = group
        self._num_devices = num_devices
        self._again_s = -math.inf
        self._paces: deque[float] = deque(maxlen=_KEPT)

    def now(self) -> float:
        """Return the pace; the reference is timed again after a minute, and times before a long pause do not count."""
        late_s = time.monotonic() - self._again_s
        if late_s >= _KEPT * _AGAIN_S:
            self._paces.clear()
        if late_s >= 0:
            for _ in range(1 if self._paces else _FIRST):
                taken_ms = time_reference(self._group, self._num_devices)
                self._paces.append(float(np.exp(np.log(taken_ms / shipped_reference().compute_ms).mean())))
            self._again_s = time.monotonic() + _AGAIN_S
        return statistics.median(self._paces)


def time_reference(group: Workers, num_devices: int) -> Floats:
    """Return forward plus backward ms of each shard set of the reference, while all devices work, shape (12,)."""
    numbers = np.arange(math.ceil(_SETS / num_devices) * num_devices).reshape(-1, num_devices) % _SETS
    jobs = [TimingJob(_shard_set(number), _WARMUPS, _ITERATIONS) for number in range(_SETS)]
    job = ReferenceJob(tuple(tuple(jobs[number] for number in of_device) for of_device in numbers.T))
    logs_ms: list[list[float]] = [[] for _ in jobs]
    for of_device, answers in zip(numbers.T, group.ask(job), strict=True):
        for number, times in zip(of_device, answers, strict=True):
            logs_ms[number].append(float(np.log(np.median(times.sum(axis=1)))))
    return np.exp([np.mean(of_set) for of_set in logs_ms])


@functools.cache
def _shard_set(number: int) -> ShardSet:
    """Return a shard set of the reference; rows, widths and pooling factors take turns at lengths without a factor."""
    shards = []
    for n in range(number * _TABLES_PER_SET, (number + 1) * _TABLES_PER_SET):
        rows = _ROWS[n % len(_ROWS)]
        pooling_factor = _POOLING_FACTORS[n % len(_POOLING_FACTORS)]
        table = EmbeddingTable(f"reference-{n}", rows, max(_WIDTHS), pooling_factor, ZipfIds(s=1.0))
        shards.append(ShardSpec(table, (0, rows), _WIDTHS[n % len(_WIDTHS)]))
    return ShardSet.in_order(shards, _BATCH_SIZE, "fp32", "exact_sgd")


@functools.cache
def shipped_reference() -> Reference:
    """Return the reference that comes with the package."""
    return Reference.load(Path(__file__).with_name("pace.json"))
