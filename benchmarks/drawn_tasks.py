"""Tasks of any size from the synthetic pool, for `search.py`, `plan_time.py` and `transfer.py`. Not a script."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from shardgym import ShardingTask, Topology, load_pool
from shardgym.table import TablePool

WIDTHS = (4, 8, 16, 32, 64, 128)
BATCH = 8192
_SCALE = 8
#: More than the largest table has, and several times what a device holds on average.
_MEMORY_BYTES = 4 * 2**30


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


def task_of_halves(devices: int, tables: tuple[int, int], unseen: float, rng: np.random.Generator) -> ShardingTask:
    """Draw a task in which a share of the tables is of the test half and the others are of the train half.

    No table occurs twice, and widths are drawn anew. Whole tables always fit.

    Args:
        devices: of the task.
        tables: smallest and largest number of tables.
        unseen: share of the tables that are of the test half, from 0 to 1.
        rng: all chance.
    """
    count = int(rng.integers(tables[0], tables[1] + 1))
    of_test = round(unseen * count)
    chosen = [
        half.tables[n]
        for half, number in zip(pool_halves(), (count - of_test, of_test), strict=True)
        for n in rng.choice(len(half), number, replace=False)
    ]
    widths = rng.choice(WIDTHS, count).tolist()
    drawn = tuple(dataclasses.replace(table, embedding_dim=w) for table, w in zip(chosen, widths, strict=True))
    return ShardingTask(drawn, Topology.preset("cpu", devices, _MEMORY_BYTES), batch_size=BATCH)
