"""Measuring the device itself, in the worker."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from shardgym.costs.fbgemm.device_facts import DeviceFacts

#: Larger than any cache, and small beside any memory.
COPY_BYTES = {"cpu": 2**27, "cuda": 2**30}
_COPIES, _LAUNCHES, _ROUNDS = 8, 200, 7


def probe(device: str) -> DeviceFacts:
    """Measure the device of the calling process; it should do nothing else meanwhile.

    Args:
        device: "cpu" (one thread) or "cuda" (the first visible GPU).
    """
    there, count = torch.device(device), COPY_BYTES[device]
    source = torch.zeros(count, dtype=torch.uint8, device=there)
    target, number = torch.zeros_like(source), torch.zeros(1, device=there)
    copy = _median_seconds(device, lambda: target.copy_(source), _COPIES)
    launch = _median_seconds(device, lambda: number.add_(1.0), _LAUNCHES)
    return DeviceFacts(copy_bandwidth=2 * count / copy, launch_ms=1000 * launch)


def _median_seconds(device: str, work: Callable[[], object], times: int) -> float:
    """Return the wall time of one call, of many in a row; the device is waited for before and after them."""
    rounds = []
    for _ in range(_ROUNDS):
        _wait(device)
        start = time.perf_counter()
        for _ in range(times):
            work()
        _wait(device)
        rounds.append((time.perf_counter() - start) / times)
    return statistics.median(rounds[1:])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
