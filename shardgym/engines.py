"""Engines: where independent jobs are done, in this process, in processes of this machine (loky), or on a Ray cluster.

A worker is opened once in every process that does jobs, and keeps what is costly to create: solvers, costs, processes
that measure. A job says what to do, and its answer is plain data. Only the calling process writes files, so a lost
worker has recorded nothing, and its job runs again.
"""

import contextlib
import multiprocessing.util
import os
import socket
import sys
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from shardgym.errors import InputError, MeasurementError, ShardGymError, UnknownNameError, import_extra, one_line
from shardgym.machine import usable_cores

J = TypeVar("J")
A = TypeVar("A")
#: Makes a worker, which answers jobs until it is closed. It is pickled for other processes.
OpenWorker = Callable[[], AbstractContextManager[Callable[[J], A]]]

ENGINES = ("here", "loky", "ray")
#: In a process of an engine: for which run a worker is open, what closes it, and the worker.
_OPEN: dict[str, tuple[contextlib.ExitStack, Callable[[Any], Any]]] = {}


class Engine:
    """Does jobs in this process, one after the other."""

    #: As `make_engine` takes it.
    name = "here"

    def run(self, open_worker: OpenWorker[J, A], jobs: Sequence[J], *, alone: bool) -> Iterator[tuple[J, A]]:  # noqa: ARG002
        """Yield each job with its answer, in the order in which they are done.

        Args:
            open_worker: makes a worker.
            jobs: each is done once; one whose worker was lost is done again.
            alone: whether a worker needs a machine to itself, as measurements do.

        Raises:
            MeasurementError: a job crashed two workers.
            ShardGymError: a worker raised it, or the engine cannot do such jobs here.
        """
        with open_worker() as worker:
            for job in jobs:
                yield job, worker(job)


class LokyEngine(Engine):
    """Does jobs in processes of this machine: one per core, or a single one where jobs measure."""

    name = "loky"

    def __init__(self, workers: int | None) -> None:
        self._loky = import_extra("loky", "engine 'loky'", extra="parallel")
        self._workers = workers

    def run(self, open_worker: OpenWorker[J, A], jobs: Sequence[J], *, alone: bool) -> Iterator[tuple[J, A]]:
        """See `Engine.run`."""
        workers = self._workers or (1 if alone else len(usable_cores()))
        if alone and workers > 1:
            raise InputError(
                f"workers={workers}: jobs that measure disturb each other on one machine; use workers=1, or engine "
                "'ray' with a machine per worker"
            )
        todo = deque(range(len(jobs)))
        lost = Counter[int]()
        run = uuid.uuid4().hex
        while todo:
            pending: dict[Future[Any], int] = {}
            executor = self._loky.ProcessPoolExecutor(max_workers=workers, timeout=None)
            try:
                while todo or pending:
                    # No more than there are processes: a lost one takes all of these with it.
                    while todo and len(pending) < workers:
                        if pending and (lost[todo[0]] or lost.keys() & pending.values()):
                            break  # any of those that were lost may be the cause, so each is alone the next time
                        number = todo.popleft()
                        pending[executor.submit(_answer, run, open_worker, jobs[number])] = number
                    for future in wait(pending, return_when=FIRST_COMPLETED).done:
                        answer = _checked(*future.result())
                        yield jobs[pending.pop(future)], answer
            except self._loky.process_executor.BrokenProcessPool as error:
                lost.update(pending.values())
                for number in sorted(pending.values(), reverse=True):
                    if lost[number] > 1:
                        raise _given_up(jobs[number], error) from None
                    todo.appendleft(number)
            finally:
                executor.shutdown(wait=True, kill_workers=bool(pending))


