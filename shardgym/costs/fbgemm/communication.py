"""The measured all-to-all: a persistent group of processes, one per device, on gloo or nccl."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.fbgemm.process import ChildProcess
from shardgym.costs.fbgemm.rounds import interleaved, mean_of_medians
from shardgym.costs.links import pooled_widths, samples_per_device, start_offsets
from shardgym.errors import MeasurementError
from shardgym.machine import available_bytes
from shardgym.plans.plan import ShardingPlan
from shardgym.tables.table import Precision
from shardgym.tasks.task import ELEMENT_BYTES, ShardingTask

#: Ranks sleep through their start offsets. So that a round takes about this long, one with large offsets has fewer
#: iterations.
ROUND_MS = 300.0
#: Quantile over the iterations of a round that counts as the time of the exchange.
QUANTILE = 0.25
#: Iterations of an exchange for every iteration of compute: they are shorter and noisier.
_ITERATION_FACTOR = 3
#: Offsets are rounded to this, so that plans with the same compute share a measurement.
_OFFSET_STEP_MS = 0.01

_MODULE = "shardgym.costs.fbgemm.rank"
_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
_START_S = 180.0
#: Share of the available memory that buffers may take.
_USABLE = 0.9
#: Seconds without an exchange after which ranks are pinged before the next one, and time limit of a ping.
_IDLE_S = 1.0
_PING_S = 10.0
#: Seconds to wait for the exit of a rank that its peers report as lost.
_NOTICE_S = 2.0


class AllToAll(NamedTuple):
    """One all-to-all of pooled values.

    Attributes:
        widths: columns of each device's pooled output, length D.
        batch_size: samples over all devices.
        precision: of the values.
        offsets_ms: how much later than the first each device starts, length D; zeros for an aligned start.
        backward: whether gradients go back instead of values forward.
    """

    widths: tuple[int, ...]
    batch_size: int
    precision: Precision
    offsets_ms: tuple[float, ...]
    backward: bool

    @classmethod
    def of(cls, task: ShardingTask, plan: ShardingPlan, offsets_ms: Floats, *, backward: bool) -> AllToAll:
        """Return an exchange of a plan, with rounded offsets."""
        rounded = np.round(offsets_ms / _OFFSET_STEP_MS) * _OFFSET_STEP_MS
        widths = tuple(pooled_widths(task, plan).tolist())
        return cls(widths, task.batch_size, task.precision, tuple(rounded.tolist()), backward)

    def elements(self) -> Ints:
        """Return how many elements device i sends to device j, shape (D, D)."""
        samples = samples_per_device(self.batch_size, len(self.widths))
        forward = np.outer(np.array(self.widths, dtype=np.int64), samples)
        return forward.T if self.backward else forward

    def buffer_bytes(self) -> int:
        """Bytes of all send and receive buffers."""
        return 2 * self.batch_size * sum(self.widths) * ELEMENT_BYTES[self.precision]


class RankTiming(NamedTuple):
    """A message to one rank, to time an exchange: elements to and from every rank, and the rank's start offset."""

    send: list[int]
    receive: list[int]
    precision: Precision
    offset_ms: float
    warmups: int
    iterations: int


