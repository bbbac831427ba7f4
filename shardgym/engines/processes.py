"""LokyEngine: processes of this machine, by loky."""

from __future__ import annotations

import multiprocessing.util
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from shardgym.engines.base import A, Engine, Failure, J, Losses, OpenedWorker, OpenWorker, checked
from shardgym.errors import InputError, import_extra, one_line
from shardgym.machine import usable_cores

#: The worker of a process of the engine.
_WORKER = OpenedWorker()


class LokyEngine(Engine):
    """Does jobs in processes of this machine.

    Args:
        workers: processes; None for one per core, or for a single one where jobs measure.

    Raises:
        MissingDependencyError: loky is not installed.
    """

    name = "loky"

    def __init__(self, workers: int | None = None) -> None:
        self._loky = import_extra("loky", "engine 'loky'", extra="parallel")
        self._workers = workers

    def run(self, open_worker: OpenWorker[J, A], jobs: Sequence[J], *, alone: bool) -> Iterator[tuple[J, A]]:
        """Yield jobs with their answers; see `Engine.run`."""
        workers = self._workers or (1 if alone else len(usable_cores()))
        if alone and workers > 1:
            raise InputError(
                f"workers={workers}: these jobs measure, and would disturb each other on one machine: give 1 "
                "worker, or engine 'ray' with a machine for each"
            )
        losses = Losses()
        todo = deque(enumerate(jobs))
        pending: dict[Future[Any], int] = {}
        executor = self._executor(workers)
        try:
            while todo or pending:
                # No more than there are processes: one that is lost takes all of these along.
                while todo and len(pending) < workers:
                    number, job = todo.popleft()
                    pending[executor.submit(_answer, open_worker, job)] = number
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                lost: list[int] = []
                why = ""
                for future in done:
                    number = pending.pop(future)
                    try:
                        answer = future.result()
                    except self._loky.process_executor.BrokenProcessPool as error:
                        lost.append(number)
                        why = one_line(error)
                        continue
                    yield jobs[number], checked(answer)
                if lost:
                    # All that were under way are lost, and nobody knows by which of them.
                    wait(pending)
                    lost += pending.values()
                    pending.clear()
                    executor.shutdown(kill_workers=True)
                    executor = self._executor(workers)
                    for number in sorted(lost, reverse=True):
                        losses.add(number, jobs[number], why)
                        todo.appendleft((number, jobs[number]))
        finally:
            executor.shutdown(wait=True, kill_workers=bool(pending))

    def _executor(self, workers: int) -> Any:
        return self._loky.ProcessPoolExecutor(max_workers=workers, timeout=None)


def _answer(open_worker: OpenWorker[J, A], job: J) -> A | Failure:
    """Do a job in a process of the engine."""
    if not _WORKER.is_open():
        # When the process ends, the processes and files of its worker go along.
        multiprocessing.util.Finalize(_WORKER, _WORKER.close, exitpriority=10)
        # Loky's own is unknown to children of this process, which are told it.
        multiprocessing.set_start_method("spawn", force=True)
    return _WORKER.answer(open_worker, job)
