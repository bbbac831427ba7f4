"""Groups of processes that take complete steps together, one per device, on gloo or NCCL."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardgym.costs.fbgemm import namespaces
from shardgym.costs.fbgemm.process import ChildProcess
from shardgym.errors import MeasurementError

_MODULE = "shardgym.costs.fbgemm.step_rank"
#: One thread, and switches of CUDA and FBGEMM that a user's shell must not change. Ids are checked as by default
#: (BoundsCheckMode.WARNING).
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "CUDA_LAUNCH_BLOCKING": "0",
    "FBGEMM_EXPERIMENTAL_TBE": "0",
    "FBGEMM_TBE_BOUNDS_CHECK_MODE": "1",
    "FBGEMM_TBE_REPORT_INPUT_PARAMS": "0",
}
_START_S = 180.0
#: Seconds to wait for the exit of a rank that its peers report as lost.
_NOTICE_S = 2.0


class RankGroup:
    """Processes that take complete steps. They start when first used, and anew after a failure.

    On CPUs they are not pinned: where ranks share cores with others, one that may not move waits whole time slices
    (0.4 ms became 2 to 5 ms).

    Args:
        size: processes, one per device.
        device: "cpu" (gloo) or "cuda" (NCCL; rank i has GPU i).
        timeout_s: seconds one message may take.
        link_rate: bytes per second of a link for each process; None for the loopback interface.
        domain_size: ranks of a fast domain; all when None.
    """

    def __init__(
        self, size: int, device: str, timeout_s: float, link_rate: float | None = None, domain_size: int | None = None
    ) -> None:
        self.size = size
        #: What each process said when it started, by rank; empty before.
        self.facts: list[dict[str, Any]] = []
        self.device = device
        self._timeout_s = timeout_s
        interface = "lo" if link_rate is None else namespaces.INTERFACE
        self._environment = {**_ENVIRONMENT, "GLOO_SOCKET_IFNAME": interface}
        self._settings = {
            "world_size": size, "device": device, "timeout_s": timeout_s + _START_S, "link_rate": link_rate,
            "domain_size": domain_size or size,
        }  # fmt: skip
        self._ranks: list[ChildProcess] = []
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _end, self._ranks, self._owner)

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
        """End the group if a rank died while it was idle."""
        if os.getpid() != self._owner or not self._ranks:
            return
        if any(rank.dead for rank in self._ranks):
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
        settings = {**self._settings, "file": str(Path(folder, "rendezvous"))}
        try:
            for rank in range(self.size):
                self._ranks.append(
                    ChildProcess(
                        _MODULE, {"rank": rank, **settings}, self._environment, new_interpreter=self.device == "cuda"
                    )
                )
            self.facts = self._answers(_START_S, starting=True)
        except BaseException:
            _end(self._ranks, self._owner)
            raise
        finally:
            shutil.rmtree(folder)


def _end(ranks: list[ChildProcess], owner: int) -> None:
    if os.getpid() == owner:
        for rank in ranks:
            rank.kill()
    ranks.clear()