class CollectiveGroup:
    """Processes that carry out exchanges. They start when first used, and anew after a failure.

    Attributes:
        size: processes.
        facts: what each process said when it started, by rank; empty before.

    Args:
        size: processes, one per device.
        device: "cpu" (gloo over the loopback interface) or "cuda" (nccl). Ranks are not pinned: where they share
            cores with others, a rank that may not move waits whole time slices (0.4 ms became 2 to 5 ms).
        timeout_s: seconds one message may take.
        module: main of the processes; it joins the group that its settings name and serves.
        environment: variables of the processes beside those of gloo and OpenMP.
        settings: of the processes beside rank, size, device, file of the rendezvous and time limit.
    """

    def __init__(
        self,
        size: int,
        device: str,
        timeout_s: float,
        module: str = _MODULE,
        environment: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.size = size
        self._device = device
        self._timeout_s = timeout_s
        self._module = module
        self._environment = {**_ENVIRONMENT, **(environment or {})}
        self._settings = dict(settings or {})
        self.facts: list[dict[str, Any]] = []
        self._ranks: list[ChildProcess] = []
        self._last_used = 0.0
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _end, self._ranks, self._owner)

    def time(self, exchange: AllToAll, warmups: int, iterations: int) -> Floats:
        """Time an exchange on every device.

        Returns:
            Milliseconds from each device's own start to the end of its part, shape (iterations, D). A device that
            starts early waits for the others inside this time; its delay does not count.

        Raises:
            MeasurementError: buffers do not fit into memory, or a rank died, hung or failed; all ranks are ended then.
        """
        needed = exchange.buffer_bytes()
        if self._device == "cpu" and needed > (available := int(available_bytes() * _USABLE)):
            raise MeasurementError(f"the exchange needs {needed} bytes of memory, {available} bytes are available")
        elements = exchange.elements()
        messages = [
            RankTiming(elements[d].tolist(), elements[:, d].tolist(), exchange.precision, offset, warmups, iterations)
            for d, offset in enumerate(exchange.offsets_ms)
        ]
        return np.array(self.ask(messages), dtype=np.float64).T

    def start(self) -> None:
        """Start the ranks if they are not alive.

        Raises:
            MeasurementError: a rank cannot be started; all are ended then.
        """
        self._end_if_unhealthy()
        try:
            self._start()
        except MeasurementError:  # somebody may have killed one
            self._start()

    def close(self) -> None:
        """End the ranks; they are started again when needed."""
        _end(self._ranks, self._owner)

    def ask(self, messages: Sequence[Any]) -> list[Any]:
        """Send one message to every rank and return the answers.

        Raises:
            MeasurementError: a rank died, hung or failed; all ranks are ended then.
        """
        try:
            if not self._send(messages) and not self._send(messages):
                raise MeasurementError("a process died twice before it was given anything to do")
            answers = self._answers(self._timeout_s)
        except BaseException:
            _end(self._ranks, self._owner)
            raise
        self._last_used = time.monotonic()
        return answers

    def _send(self, messages: Sequence[Any]) -> bool:
        """Send to living ranks. Return False, and end the group, if one died before its message was sent."""
        self._end_if_unhealthy()
        self._start()
        try:
            for rank, message in zip(self._ranks, messages, strict=True):
                rank.send(message)
        except MeasurementError:
            _end(self._ranks, self._owner)
            return False
        return True

    def _end_if_unhealthy(self) -> None:
        """End the group if a rank died or hung while it was idle."""
        if os.getpid() != self._owner or not self._ranks:
            return
        idle = time.monotonic() - self._last_used > _IDLE_S
        if any(rank.dead for rank in self._ranks) or (idle and not all(r.ping(_PING_S) for r in self._ranks)):
            _end(self._ranks, self._owner)

    def _answers(self, timeout_s: float, *, starting: bool = False) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        values = []
        for number, rank in enumerate(self._ranks):
            try:
                status, value = rank.receive(timeout_s, deadline)
            except MeasurementError as error:
                status, value = "died", str(error)
            if starting and status not in ("ok", "died"):  # what it says of itself
                raise MeasurementError(f"device {number}: {value}")
            if status != "ok":
                raise MeasurementError(self._culprit(number, value))
            values.append(value)
        return values

    def _culprit(self, number: int, complaint: str) -> str:
        """Name the rank that died; its peers may report the failure before its exit is seen here."""
        deadline = time.monotonic() + _NOTICE_S
        while True:
            for other, rank in enumerate(self._ranks):
                if rank.dead and other != number:
                    return f"device {other}: {rank.cause_of_death()}"
            if self._ranks[number].dead or time.monotonic() > deadline:
                return f"device {number}: {complaint}"
            time.sleep(_NOTICE_S / 50)

    def _start(self) -> None:
        if os.getpid() != self._owner:  # a fork of the owner: the ranks belong to the original
            self._ranks.clear()
            self._owner = os.getpid()
        if self._ranks:
            return
        folder = tempfile.mkdtemp(prefix="shardgym-")
        settings = {
            **self._settings,
            "world_size": self.size,
            "device": self._device,
            "file": str(Path(folder, "rendezvous")),
            "timeout_s": self._timeout_s + _START_S,
        }
        try:
            for rank in range(self.size):
                self._ranks.append(ChildProcess(self._module, {"rank": rank, **settings}, self._environment))
            self.facts = self._answers(_START_S, starting=True)
        except BaseException:
            _end(self._ranks, self._owner)
            raise
        finally:
            shutil.rmtree(folder)


