"""Tasks that the search is timed on, and how."""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from shardgym import ShardingTask, Topology, load_pool

BATCH = 8192
Result = TypeVar("Result")


def benchmark_task(tables: int, devices: int, seed: int) -> ShardingTask:
    """Draw tables of the pool's test half with replacement, and widths of 4, 8, ..., 128; memory does not bind."""
    pool, rng = load_pool("synthetic-2021").scaled(8).split()[1].tables, np.random.default_rng([seed, tables, devices])
    drawn = tuple(
        dataclasses.replace(pool[n], name=f"t{number}", embedding_dim=int(2 ** rng.integers(2, 8)))
        for number, n in enumerate(rng.integers(0, len(pool), tables))
    )
    return ShardingTask(drawn, Topology(num_devices=devices, memory_bytes=2**50), batch_size=BATCH)


def parsed(sizes: str) -> list[tuple[int, int]]:
    """Read "10x4,35x4" as pairs of tables and devices."""
    pairs = [size.split("x") for size in sizes.split(",") if size]
    return [(int(tables), int(devices)) for tables, devices in pairs]


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return what work returns, and the processor seconds it took: what other processes do counts little."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def peak_mib() -> float:
    """Return the most memory that this process ever had, in MiB (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
