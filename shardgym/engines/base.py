"""Engine: does independent jobs one after the other or side by side, and hands back each answer as it comes.

A worker is opened once in every process that does jobs, and keeps what is dear to make: solvers, costs, processes that
measure. A job says what to do, and its answer is plain data. Only the process that called writes files, so that a
worker which is lost has recorded nothing: its job is done again by another one.
"""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple, TypeVar

from shardgym.errors import InputError, MeasurementError, ShardGymError

J = TypeVar("J")
A = TypeVar("A")

#: Makes a worker, which answers jobs until it is closed. It is pickled for other processes.
OpenWorker = Callable[[], AbstractContextManager[Callable[[J], A]]]

#: A job that ended so many workers is not given to another one.
MOST_LOST = 3


class Engine(ABC):
    """Does jobs.

    Attributes:
        name: as `make_engine` takes it.
    """

    name: ClassVar[str]

    @abstractmethod
    def run(self, open_worker: OpenWorker[J, A], jobs: Sequence[J], *, alone: bool) -> Iterator[tuple[J, A]]:
        """Yield each job with its answer, in the order in which they are done.

        Args:
            open_worker: makes a worker.
            jobs: each is done once; one whose worker was lost is done again.
            alone: whether a worker needs its machine to itself, as one does that measures.

        Raises:
            InputError: the engine cannot do such jobs here.
            MeasurementError: a job ended `MOST_LOST` workers.
            ShardGymError: a worker raised it.
        """


class HereEngine(Engine):
    """Does jobs in this process, one after the other."""

    name = "here"

    def run(self, open_worker: OpenWorker[J, A], jobs: Sequence[J], *, alone: bool) -> Iterator[tuple[J, A]]:  # noqa: ARG002
        """Yield jobs with their answers; see `Engine.run`."""
        with open_worker() as worker:
            for job in jobs:
                yield job, worker(job)


class OpenedWorker:
    """A worker as another process has it: opened at the first job, its errors on purpose as plain data.

    Errors have arguments of their own, with which pickle cannot make them again.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._worker: Callable[[Any], Any] | None = None

    def is_open(self) -> bool:
        """Whether it has done a job."""
        return self._worker is not None

    def answer(self, open_worker: OpenWorker[J, A], job: J) -> A | Failure:
        """Do a job."""
        try:
            if self._worker is None:
                # What a solver prints is not part of the result.
                sys.stdout = sys.stderr
                self._worker = self._stack.enter_context(open_worker())
            answer: A = self._worker(job)
        except ShardGymError as error:
            return Failure(str(error), error.exit_code)
        return answer

    def close(self) -> None:
        """Close the worker."""
        self._worker = None
        self._stack.close()


class Failure(NamedTuple):
    """What a worker raised on purpose.

    Attributes:
        text: its message.
        exit_code: of the error.
    """

    text: str
    exit_code: int


def checked(answer: A | Failure) -> A:
    """Return an answer; raises `InputError` or `MeasurementError` where a worker raised on purpose."""
    if isinstance(answer, Failure):
        raise (InputError if answer.exit_code == InputError.exit_code else MeasurementError)(answer.text)
    return answer


class Losses:
    """Counts workers that were lost with a job."""

    def __init__(self) -> None:
        self._lost: Counter[int] = Counter()

    def add(self, number: int, job: object, why: str) -> None:
        """Count a lost worker; raises `MeasurementError` when the job has ended too many."""
        self._lost[number] += 1
        if self._lost[number] >= MOST_LOST:
            raise MeasurementError(f"{job} ended {MOST_LOST} workers, the last one by: {why}")
