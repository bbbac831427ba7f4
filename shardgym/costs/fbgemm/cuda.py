"""Measuring on one GPU: CUDA events, the cache flushed before every timed phase, the host kept ahead of the GPU."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from shardgym.costs.fbgemm.jobs import JobError
from shardgym.costs.fbgemm.operator import Ids
from shardgym.errors import error_text, one_line
from shardgym.machine import slug

#: Share of the GPU's memory for drawn ids, which the host draws one table after the other.
_FOR_IDS = 1 / 3
#: Floats that a flush writes, in sizes of the cache.
_FLUSH_FACTOR = 2
#: Most flushes, so that a host that never gets ahead is not waited for without end.
MOST_FLUSHES = 128
#: Steps without waiting after which one flush less is tried. A flush takes far less than the step that is repeated
#: when one less turns out to be too few.
PATIENCE = 8

#: Forward and backward in ms.
Times = tuple[float, float]


class HostLead:
    """Keeps the GPU busy before what is timed, for about as long as the host needs to launch it.

    The GPU's queue is filled with flushes of its cache. How many it takes is found by trying: twice as many whenever
    the GPU had to wait, one less after every `PATIENCE` steps in which it had not.
    """

    def __init__(self) -> None:
        #: Before each phase of the next step.
        self.flushes = 1
        #: Steps so far in which the GPU waited behind `MOST_FLUSHES`, so that their times include waiting.
        self.given_up = 0
        self._good = 0

    def timed(self, attempt: Callable[[int], tuple[bool, Times]]) -> Times:
        """Return the times of an attempt in which the GPU did not wait, or of one with `MOST_FLUSHES`.

        An attempt takes the number of flushes, and says whether the GPU waited for the host, and the times in ms.
        """
        while True:
            waited, times = attempt(self.flushes)
            if not waited:
                self._good += 1
                if self._good % PATIENCE == 0:
                    self.flushes = max(1, self.flushes - 1)
                return times
            self._good = 0
            if self.flushes == MOST_FLUSHES:
                self.given_up += 1
                return times
            self.flushes = min(MOST_FLUSHES, 2 * self.flushes)


class CudaBackend:
    """The counterpart of `CpuBackend` for the first visible GPU; raises `JobError` where there is none."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            reason = f"torch sees no CUDA device ({_why_no_gpu()})"
            raise JobError(f"device 'cuda': {reason}; use device='cpu', or a CUDA build of torch")
        self.device = torch.device("cuda", 0)
        self.hardware = gpu_tag(0)
        properties = torch.cuda.get_device_properties(self.device)
        cache = int(getattr(properties, "L2_cache_size", 0)) or 64 * 2**20
        self._flush = torch.empty(_FLUSH_FACTOR * cache // 4, dtype=torch.float32, device=self.device)
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]  # type: ignore[no-untyped-call]
        self._lead = HostLead()
        #: What the host took to launch the kernels of each step in ms, attempts that were repeated included.
        self.launches_ms: list[float] = []

    def kept_bytes(self) -> int:
        """Return the memory for drawn ids."""
        return int(torch.cuda.mem_get_info(self.device)[0] * _FOR_IDS)

    @property
    def host_waits(self) -> int:
        """Steps in which no number of flushes kept the host ahead."""
        return self._lead.given_up

    @contextmanager
    def reserve(self, _needed: int) -> Iterator[None]:
        """Raise `JobError` when the GPU's memory runs out inside."""
        try:
            yield
        except RuntimeError as error:
            # torch's allocator has a type for memory that ran out, CUDA and FBGEMM's kernels do not.
            if not (isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()):
                raise
            raise JobError(f"the GPU ran out of memory: {one_line(error)}") from None

    def step(self, operator: Any, ids: Ids, gradient: torch.Tensor) -> Times:
        """Run forward and backward once, each from a cold cache, and return the kernels' times in ms.

        Where the GPU had to wait for the host, which would count as the kernels' time, the step is repeated.
        """
        return self._lead.timed(lambda flushes: self._attempt(operator, ids, gradient, flushes))

    def _attempt(self, operator: Any, ids: Ids, gradient: torch.Tensor, flushes: int) -> tuple[bool, Times]:
        """Return whether the GPU had to wait for the host, and both times."""
        forward_start, forward_end, backward_start, backward_end = self._events
        self._flush_cache(flushes)
        forward_start.record()
        begin_s = time.perf_counter()
        pooled = operator(*ids)
        forward_s = time.perf_counter() - begin_s
        forward_end.record()
        waited = _is_past(forward_start)
        self._flush_cache(flushes)
        backward_start.record()
        begin_s = time.perf_counter()
        pooled.backward(gradient)
        backward_s = time.perf_counter() - begin_s
        backward_end.record()
        self.launches_ms.append(1e3 * (forward_s + backward_s))
        waited |= _is_past(backward_start)
        torch.cuda.synchronize(self.device)
        return waited, (forward_start.elapsed_time(forward_end), backward_start.elapsed_time(backward_end))

    def release(self) -> None:
        """Return unused memory to the driver."""
        torch.cuda.empty_cache()

    def _flush_cache(self, times: int) -> None:
        for _ in range(times):
            self._flush.zero_()


def gpu_tag(number: int) -> str:
    """Return the hardware tag of a visible GPU."""
    return f"cuda-{slug(torch.cuda.get_device_properties(number).name)}"


def _is_past(event: Any) -> bool:
    """Return whether the GPU has already passed an event: then its queue was empty and it waited for the host."""
    return bool(event.query())


def _why_no_gpu() -> str:
    """Return the error of torch when it is told to use a GPU that it does not see."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:
        return error_text(error)
    return f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r}"
