"""Predictions per second of the simulator, many in one call against one at a time.

    python benchmarks/simulator.py [--weights FOLDER] [--plans N] [--json]

Three interfaces, each timed both ways in one run on one thread: whole plans through `evaluate`, whole placements
through `PlacementState.totals`, and hypothetical placements of one table through `PlacementState.what_if`, which is
what searches and environments live on. The task has 50 tables on 4 devices. Both ways must give the same numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

from shardgym.arrays import Floats

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tabulate import tabulate

from shardgym import ShardingPlan, ShardingTask, Topology, load_pool
from shardgym.costs.simulator import SimulatorCost

TABLES, DEVICES, BATCH = 50, 4, 8192


def main() -> None:
    """Run the benchmark and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", help="folder written by 'shardgym pretrain'; those of the package when not given")
    parser.add_argument("--plans", type=int, default=500, help="predictions per interface (%(default)s)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = compare(SimulatorCost(arguments.weights), arguments.plans)
    print(json.dumps(rows, indent=2) if arguments.json else tabulate(rows, headers="keys", floatfmt=",.1f"))


def compare(cost: SimulatorCost, count: int) -> list[dict[str, Any]]:
    """Time the three interfaces; one row each."""
    task = benchmark_task()
    rng = np.random.default_rng(0)
    placements = rng.integers(0, DEVICES, (count, TABLES))
    plans = [ShardingPlan.table_wise(task, row.tolist()) for row in placements]
    state = cost.begin(task)
    for table in range(TABLES - 1):
        state.add(table, table % DEVICES)
    candidates = np.full(count, TABLES - 1)
    devices = rng.integers(0, DEVICES, count)
    return [
        _row("evaluate", count, lambda n: [c.total_ms for c in cost.evaluate(task, plans[n])]),
        _row("totals", count, lambda n: state.totals(placements[n])),
        _row("what_if", count, lambda n: state.what_if(candidates[n], devices[n]).sum(axis=1)),
    ]


def benchmark_task() -> ShardingTask:
    """Return 50 tables of the synthetic pool's train half, as the suites scale it."""
    tables = load_pool("synthetic-2021").scaled(8).split()[0].tables[:TABLES]
    return ShardingTask(tables, Topology(num_devices=DEVICES, memory_bytes=(2**40,) * DEVICES), batch_size=BATCH)


def _row(name: str, count: int, predict: Callable[[slice], Any]) -> dict[str, Any]:
    predict(slice(0, count))
    together, batched_s = _timed(lambda: np.asarray(predict(slice(0, count))))
    alone, single_s = _timed(lambda: np.concatenate([predict(slice(n, n + 1)) for n in range(count)]))
    np.testing.assert_allclose(together, alone, rtol=1e-9)
    return {
        "interface": name, "one at a time, per s": count / single_s, "in one call, per s": count / batched_s,
        "ratio": single_s / batched_s,
    }  # fmt: skip


def _timed(work: Callable[[], Floats]) -> tuple[Floats, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


if __name__ == "__main__":
    main()
