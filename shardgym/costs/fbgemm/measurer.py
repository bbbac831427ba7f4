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

    def __call__(self, job: Job) -> npt.NDArray[np.float64]:
        """Return forward and backward times in ms, shape (iterations, 2).

        Raises:
            Refusal: the content does not fit into memory.
            InputError: ids cannot be had.
        """
        try:
            return self._measure(job)
        except Refusal:
            self._forget()
        return self._measure(job)

    def _measure(self, job: Job) -> npt.NDArray[np.float64]:
        backend, content = self._backend, job.content
        batches = job.warmups + job.iterations
        with backend.room(content, batches):
            steps = [self._load(content, batch) for batch in range(batches)]
            operator, gradient = self._operator(content), backend.gradient(content)
            gc.disable()
            try:
                times = [backend.step(operator, ids, gradient) for ids in steps]
            finally:
                gc.enable()
        return np.array(times[job.warmups :])

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
