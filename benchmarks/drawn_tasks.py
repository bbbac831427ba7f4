"""Tasks of any size from the synthetic pool, drawn for several scripts. Not a script."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from shardgym import ShardingTask, Topology, load_pool
from shardgym.table import TablePool

BATCH = 8192
_SCALE = 8


@functools.cache
def pool_halves() -> tuple[TablePool, TablePool]:
    """Return train and test half of the pool that the CPU-sized suites draw from."""
    return load_pool("synthetic-2021").scaled(_SCALE).split()


def benchmark_task(tables: int, devices: int, seed: int) -> ShardingTask:
    """Draw tables of the pool's test half with replacement, and widths of 4, 8, ..., 128; memory does not bind."""
    pool = pool_halves()[1].tables
    rng = np.random.default_rng([seed, tables, devices])
    drawn = tuple(
        dataclasses.replace(pool[n], name=f"t{number}", embedding_dim=int(2 ** rng.integers(2, 8)))
        for number, n in enumerate(rng.integers(0, len(pool), tables))
    )
    return ShardingTask(drawn, Topology(num_devices=devices, memory_bytes=2**50), batch_size=BATCH)


def model_with_300_tables(devices: int) -> ShardingTask:
    """Return 300 tables of the synthetic pool with widths of 16 to 256, on servers of eight H100."""
    pool = load_pool("synthetic-2021").split()[1].tables
    rng = np.random.default_rng(300)
    tables = tuple(
        dataclasses.replace(pool[n], embedding_dim=int(2 ** rng.integers(4, 9)))
        for n in rng.choice(len(pool), 300, replace=False)
    )
    return ShardingTask(tables, Topology.preset("dgx-h100", devices), 65_536, name=f"300 tables on {devices}")
