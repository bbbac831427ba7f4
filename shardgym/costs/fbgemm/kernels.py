"""The process that times kernels of shard sets, on a core or on a GPU."""

import contextlib
import ctypes
import gc
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from shardgym.costs.fbgemm.cuda import CudaBackend
from shardgym.costs.fbgemm.jobs import HOST_WAITED, JobError, ShardSet, ShardSpec, StepTimes, TimingJob
from shardgym.costs.fbgemm.operator import Ids, RequestMaker, build_operator, dtype_of
from shardgym.machine import available_bytes, cpu_tag, usable_cores
from shardgym.processes import Handler
from shardgym.tables.table import EmbeddingTable

#: Share of the available memory that may be taken, and the share of it that may hold ids.
_USABLE = 0.9
_FOR_IDS = 1 / 16
#: Pooled output, its gradient and what else the kernels allocate, in copies of the output.
_OUTPUT_COPIES = 4


class CpuBackend:
    """Times steps on the calling thread's CPU clock.

    CPU kernels, backward included, run in the calling thread, so its clock counts all of the work and nothing else that
    runs on the core. Alone on a core CPU time and wall time agree; with a process that takes a third of the core, the
    spread between rounds was 12 % by CPU time and 26 % by wall time.
    """

    #: Steps whose times include waiting: none, kernels run in the thread that is timed.
    host_waits = 0
    launches_ms: Sequence[float] = ()  #: likewise

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.device = torch.device("cpu")
        self.hardware = cpu_tag()

    def kept_bytes(self) -> int:
        """Return the memory for drawn ids: tasks of one suite share tables."""
        return int(available_bytes() * _FOR_IDS)

    @contextmanager
    def reserve(self, needed: int) -> Iterator[None]:
        """Raise `JobError` if `needed` bytes are not available; a context, as a GPU's memory runs out inside."""
        available = int(available_bytes() * _USABLE)
        if needed > available:
            raise JobError(f"measuring needs {needed} bytes of memory, but {available} bytes are available")
        yield

    def step(self, operator: Any, ids: Ids, gradient: torch.Tensor) -> tuple[float, float]:
        """Run forward and backward once and return both times in ms."""
        start = time.thread_time_ns()
        pooled = operator(*ids)
        middle = time.thread_time_ns()
        pooled.backward(gradient)
        end = time.thread_time_ns()
        return (middle - start) / 1e6, (end - middle) / 1e6

    def release(self) -> None:
        """Give back what the allocator keeps: processes that time kernels tell it to keep all, fresh pages are slow."""
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
        if trim is not None:
            trim(0)


class Measurer:
    """Runs jobs on one backend; caches drawn ids for later jobs, until a job needs the memory."""

    def __init__(self, backend: CpuBackend | CudaBackend, seed: int) -> None:
        self._backend = backend
        self._requests = RequestMaker(seed, backend.device, backend.kept_bytes())

    def __call__(self, job: TimingJob) -> StepTimes:
        """Run a job; raises `JobError` where memory does not suffice, and `InputError` about recorded ids."""
        with contextlib.suppress(JobError):
            return self._measure(job)
        self._requests.drawn.clear()
        gc.collect()
        self._backend.release()
        return self._measure(job)

    def _measure(self, job: TimingJob) -> StepTimes:
        backend = self._backend
        batches = job.warmups + job.iterations
        with backend.reserve(_needed_bytes(job.shard_set, batches)):
            steps = [self._requests.request(job.shard_set, batch) for batch in range(batches)]
            operator = build_operator(job.shard_set, backend.device)
            # One for each sample, or for each id of unpooled tables.
            is_pooled = job.shard_set.shards[0].table.is_pooled
            rows = [job.shard_set.batch_size if is_pooled else len(ids.indices) for ids in steps]
            gradient = fixed_gradient(job.shard_set, max(rows), backend.device)
            fed = [(ids, gradient[:count]) for ids, count in zip(steps, rows, strict=True)]
            gc.disable()
            try:
                for given in fed[: job.warmups]:
                    backend.step(operator, *given)
                waits_before = backend.host_waits
                launches_before = len(backend.launches_ms)
                times = [backend.step(operator, *given) for given in fed[job.warmups :]]
            finally:
                gc.enable()
        notes = (HOST_WAITED,) if backend.host_waits > waits_before else ()
        launches = backend.launches_ms[launches_before:]
        return StepTimes(np.array(times), notes, float(np.median(launches)) if launches else 0.0)


def _needed_bytes(shard_set: ShardSet, batches: int) -> int:
    """Return the bytes of weights, optimiser state, pooled values, and ids drawn and merged."""
    item = dtype_of(shard_set).itemsize
    columns = sum(s.width * (1 if s.table.is_pooled else s.ids_per_sample) for s in shard_set.shards)
    output = int(shard_set.batch_size * columns * item)
    state = shard_set.num_weights * item + shard_set.num_states * 4
    return state + _OUTPUT_COPIES * output + 2 * shard_set.request_bytes(batches)


def fixed_gradient(shard_set: ShardSet, rows: int, device: torch.device) -> torch.Tensor:
    """Return a fixed random normal gradient of an output of `rows` rows; those of unpooled tables have one width."""
    width = shard_set.width if shard_set.shards[0].table.is_pooled else shard_set.shards[0].width
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(rows, width, generator=generator, device=device).to(dtype_of(shard_set))


def start(settings: dict[str, Any]) -> tuple[Handler, dict[str, Any]]:
    """Load the backend and run one tiny job, so that incompatible versions fail here; settings are `kernel_timer`'s."""
    device = settings["device"]
    backend = CpuBackend() if device == "cpu" else CudaBackend()
    if device == "cpu":
        os.sched_setaffinity(0, {usable_cores()[0]})
    measurer = Measurer(backend, settings["seed"])
    shard = ShardSpec(EmbeddingTable("check", 4, 4), (0, 4), 4)
    measurer(TimingJob(ShardSet((shard,), 2, "fp32", "exact_sgd"), warmups=0, iterations=1))
    gc.collect()
    gc.freeze()
    return measurer, {"hardware": backend.hardware}