class RayEngine(Engine):
    """Does jobs on a Ray cluster that is running, in which every node has shardgym.

    Where jobs measure, each reserves all cores and GPUs of a node, one of those with the most cores.
    """

    name = "ray"

    def __init__(self, workers: int | None, address: str | None) -> None:
        self._ray = import_extra("ray", "engine 'ray'", extra="cluster")
        self._workers = workers
        self._joined = not self._ray.is_initialized()
        head = address or os.environ.get("RAY_ADDRESS", "auto")
        host, _, port = head.rpartition(":")
        try:
            if port.isdecimal():  # Ray itself tries for minutes
                socket.create_connection((host, int(port)), timeout=5.0).close()
            self._ray.init(address=head, log_to_driver=False, logging_level="error", ignore_reinit_error=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(
                f"no Ray cluster at '{head}' ({one_line(error)}): start one with 'ray start --head', or use 'loky'"
            ) from None

    def run(self, open_worker: OpenWorker[J, A], jobs: Sequence[J], *, alone: bool) -> Iterator[tuple[J, A]]:
        """See `Engine.run`."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        largest = max(nodes, key=lambda resources: resources.get("CPU", 0))
        reserved = {"num_cpus": largest.get("CPU", 1), "num_gpus": largest.get("GPU", 0)} if alone else {"num_cpus": 1}
        answer = self._ray.remote(_answer).options(max_retries=1, scheduling_strategy="SPREAD", **reserved)
        opened = self._ray.put(open_worker)
        run = uuid.uuid4().hex
        todo = deque(jobs)
        pending = dict[Any, J]()
        try:
            while todo or pending:
                while todo and len(pending) < (self._workers or len(jobs)):
                    job = todo.popleft()
                    pending[answer.remote(run, opened, job)] = job
                for ref in self._ray.wait(list(pending))[0]:
                    job = pending.pop(ref)
                    try:
                        found = self._ray.get(ref)
                    except self._ray.exceptions.RayError as error:
                        raise _given_up(job, error) from None
                    yield job, _checked(*found)
        finally:
            for ref in pending:
                self._ray.cancel(ref, force=True)
            if self._joined:
                self._ray.shutdown()


def make_engine(name: str, *, workers: int | None = None, address: str | None = None) -> Engine:
    """Return an engine by name; raises `InputError` for arguments that it does not take, or without a cluster.

    Args:
        name: "here"; "loky", for processes of this machine; or "ray", for a Ray cluster that is running.
        workers: number of workers; None for one per core, or one per machine where jobs measure.
        address: HOST:PORT of the Ray cluster's head; None for that of RAY_ADDRESS, or of this machine.
    """
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    if address is not None and name != "ray":
        raise InputError(f"address: engine '{name}' joins no cluster; leave it out, or use engine 'ray'")
    if name == "ray":
        return RayEngine(workers, address)
    if name == "loky":
        return LokyEngine(workers)
    if workers not in (None, 1):
        raise InputError(f"workers={workers}: engine 'here' has one worker; use engine 'loky' for several")
    return Engine()


# --- in a process of an engine ----------------------------------------------------------------------------------------


def _answer(run: str, open_worker: OpenWorker[J, A], job: J) -> tuple[type[ShardGymError] | None, Any]:
    """Return None and the answer of a worker, opened for the first job of a run; or what it raised on purpose."""
    try:
        if run not in _OPEN:
            _close()
            # The processes and files of the worker end with this process.
            multiprocessing.util.Finalize(None, _close, exitpriority=10)
            # Children of this process do not know loky's own start method.
            multiprocessing.set_start_method("spawn", force=True)
            sys.stdout = sys.stderr  # what a solver prints is not part of the result
            stack = contextlib.ExitStack()
            _OPEN[run] = stack, stack.enter_context(open_worker())
        return None, _OPEN[run][1](job)
    except ShardGymError as error:  # pickle cannot restore those with arguments of their own
        return InputError if error.exit_code == InputError.exit_code else MeasurementError, str(error)


def _close() -> None:
    for stack, _ in _OPEN.values():
        stack.close()
    _OPEN.clear()


def _checked(error: type[ShardGymError] | None, answer: Any) -> Any:
    if error is not None:
        raise error(answer)
    return answer


def _given_up(job: object, error: BaseException) -> MeasurementError:
    return MeasurementError(f"{job} crashed two workers; last error: {one_line(error)}")
