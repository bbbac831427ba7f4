"""Measuring on one GPU: CUDA events, the cache flushed before every timed phase."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from shardgym.costs.fbgemm.backend import Ids, dtype_of, versions
from shardgym.costs.fbgemm.content import Content
from shardgym.costs.fbgemm.operator import build_operator
from shardgym.costs.fbgemm.requests import Request
from shardgym.costs.workers.child import Refusal
from shardgym.costs.workers.machine import slug

_FOR_IDS = 1 / 16
_OUTPUT_COPIES = 4
_FLUSH_FACTOR = 2


class CudaBackend:
    """Times on the only GPU that the worker sees."""

    keeps_operators: ClassVar[bool] = False

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise Refusal("device 'cuda': torch sees no CUDA device; use device='cpu', or a CUDA build of torch")
        self._device = torch.device("cuda", 0)
        self._properties = torch.cuda.get_device_properties(self._device)
        cache = int(getattr(self._properties, "L2_cache_size", 0)) or 64 * 2**20
        self._flush = torch.empty(_FLUSH_FACTOR * cache // 4, dtype=torch.float32, device=self._device)
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]  # type: ignore[no-untyped-call]
        self._gradient = torch.empty(0)
        self._needed = 0

    def facts(self) -> dict[str, Any]:
        """Return hardware tag and versions."""
        return {"hardware": f"cuda-{slug(self._properties.name)}", "versions": versions()}

    def require(self, content: Content, batches: int) -> None:
        """Refuse what the GPU's memory does not hold."""
        self._needed, available = gpu_bytes(content, batches), self._available_bytes()
        if self._needed > available:
            raise Refusal(f"measuring needs {self._needed} bytes of GPU memory, {available} bytes are available")

    def build(self, content: Content) -> Any:
        """Return the operator of `content` with random weights."""
        with self._memory():
            operator = build_operator(content, self._device)
            operator.weights_dev.uniform_(-0.01, 0.01)
        return operator

    def load(self, request: Request) -> Ids:
        """Return copies of the ids on the GPU."""
        with self._memory():
            indices, offsets = torch.from_numpy(request.indices), torch.from_numpy(request.offsets)
            return indices.to(self._device), offsets.to(self._device)

    def gradient(self, content: Content) -> torch.Tensor:
        """Return a view of one fixed random tensor."""
        count, dtype = content.batch_size * content.width, dtype_of(content)
        if self._gradient.dtype != dtype or self._gradient.numel() < count:
            generator = torch.Generator(device=self._device).manual_seed(0)
            with self._memory():
                self._gradient = torch.randn(count, generator=generator, device=self._device).to(dtype)
        return self._gradient[:count].view(content.batch_size, content.width)

    def step(self, operator: Any, ids: Ids, gradient: torch.Tensor) -> tuple[float, float]:
        """Run forward and backward once, each from a cold cache, and return both times in ms."""
        forward_start, forward_end, backward_start, backward_end = self._events
        self._flush.zero_()
        with self._memory():
            forward_start.record()
            pooled = operator(*ids)
            forward_end.record()
            self._flush.zero_()
            backward_start.record()
            pooled.backward(gradient)
            backward_end.record()
            torch.cuda.synchronize(self._device)
        return forward_start.elapsed_time(forward_end), backward_start.elapsed_time(backward_end)

    def cache_bytes(self) -> int:
        """Return how many bytes of ids may be kept on the GPU."""
        return int(self._available_bytes() * _FOR_IDS)

    def release(self) -> None:
        """Return the memory of operators that are gone to the driver."""
        torch.cuda.empty_cache()

    def _available_bytes(self) -> int:
        """Bytes that are free, or held by the allocator without being used."""
        idle = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return int(torch.cuda.mem_get_info(self._device)[0]) + int(idle)

    @contextlib.contextmanager
    def _memory(self) -> Iterator[None]:
        """Turn running out of GPU memory into a refusal that says how much was needed."""
        try:
            yield
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            available = self._available_bytes()
            raise Refusal(
                f"the GPU ran out of memory: measuring needs about {self._needed} bytes, {available} are available"
            ) from None


def gpu_bytes(content: Content, batches: int) -> int:
    """Return the bytes that measuring takes on a GPU: weights, optimiser state, pooled values and ids."""
    item = dtype_of(content).itemsize
    output = content.batch_size * content.width * item
    state = content.num_weights * item + content.num_states * 4
    return state + _OUTPUT_COPIES * output + content.request_bytes(batches)
