"""Seconds of the NeuroShard search against the plain implementation of it, on the same tasks with the same weights.

    python benchmarks/search.py [--weights FOLDER] [--tasks N] [--sizes 10x4,35x4] [--alone 60x4,100x8] [--json]

Sizes are tables x devices. For `--sizes` both run on one thread, in turns, and have to find plans of the same cost; for
`--alone` the plain one is left out, as it takes too long. The plain implementation is that of the tests: one
prediction per call, remembered by the shards in the order in which they were placed, as published. Tables are of the
test half of the synthetic pool; memory does not bind, so that no placement ends early.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).parents[1] / "tests" / "neuroshard"))

import numpy as np
from plain_search import PlainSearch
from tabulate import tabulate

from neuroshard import NeuroShard
from shardgym import ShardingTask, Topology, load_pool
from shardgym.costs.simulator import SimulatorCost

BATCH = 8192


def main() -> None:
    """Run the benchmark and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", help="folder written by 'shardgym pretrain'; those of the package when not given")
    parser.add_argument("--sizes", default="10x4,35x4", help="against the plain one (%(default)s)")
    parser.add_argument("--alone", default="", help="sizes of the fast one alone, e.g. 60x4,100x8,1000x128")
    parser.add_argument("--tasks", type=int, default=3, help="of every size (%(default)s)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    cost = SimulatorCost(arguments.weights)
    run(benchmark_task(10, 4, 0), cost, plain=True)
    rows = [
        row(*size, cost, arguments.tasks, plain=plain)
        for sizes, plain in ((arguments.sizes, True), (arguments.alone, False))
        for size in parsed(sizes)
    ]
    print(json.dumps(rows, indent=2) if arguments.json else tabulate(rows, headers="keys", floatfmt=",.3f"))


def parsed(sizes: str) -> list[tuple[int, int]]:
    """Read "10x4,35x4" as pairs of tables and devices."""
    return [tuple(map(int, size.split("x"))) for size in sizes.split(",") if size]


def row(tables: int, devices: int, cost: SimulatorCost, tasks: int, *, plain: bool) -> dict[str, Any]:
    """Time some tasks of one size; the ratio is the median of theirs."""
    timed = [run(benchmark_task(tables, devices, seed), cost, plain=plain) for seed in range(tasks)]
    seconds = {"search, s": statistics.median(fast for fast, _ in timed)}
    if plain:
        seconds["plain, s"] = statistics.median(slow for _, slow in timed)
        seconds["ratio"] = statistics.median(slow / fast for fast, slow in timed)
    return {"tables": tables, "devices": devices, "tasks": tasks, **seconds}


def run(task: ShardingTask, cost: SimulatorCost, *, plain: bool) -> tuple[float, float]:
    """Time one task; costs must agree."""
    plan, fast = timed(lambda: NeuroShard().solve(task, cost))
    if not plain:
        return fast, float("nan")
    (_, plain_ms), slow = timed(PlainSearch(task, cost).run)
    np.testing.assert_allclose(cost.evaluate(task, [plan])[0].total_ms, plain_ms, rtol=1e-6)
    return fast, slow


def benchmark_task(tables: int, devices: int, seed: int) -> ShardingTask:
    """Draw tables with replacement, and widths of 4, 8, ..., 128."""
    pool, rng = load_pool("synthetic-2021").scaled(8).split()[1].tables, np.random.default_rng([seed, tables, devices])
    drawn = tuple(
        dataclasses.replace(pool[n], name=f"t{number}", embedding_dim=int(2 ** rng.integers(2, 8)))
        for number, n in enumerate(rng.integers(0, len(pool), tables))
    )
    return ShardingTask(drawn, Topology(num_devices=devices, memory_bytes=2**50), batch_size=BATCH)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return what work returns and its seconds."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


if __name__ == "__main__":
    main()
