"""Measuring on one CPU core: thread CPU time, recycled weight memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from shardgym.costs.fbgemm.jobs import ShardSet
from shardgym.costs.fbgemm.operator import (
    WEIGHT_SPREAD,
    Ids,
    KeptBytes,
    build_operator,
    dtype_of,
    fill_weights,
    takes_host_buffers,
    versions,
)
from shardgym.costs.fbgemm.process import JobError
from shardgym.machine import available_bytes, cpu_tag, resident_bytes

#: Share of the available memory that may be taken, and shares of it that may hold ids.
_USABLE = 0.9
_FOR_IDS = 1 / 16
#: Share of the machine's memory that a worker holds at most between two jobs.
_MOST_HELD = 2 / 3
#: Pooled output, its gradient and what the kernels allocate besides, in copies of the output.
_OUTPUT_COPIES = 4
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class Arena:
    """Host memory for weights that outlives the operators built on it.

    Mapping fresh pages makes building an operator slow, and their physical addresses make its times differ from run to
    run. So a worker keeps one region per kind of data, in which every operator starts at the beginning, and asks for
    huge pages: on two shared cores that lowered the coefficient of variation over processes from 11 % to 3 %.
    A region reserves as much address space as the machine has memory; only the used part is backed by memory.

    Args:
        dtype: of the elements.
        random: whether new elements are random (weights) or zero (optimiser state).
    """

    def __init__(self, dtype: torch.dtype, *, random: bool) -> None:
        self._random = random
        self._tensor = torch.frombuffer(_reserve_address_space(), dtype=dtype)
        self._filled = 0

    @property
    def backed_bytes(self) -> int:
        """Bytes that are backed by memory."""
        return self._filled * self._tensor.element_size()

    def view(self, elements: int) -> torch.Tensor:
        """Return the first `elements` elements, with the values that earlier operators left in them.

        Raises:
            MemoryError: this is more than the machine's memory.
        """
        if elements > self._tensor.numel():
            raise MemoryError(f"{elements * self._tensor.element_size()} bytes exceed the memory of this machine")
        if elements > self._filled:
            fresh = self._tensor[self._filled : elements]
            _ = fresh.uniform_(-WEIGHT_SPREAD, WEIGHT_SPREAD) if self._random else fresh.zero_()
            self._filled = elements
        return self._tensor[:elements]


def _reserve_address_space() -> mmap.mmap:
    """Reserve as much address space as there is memory, or less on a system that does not overcommit."""
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    while True:
        try:
            region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
        except OSError:
            if size < 2**20:
                raise
            size //= 2
        else:
            region.madvise(mmap.MADV_HUGEPAGE)
            return region


class CpuBackend:
    """Builds operators on one core and times their steps on the calling thread's CPU clock.

    CPU kernels, backward included, run in the calling thread, so its clock counts all of the work and nothing else that
    runs on the core. Alone on a core CPU time and wall time agree; with a process that takes a third of the core, the
    spread between rounds was 12 % by CPU time and 26 % by wall time.

    Attributes:
        device: where weights and ids live and kernels run.
        keeps_operators: whether an operator costs nothing to keep, because operators share their weights' memory.
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
        """Return a share of the memory each: plans of one evaluation share shard sets, the next one's share tables."""
        share = int(available_bytes() * _FOR_IDS)
        return KeptBytes(drawn=share, merged=share)

    @property
    def host_waits(self) -> int:
        """Steps whose times include waiting: none, kernels run in the thread that is timed."""
        return 0

    @contextmanager
    def reserve(self, shard_set: ShardSet, batches: int) -> Iterator[None]:
        """Check that memory suffices to measure `shard_set` with so many batches of ids.

        A context, as on a GPU memory may also run out inside. Recycled weight memory counts as available.

        Raises:
            JobError: the machine's memory does not hold it.
        """
        elements = self._elements(shard_set)
        reusable = sum(min(self._arena(*key).backed_bytes, n * key[1].itemsize) for key, n in elements.items())
        weights = sum(n * dtype.itemsize for (_, dtype), n in elements.items())
        output = shard_set.batch_size * shard_set.width * dtype_of(shard_set).itemsize
        needed = weights + _OUTPUT_COPIES * output + 2 * shard_set.request_bytes(batches)
        available = int(available_bytes() * _USABLE) + reusable
        if needed > available:
            raise JobError(f"measuring needs {needed} bytes of memory, {available} bytes are available")
        yield

    def build(self, shard_set: ShardSet) -> Any:
        """Return the operator of `shard_set`, on recycled memory if FBGEMM takes any."""
        if not self.keeps_operators:
            operator = build_operator(shard_set, self.device)
            fill_weights(operator)
            return operator
        views = {key[0]: self._arena(*key).view(n) for key, n in self._elements(shard_set).items()}
        return build_operator(shard_set, self.device, views)

    def gradient(self, shard_set: ShardSet) -> torch.Tensor:
        """Return a fixed random normal gradient of the pooled output, shape (batch_size, width)."""
        count = shard_set.batch_size * shard_set.width
        dtype = dtype_of(shard_set)
        if dtype not in self._gradients or self._gradients[dtype].numel() < count:
            generator = torch.Generator().manual_seed(0)
            self._gradients[dtype] = torch.randn(count, generator=generator).to(dtype)
        return self._gradients[dtype][:count].view(shard_set.batch_size, shard_set.width)

    def step(self, operator: Any, ids: Ids, gradient: torch.Tensor) -> tuple[float, float]:
        """Run forward and backward once and return both times in ms."""
        start = time.thread_time_ns()
        pooled = operator(*ids)
        middle = time.thread_time_ns()
        pooled.backward(gradient)
        end = time.thread_time_ns()
        return (middle - start) / 1e6, (end - middle) / 1e6

    def holds_too_much(self) -> bool:
        """Whether so much memory is held that jobs of other tables would soon have too little.

        The allocator keeps what is freed, in pieces that tensors of other sizes do not fit into.
        """
        return resident_bytes() > _MOST_HELD * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def release(self) -> None:
        """Give back the memory of weights, and what the allocator keeps of ids that were dropped.

        Workers tell the allocator to keep what is freed, as fresh pages are slow. So it is asked for it here.
        """
        self._arenas.clear()
        self._gradients.clear()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
        if trim is not None:
            trim(0)

    def _arena(self, name: str, dtype: torch.dtype) -> Arena:
        key = (name, dtype)
        if key not in self._arenas:
            self._arenas[key] = Arena(dtype, random=name == "weights")
        return self._arenas[key]

    def _elements(self, shard_set: ShardSet) -> dict[tuple[str, torch.dtype], int]:
        """Return elements per buffer."""
        elements = {("weights", dtype_of(shard_set)): shard_set.num_weights}
        if shard_set.num_states:
            elements["momentum1", torch.float32] = shard_set.num_states
        return elements
