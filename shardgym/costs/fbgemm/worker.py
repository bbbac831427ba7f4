"""The worker process."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
from cachetools import LRUCache, cachedmethod

from shardgym.child import Handler
from shardgym.costs.fbgemm.cpu import CpuBackend
from shardgym.costs.fbgemm.cuda import CudaBackend
from shardgym.costs.fbgemm.jobs import HOST_WAITED, ShardSet, ShardSpec, StepTimes, TimingJob
from shardgym.costs.fbgemm.operator import Ids, RequestMaker, tensor_bytes
from shardgym.costs.fbgemm.process import JobError
from shardgym.machine import usable_cores
from shardgym.tables.table import EmbeddingTable

#: An operator without its weights takes some hundred kilobytes.
_KEPT_OPERATORS = 500


class Measurer:
    """Runs jobs on one backend; caches ids and operators for later jobs, until a job needs the memory.

    Args:
        backend: the device.
        seed: of the id draws.
    """

    def __init__(self, backend: CpuBackend | CudaBackend, seed: int) -> None:
        kept = backend.kept_bytes()
        self._backend = backend
        self._requests = RequestMaker(seed, backend.device, kept.drawn)
        self._merged_ids: LRUCache[Any, Ids] = LRUCache(kept.merged, tensor_bytes)
        self._operators: LRUCache[Any, Any] = LRUCache(_KEPT_OPERATORS if backend.keeps_operators else 0)

    def __call__(self, job: TimingJob) -> StepTimes:
        """Run a job.

        Raises:
            JobError: the shard set does not fit into memory.
            InputError: recorded ids are missing or invalid.
        """
        if self._backend.holds_too_much():
            self._release()
        try:
            return self._measure(job)
        except JobError:
            self._release()
        return self._measure(job)

    def _release(self) -> None:
        """Empty the caches and give back their memory."""
        self._requests.drawn.clear()
        self._merged_ids.clear()
        self._operators.clear()
        gc.collect()
        self._backend.release()

    def _measure(self, job: TimingJob) -> StepTimes:
        backend = self._backend
        batches = job.warmups + job.iterations
        with backend.reserve(job.shard_set, batches):
            steps = [self._ids(job.shard_set, batch) for batch in range(batches)]
            operator = self._operator(job.shard_set)
            gradient = backend.gradient(job.shard_set)
            gc.disable()
            try:
                for ids in steps[: job.warmups]:
                    backend.step(operator, ids, gradient)
                waits_before = backend.host_waits
                times = [backend.step(operator, ids, gradient) for ids in steps[job.warmups :]]
            finally:
                gc.enable()
        return StepTimes(np.array(times), (HOST_WAITED,) if backend.host_waits > waits_before else ())

    @cachedmethod(lambda self: self._merged_ids)
    def _ids(self, shard_set: ShardSet, batch: int) -> Ids:
        return self._requests.request(shard_set, batch)

    @cachedmethod(lambda self: self._operators)
    def _operator(self, shard_set: ShardSet) -> Any:
        return self._backend.build(shard_set)


def start(settings: dict[str, Any]) -> tuple[Handler, dict[str, Any]]:
    """Load the backend and run one tiny job, so that incompatible versions fail here.

    Args:
        settings: "device" ("cpu" or "cuda") and "seed".
    """
    device = settings["device"]
    backend = CpuBackend() if device == "cpu" else CudaBackend()
    facts = backend.facts()
    if device == "cpu":
        os.sched_setaffinity(0, {usable_cores()[0]})
    measurer = Measurer(backend, settings["seed"])
    shard = ShardSpec(EmbeddingTable("check", 4, 4), (0, 4), 4)
    measurer(TimingJob(ShardSet((shard,), 2, "fp32", "exact_sgd"), warmups=0, iterations=1))
    gc.collect()
    gc.freeze()

    return measurer, facts