def can_exchange(num_devices: int) -> bool:
    """Return whether exchanges of this many devices can be timed here: each needs a GPU."""
    import torch

    return num_devices <= torch.cuda.device_count()


def _end(ranks: list[ChildProcess], owner: int) -> None:
    if os.getpid() == owner:
        for rank in ranks:
            rank.kill()
    ranks.clear()


def time_all_to_alls(
    group: CollectiveGroup,
    exchanges: Sequence[AllToAll],
    *,
    rounds: int,
    warmups: int,
    iterations: int,
    rng: random.Random,
) -> tuple[dict[AllToAll, Floats], dict[AllToAll, str]]:
    """Time exchanges over the ranks of one group, interleaved in random order.

    Disturbance by other processes only ever adds, in whole time slices, and more so where ranks outnumber cores. So a
    round's time is the lower quartile of its iterations; with four ranks on two busy cores that
    brought the coefficient of variation from 12-65 % (median) to 12-36 %.

    Returns:
        Times in ms of every round, shape (rounds, D), and the reason for each exchange that failed; an exchange
        is in one of the two. A failure ends the group's processes; the next exchange starts new ones.
    """
    samples: dict[AllToAll, list[Floats]] = {}
    failed: dict[AllToAll, str] = {}
    for exchange in interleaved(list(dict.fromkeys(exchanges)), rounds, rng, failed):
        fitting = int(ROUND_MS / max(1.0, *exchange.offsets_ms))
        try:
            times = group.time(exchange, warmups, max(1, min(iterations, fitting)))
        except MeasurementError as error:
            failed[exchange] = str(error)
        else:
            samples.setdefault(exchange, []).append(np.quantile(times, QUANTILE, axis=0))
    return {e: np.stack(rows) for e, rows in samples.items() if e not in failed}, failed


class CommTimes(NamedTuple):
    """Rounds of one plan's communication in ms, each of shape (rounds, D)."""

    forward: Floats
    backward: Floats


def time_communication(
    group: CollectiveGroup,
    task: ShardingTask,
    plans: Mapping[int, ShardingPlan],
    compute_ms: Mapping[int, Floats],
    *,
    rounds: int,
    warmups: int,
    iterations: int,
    rng: random.Random,
) -> tuple[dict[int, CommTimes], dict[int, str]]:
    """Time the exchanges of all plans, first all backward ones (aligned), then all forward ones (with start offsets).

    A device's offset is what it does between two forward exchanges (its compute and backward communication), minus
    the least of all devices. Plans have numbers; `compute_ms` is forward plus backward compute of each, shape (D,).
    `iterations` are those of compute, exchanges get `_ITERATION_FACTOR` times as many.

    Returns:
        Communication by plan number, and the reason for each plan whose exchange failed.
    """
    effort = {"rounds": rounds, "warmups": warmups, "iterations": _ITERATION_FACTOR * iterations}
    no_offsets = np.zeros(task.num_devices)
    aligned = {n: AllToAll.of(task, plan, no_offsets, backward=True) for n, plan in plans.items()}
    backward, failed = time_all_to_alls(group, list(aligned.values()), rng=rng, **effort)
    reasons = {n: failed[exchange] for n, exchange in aligned.items() if exchange in failed}

    delayed: dict[int, AllToAll] = {}
    for n in (n for n in plans if n not in reasons):
        backward_ms = mean_of_medians(backward[aligned[n]][:, None])
        delayed[n] = AllToAll.of(task, plans[n], start_offsets(compute_ms[n] + backward_ms), backward=False)
    forward, failed = time_all_to_alls(group, list(delayed.values()), rng=rng, **effort)
    reasons |= {n: failed[exchange] for n, exchange in delayed.items() if exchange in failed}

    times = {n: CommTimes(forward[e], backward[aligned[n]]) for n, e in delayed.items() if n not in reasons}
    return times, reasons
