"""Measurer: from a device's content to the times of its steps."""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.costs.fbgemm.backend import Backend
from shardgym.costs.fbgemm.content import Content
from shardgym.costs.fbgemm.requests import ByteCache, Ids, RequestMaker, tensor_bytes
from shardgym.costs.workers.child import Refusal

#: What a reader of times must know when some of them include waiting. The same for all, so that boards say it once.
HOST_WAITED = "the GPU waited for the host in timed steps, whatever was tried: compute times include the waiting"

#: An operator without its weights takes some hundred kilobytes.
_KEPT_OPERATORS = 500


class Job(NamedTuple):
    """One measurement.

    Attributes:
        content: what the device holds.
        warmups: steps that are run and not reported.
        iterations: steps that are reported. Every step has ids of its own, the same ones in every job.
    """

    content: Content
    warmups: int
    iterations: int


class Measured(NamedTuple):
    """What a job found.

    Attributes:
        times: forward and backward in ms, shape (iterations, 2).
        notes: what a reader of the times must know.
    """

    times: npt.NDArray[np.float64]
    notes: tuple[str, ...] = ()


class Measurer:
    """Runs jobs on one backend and keeps what the next job may need again, as long as no job lacks the memory.

    Args:
        backend: the device.
        seed: of the id draws.
    """

    def __init__(self, backend: Backend, seed: int) -> None:
        self._backend = backend
        kept = backend.kept_bytes()
        self._requests = RequestMaker(seed, backend.device, kept.drawn)
        self._ids: ByteCache[Ids] = ByteCache(kept.merged, tensor_bytes)
        self._operators: ByteCache[Any] = ByteCache(_KEPT_OPERATORS, lambda _: 1)

    def __call__(self, job: Job) -> Measured:
        """Run a job.

        Raises:
            Refusal: the content does not fit into memory.
            InputError: ids cannot be had.
        """
        try:
            return self._measure(job)
        except Refusal:
            self._forget()
        return self._measure(job)

    def _measure(self, job: Job) -> Measured:
        backend, content = self._backend, job.content
        batches = job.warmups + job.iterations
        with backend.room(content, batches):
            steps = [self._load(content, batch) for batch in range(batches)]
            operator, gradient = self._operator(content), backend.gradient(content)
            gc.disable()
            try:
                for ids in steps[: job.warmups]:
                    backend.step(operator, ids, gradient)
                before = backend.host_waits
                times = [backend.step(operator, ids, gradient) for ids in steps[job.warmups :]]
            finally:
                gc.enable()
        return Measured(np.array(times), (HOST_WAITED,) if backend.host_waits > before else ())

    def _forget(self) -> None:
        """Give back all memory that was kept for the next job."""
        self._requests.forget()
        self._ids.clear()
        self._operators.clear()
        gc.collect()
        self._backend.release()

    def _load(self, content: Content, batch: int) -> Ids:
        return self._ids.get((content, batch), lambda: self._requests.request(content, batch))

    def _operator(self, content: Content) -> Any:
        if not self._backend.keeps_operators:
            return self._backend.build(content)
        return self._operators.get(content, lambda: self._backend.build(content))
