"""Measuring on one GPU: CUDA events, the cache flushed before every timed phase, the host kept ahead of the GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from shardgym.costs.fbgemm.backend import KeptBytes, dtype_of, versions
from shardgym.costs.fbgemm.content import Content
from shardgym.costs.fbgemm.gpu_memory import gpu_bytes, ran_out
from shardgym.costs.fbgemm.lead import Lead
from shardgym.costs.fbgemm.operator import build_operator, fill_weights
from shardgym.costs.fbgemm.requests import Ids
from shardgym.costs.workers.child import Refusal
from shardgym.costs.workers.machine import slug
from shardgym.errors import error_text

#: Share of the GPU's memory for drawn ids, which the host draws one table after the other.
_FOR_IDS = 1 / 3
_FLUSH_FACTOR = 2


class CudaBackend:
    """Times on the only GPU that the worker sees."""

    keeps_operators = False

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            none = f"torch sees no CUDA device ({_why_none()})"
            raise Refusal(f"device 'cuda': {none}; use device='cpu', a CUDA build of torch, or fewer workers")
        self.device = torch.device("cuda", 0)
        self._properties = torch.cuda.get_device_properties(self.device)
        cache = int(getattr(self._properties, "L2_cache_size", 0)) or 64 * 2**20
        self._flush = torch.empty(_FLUSH_FACTOR * cache // 4, dtype=torch.float32, device=self.device)
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]  # type: ignore[no-untyped-call]
        self._lead = Lead()
        self._gradient = torch.empty(0)

    def facts(self) -> dict[str, Any]:
        """Return hardware tag and versions."""
        return {"hardware": f"cuda-{slug(self._properties.name)}", "versions": versions()}

    def kept_bytes(self) -> KeptBytes:
        """Keep what was drawn; merging it again takes the GPU no time worth the memory."""
        return KeptBytes(drawn=int(self._available_bytes() * _FOR_IDS), merged=0)

    @property
    def host_waits(self) -> int:
        """Steps in which no number of flushes kept the host ahead."""
        return self._lead.given_up

    @contextmanager
    def room(self, content: Content, batches: int) -> Iterator[None]:
        """Refuse what the GPU's memory does not hold: beforehand, or when it runs out after all."""
        needed, available = gpu_bytes(content, batches), self._available_bytes()
        if needed > available:
            raise Refusal(f"measuring needs {needed} bytes of GPU memory, {available} bytes are available")
        try:
            yield
        except RuntimeError as error:
            if not ran_out(error):
                raise
            raise Refusal(
                f"the GPU ran out of memory: measuring needs about {needed} bytes, {available} bytes were available"
            ) from None

    def build(self, content: Content) -> Any:
        """Return the operator of `content` with random weights."""
        operator = build_operator(content, self.device)
        fill_weights(operator)
        return operator

    def gradient(self, content: Content) -> torch.Tensor:
        """Return a view of one fixed random tensor."""
        count, dtype = content.batch_size * content.width, dtype_of(content)
        if self._gradient.dtype != dtype or self._gradient.numel() < count:
            self._gradient = torch.empty(0)  # the old one's memory is free for the new one
            generator = torch.Generator(device=self.device).manual_seed(0)
            self._gradient = torch.randn(count, generator=generator, dtype=dtype, device=self.device)
        return self._gradient[:count].view(content.batch_size, content.width)

    def step(self, operator: Any, ids: Ids, gradient: torch.Tensor) -> tuple[float, float]:
        """Run forward and backward once, each from a cold cache, and return the kernels' times in ms.

        Where the GPU had to wait for the host, which would count as the kernels' time, the step is repeated with more
        flushes before each phase, so that the host gets further ahead. A step that waits behind the most flushes counts
        in `host_waits`.
        """
        return self._lead.timed(lambda flushes: self._attempt(operator, ids, gradient, flushes))

    def _attempt(
        self, operator: Any, ids: Ids, gradient: torch.Tensor, flushes: int
    ) -> tuple[bool, tuple[float, float]]:
        """Return whether the GPU had to wait for the host, and both times."""
        forward_start, forward_end, backward_start, backward_end = self._events
        self._flush_cache(flushes)
        forward_start.record()
        pooled = operator(*ids)
        forward_end.record()
        waited = _passed(forward_start)
        self._flush_cache(flushes)
        backward_start.record()
        pooled.backward(gradient)
        backward_end.record()
        waited |= _passed(backward_start)
        torch.cuda.synchronize(self.device)
        return waited, (forward_start.elapsed_time(forward_end), backward_start.elapsed_time(backward_end))

    def release(self) -> None:
        """Return memory that nothing uses to the driver."""
        torch.cuda.empty_cache()

    def _flush_cache(self, times: int) -> None:
        for _ in range(times):
            self._flush.zero_()

    def _available_bytes(self) -> int:
        """Bytes that are free, or held by the allocator without being used."""
        idle = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(torch.cuda.mem_get_info(self.device)[0]) + int(idle)


def _why_none() -> str:
    """Return what torch says when it is to use a GPU that it does not see."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:
        return error_text(error)
    return f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r}"


def _passed(event: Any) -> bool:
    """Say whether the GPU is past an event already."""
    return bool(event.query())
