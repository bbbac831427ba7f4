"""Measured all-to-all: a persistent group of processes, one per device, on gloo or nccl."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardgym.costs.collectives.jobs import Exchange, Move, Timing, timings
from shardgym.costs.workers.machine import available_bytes
from shardgym.costs.workers.process import ChildProcess
from shardgym.errors import MeasurementError

_MODULE = "shardgym.costs.collectives.rank"
_START_S = 180.0
#: Share of the available memory that buffers may take.
_USABLE = 0.9
#: Seconds without an exchange after which ranks are asked whether they are well, and what they have for an answer.
_IDLE_S, _PING_S = 1.0, 10.0
#: Seconds in which a rank whose peers have lost it is found to be dead.
_NOTICE_S = 2.0


class CollectiveGroup:
    """Processes that carry out exchanges. It starts when first used, anew after a failure or when one was lost idle.

    Args:
        size: processes, one per device.
        device: "cpu" (gloo over the loopback interface) or "cuda" (nccl). Ranks are not pinned: where they share
            cores with others, a rank that may not move waits whole time slices (0.4 ms became 2 to 5 ms).
        timeout_s: seconds one message may take.
    """

    def __init__(self, size: int, device: str, timeout_s: float) -> None:
        self.size = size
        self._device, self._timeout_s = device, timeout_s
        self._ranks: list[ChildProcess] = []
        self._last_used = 0.0
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _end, self._ranks, self._owner)

    def pids(self) -> list[int]:
        """Process ids of the ranks that are alive."""
        return [rank.pid for rank in self._ranks]

    def time(self, exchange: Exchange, warmups: int, iterations: int) -> npt.NDArray[np.float64]:
        """Time an exchange on every device.

        Returns:
            Milliseconds from each device's own start to the end of its part, shape (iterations, D). A device that
            starts early waits for the others inside this time; its delay does not count.

        Raises:
            MeasurementError: buffers do not fit into memory, or a rank died, hung or failed; all ranks are ended then.
        """
        if self._device == "cpu" and exchange.buffer_bytes() > (available := int(available_bytes() * _USABLE)):
            needed = exchange.buffer_bytes()
            raise MeasurementError(f"the exchange needs {needed} bytes of memory, {available} bytes are available")
        answers = self._ask(timings(exchange, warmups, iterations))
        return np.array(answers, dtype=np.float64).T

    def move(self, values: Sequence[npt.NDArray[Any]], elements: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
        """Carry out an exchange of given values.

        Args:
            values: what each device sends, in the order of receivers.
            elements: how many of them device i sends to device j, shape (D, D).

        Returns:
            What each device received, in the order of senders.
        """
        parts = [Move(v, elements[d].tolist(), elements[:, d].tolist()) for d, v in enumerate(values)]
        return self._ask(parts)

    def close(self) -> None:
        """End the ranks; they are started again when needed."""
        _end(self._ranks, self._owner)

    def _ask(self, messages: Sequence[Timing | Move]) -> list[Any]:
        """Send one message to every rank and return the answers; any failure ends the group."""
        try:
            if not self._send(messages) and not self._send(messages):
                raise MeasurementError("all-to-all: a process died twice before it was given anything to do")
            answers = self._answers(self._timeout_s)
        except BaseException:
            _end(self._ranks, self._owner)
            raise
        self._last_used = time.monotonic()
        return answers

    def _send(self, messages: Sequence[Timing | Move]) -> bool:
        """Send to ranks that are well. Return False, and end the group, when one died before it was given its part."""
        self._end_unless_well()
        self._start()
        try:
            for rank, message in zip(self._ranks, messages, strict=True):
                rank.send(message)
        except MeasurementError:
            _end(self._ranks, self._owner)
            return False
        return True

    def _end_unless_well(self) -> None:
        """End a group of which a rank died or stopped while it had nothing to do."""
        if os.getpid() != self._owner or not self._ranks:
            return
        idle = time.monotonic() - self._last_used > _IDLE_S
        if any(rank.dead for rank in self._ranks) or (idle and not all(r.answers(_PING_S) for r in self._ranks)):
            _end(self._ranks, self._owner)

    def _answers(self, timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        values = []
        for number, rank in enumerate(self._ranks):
            try:
                status, value = rank.receive(timeout_s, deadline)
            except MeasurementError as error:
                status, value = "died", str(error)
            if status != "ok":
                raise MeasurementError(f"all-to-all, {self._culprit(number, value)}")
            values.append(value)
        return values

    def _culprit(self, number: int, complaint: str) -> str:
        """Name the rank that died: those that talk to it notice first, maybe before it counts as dead here."""
        deadline = time.monotonic() + _NOTICE_S
        while True:
            for dead, rank in enumerate(self._ranks):
                if rank.dead and dead != number:
                    return f"device {dead}: {rank.obituary()}"
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
        try:
            for rank in range(self.size):
                self._ranks.append(self._launch(rank, str(Path(folder, "rendezvous"))))
            self._answers(_START_S)
        finally:
            shutil.rmtree(folder)

    def _launch(self, rank: int, file: str) -> ChildProcess:
        settings = {
            "rank": rank,
            "world_size": self.size,
            "device": self._device,
            "file": file,
            "timeout_s": self._timeout_s + _START_S,
        }
        return ChildProcess(_MODULE, settings, {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"})


def _end(ranks: list[ChildProcess], owner: int) -> None:
    if os.getpid() == owner:
        for rank in ranks:
            rank.kill()
    ranks.clear()
