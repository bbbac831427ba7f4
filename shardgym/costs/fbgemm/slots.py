"""A worker's place: its process, what it was given to do, and what to do when it dies."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any

from shardgym.costs.fbgemm.measurer import Job, Measured
from shardgym.costs.workers.process import ChildProcess
from shardgym.errors import MeasurementError


class Slot:
    """A place for one worker.

    Args:
        index: which core or GPU it has.

    Attributes:
        process: the worker; None when there is none at the moment.
        jobs: what it was given, the one that it works on first.
        deadline: when that one must be done, on the monotonic clock.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.process: ChildProcess | None = None
        self.jobs: list[Job] = []
        self.deadline = 0.0

    def fill(self, jobs: Iterator[Job], ahead: int, timeout_s: float, start: Callable[[Slot], None]) -> None:
        """Give the worker its next jobs; one that takes the place of another gets what that had left, too.

        Args:
            jobs: where they come from.
            ahead: how many it is given besides the one to work on.
            timeout_s: seconds one job may take.
            start: gives this slot a process that works.

        Raises:
            MeasurementError: no worker can be started.
        """
        fresh = list(itertools.islice(jobs, 1 + ahead - len(self.jobs)))
        busy = bool(self.jobs) and self.process is not None
        self.jobs += fresh
        if not busy and self.jobs:
            self._begin(self.jobs[0], start)
            self.deadline = time.monotonic() + timeout_s
        for job in fresh if busy else self.jobs[1:]:
            if self.process is not None:
                with contextlib.suppress(MeasurementError):  # it died of the job before, `collect` will notice
                    self.process.send(job)

    def _begin(self, job: Job, start: Callable[[Slot], None]) -> None:
        if self.process is not None:
            try:
                self.process.send(job)
            except MeasurementError:  # it died after its last answer: this job is not to blame
                self.discard()
            else:
                return
        start(self)
        assert self.process is not None
        self.process.send(job)

    def collect(self, timeout_s: float) -> tuple[Job, Measured | str]:
        """Return the first job with what it found, or with the reason why nothing; the next one's time begins."""
        job = self.jobs.pop(0)
        assert self.process is not None
        try:
            status, value = self.process.receive(timeout_s, self.deadline)
        except MeasurementError as error:
            status, value = "failed", str(error)
        self.deadline = time.monotonic() + timeout_s
        if status == "failed":
            self.discard()
        return job, value

    def discard(self) -> None:
        """End the worker; its jobs stay."""
        if self.process is not None:
            self.process.kill()
        self.process = None

    def clear(self) -> None:
        """End a worker that is at work, and forget what it was given."""
        if self.jobs:
            self.discard()
        self.jobs.clear()


def ready(busy: Sequence[Slot]) -> list[Slot]:
    """Wait until workers answered, died or ran out of time, and return their slots."""
    by_connection: dict[Any, Slot] = {slot.process.connection: slot for slot in busy if slot.process is not None}
    patience = max(0.0, min(slot.deadline for slot in busy) - time.monotonic())
    answered = wait(list(by_connection), timeout=patience)
    now = time.monotonic()
    return [s for c, s in by_connection.items() if c in answered] or [s for s in busy if s.deadline <= now]
