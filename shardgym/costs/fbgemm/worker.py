"""The worker process."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from cachetools import LRUCache, cachedmethod

from shardgym.child import Handler
from shardgym.costs.fbgemm.cpu import CpuBackend
from shardgym.costs.fbgemm.cuda import CudaBackend
from shardgym.costs.fbgemm.jobs import HOST_WAITED, DeviceFacts, ProbeJob, ShardSet, ShardSpec, StepTimes, TimingJob
from shardgym.costs.fbgemm.operator import Ids, RequestMaker, tensor_bytes
from shardgym.costs.fbgemm.process import JobError
from shardgym.tables.table import EmbeddingTable

#: An operator without its weights takes some hundred kilobytes.
_KEPT_OPERATORS = 500
#: Bytes that a probe copies: larger than any cache, and small beside any memory.
COPY_BYTES = {"cpu": 2**27, "cuda": 2**30}
_COPIES = 8
_LAUNCHES = 200
_PROBE_ROUNDS = 7


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


def probe(device: str) -> DeviceFacts:
    """Measure the device of the calling process, which should do nothing else meanwhile.

    Args:
        device: "cpu" (one thread) or "cuda" (the first visible GPU).
    """
    count = COPY_BYTES[device]
    source = torch.zeros(count, dtype=torch.uint8, device=torch.device(device))
    target = torch.zeros_like(source)
    number = torch.zeros(1, device=torch.device(device))

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def median_seconds(work: Callable[[], object], times: int) -> float:
        """Return the wall time per call of many calls in a row, the device synchronised before and after them."""
        rounds = []
        for _ in range(_PROBE_ROUNDS):
            wait()
            start = time.perf_counter()
            for _ in range(times):
                work()
            wait()
            rounds.append((time.perf_counter() - start) / times)
        return statistics.median(rounds[1:])

    copy_s = median_seconds(lambda: target.copy_(source), _COPIES)
    launch_s = median_seconds(lambda: number.add_(1.0), _LAUNCHES)
    return DeviceFacts(copy_bandwidth=2 * count / copy_s, launch_ms=1000 * launch_s)


def start(settings: dict[str, Any]) -> tuple[Handler, dict[str, Any]]:
    """Load the backend and run one tiny job, so that incompatible versions fail here.

    Args:
        settings: "device" ("cpu" or "cuda"), "seed", and "core" to be pinned to (CPU only).
    """
    device = settings["device"]
    backend = CpuBackend() if device == "cpu" else CudaBackend()
    facts = backend.facts()
    if device == "cpu":
        os.sched_setaffinity(0, {settings["core"]})
    measurer = Measurer(backend, settings["seed"])
    shard = ShardSpec(EmbeddingTable("check", 4, 4), (0, 4), 4)
    measurer(TimingJob(ShardSet((shard,), 2, "fp32", "exact_sgd"), warmups=0, iterations=1))
    gc.collect()
    gc.freeze()

    def answer(job: TimingJob | ProbeJob) -> StepTimes | DeviceFacts:
        return measurer(job) if isinstance(job, TimingJob) else probe(device)

    return answer, facts
