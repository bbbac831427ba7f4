"""Measurer: from a device's content to the times of its steps."""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.costs.fbgemm.backend import Backend, Ids
from shardgym.costs.fbgemm.content import Content
from shardgym.costs.fbgemm.requests import ByteCache, RequestMaker


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
    """Runs jobs on one backend and keeps what the next job may need again.

    Args:
        backend: the device.
        seed: of the id draws.
    """

    def __init__(self, backend: Backend, seed: int) -> None:
        self._backend = backend
        limit = backend.cache_bytes()
        self._requests = RequestMaker(seed, limit)
        self._ids: ByteCache[Ids] = ByteCache(limit, lambda ids: int(ids[0].nbytes + ids[1].nbytes))
        self._operators: ByteCache[Any] = ByteCache(_KEPT_OPERATORS, lambda _: 1)

    def __call__(self, job: Job) -> npt.NDArray[np.float64]:
        """Return forward and backward times in ms, shape (iterations, 2).

        Raises:
            Refusal: the content does not fit into memory.
            InputError: ids cannot be had.
        """
        backend, content = self._backend, job.content
        backend.require(content, job.warmups + job.iterations)
        steps = [self._load(content, batch) for batch in range(job.warmups + job.iterations)]
        operator = self._operator(content)
        gradient = backend.gradient(content)
        gc.disable()
        try:
            times = [backend.step(operator, ids, gradient) for ids in steps]
        finally:
            gc.enable()
            del operator
            backend.release()
        return np.array(times[job.warmups :])

    def _load(self, content: Content, batch: int) -> Ids:
        return self._ids.get(
            (content, batch), lambda: self._backend.load(self._requests.request(content, batch))
        )

    def _operator(self, content: Content) -> Any:
        if not self._backend.keeps_operators:
            return self._backend.build(content)
        return self._operators.get(content, lambda: self._backend.build(content))


#: An operator without its weights takes some hundred kilobytes.
_KEPT_OPERATORS = 500
