"""Measuring on one CPU core: thread CPU time, recycled weight memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from shardgym.costs.fbgemm.arena import Arena
from shardgym.costs.fbgemm.backend import KeptBytes, dtype_of, versions
from shardgym.costs.fbgemm.content import Content
from shardgym.costs.fbgemm.operator import build_operator, fill_weights, takes_host_buffers
from shardgym.costs.fbgemm.requests import Ids
from shardgym.costs.workers.child import Refusal
from shardgym.costs.workers.machine import available_bytes, cpu_tag

#: Share of the available memory that may be taken, and shares of it that may hold ids.
_USABLE = 0.9
_FOR_IDS = 1 / 16
#: Pooled output, its gradient and what the kernels allocate besides, in copies of the output.
_OUTPUT_COPIES = 4


class CpuBackend:
    """Times on the calling thread's CPU clock.

    CPU kernels, backward included, run in the calling thread, so its clock sees all of the work and nothing of what
    else runs on the core. Alone on a core the two clocks agree; with a process that takes a third of
    the core, the spread between rounds was 12 % by CPU time and 26 % by wall time.
    """

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.device = torch.device("cpu")
        self.keeps_operators = takes_host_buffers()
        self._arenas: dict[tuple[str, torch.dtype], Arena] = {}
        self._gradients: dict[torch.dtype, torch.Tensor] = {}

    def facts(self) -> dict[str, Any]:
        """Return hardware tag and versions."""
        return {"hardware": cpu_tag(), "versions": versions()}

    def kept_bytes(self) -> KeptBytes:
        """Return a share of the memory each: plans of one evaluation share contents, those of the next share tables."""
        share = int(available_bytes() * _FOR_IDS)
        return KeptBytes(drawn=share, merged=share)

    @property
    def host_waits(self) -> int:
        """None: kernels run in the thread that is timed."""
        return 0

    @contextmanager
    def room(self, content: Content, batches: int) -> Iterator[None]:
        """Refuse what the machine's memory does not hold; memory the worker has already counts as there."""
        elements = self._elements(content)
        held = sum(min(self._arena(*key).held_bytes, n * key[1].itemsize) for key, n in elements.items())
        weights = sum(n * dtype.itemsize for (_, dtype), n in elements.items())
        output = content.batch_size * content.width * dtype_of(content).itemsize
        needed = weights + _OUTPUT_COPIES * output + 2 * content.request_bytes(batches)
        available = int(available_bytes() * _USABLE) + held
        if needed > available:
            raise Refusal(f"measuring needs {needed} bytes of memory, {available} bytes are available")
        yield

    def build(self, content: Content) -> Any:
        """Return the operator of `content`, on recycled memory where FBGEMM can have that."""
        if not self.keeps_operators:
            operator = build_operator(content, self.device)
            fill_weights(operator)
            return operator
        views = {key[0]: self._arena(*key).view(n) for key, n in self._elements(content).items()}
        return build_operator(content, self.device, views)

    def gradient(self, content: Content) -> torch.Tensor:
        """Return a view of one fixed random tensor."""
        count, dtype = content.batch_size * content.width, dtype_of(content)
        if dtype not in self._gradients or self._gradients[dtype].numel() < count:
            generator = torch.Generator().manual_seed(0)
            self._gradients[dtype] = torch.randn(count, generator=generator).to(dtype)
        return self._gradients[dtype][:count].view(content.batch_size, content.width)

    def step(self, operator: Any, ids: Ids, gradient: torch.Tensor) -> tuple[float, float]:
        """Run forward and backward once and return both times in ms."""
        start = time.thread_time_ns()
        pooled = operator(*ids)
        middle = time.thread_time_ns()
        pooled.backward(gradient)
        end = time.thread_time_ns()
        return (middle - start) / 1e6, (end - middle) / 1e6

    def release(self) -> None:
        """Nothing to give back: the weights' memory is kept for the next operator."""

    def _arena(self, name: str, dtype: torch.dtype) -> Arena:
        key = (name, dtype)
        if key not in self._arenas:
            self._arenas[key] = Arena(dtype, random=name == "weights")
        return self._arenas[key]

    def _elements(self, content: Content) -> dict[tuple[str, torch.dtype], int]:
        """Return elements per buffer."""
        wanted = {("weights", dtype_of(content)): content.num_weights}
        return {**wanted, ("momentum1", torch.float32): content.num_states} if content.num_states else wanted
