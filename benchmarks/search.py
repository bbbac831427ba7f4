"""Seconds of the NeuroShard search against the search as published, on the same tasks with the same constants.

    python benchmarks/search.py [--sizes 10x4,35x4,...] [--tasks N] [--json]
    python benchmarks/search.py --sizes 10000x1024 --tasks 1 --whole 0

Sizes are tables x devices. Everything runs on one thread, in turns; seconds are processor seconds. "published" is
`published_search.py`: torch networks of the published sizes, one call per question. Above `--whole` tables it is
extrapolated: the seconds of one inner search, mean of `INNER`, times the inner searches that follow from how many
children the uncut tables have; with `--whole 0` it is left out.
"""

import argparse
import itertools
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
from drawn_tasks import benchmark_task
from published_search import PublishedSearch
from tabulate import tabulate

from neuroshard import NeuroShard
from shardgym import ShardingTask
from shardgym.costs.simulator.cost import SimulatorCost

#: Inner searches that are timed where the whole published search takes too long.
INNER = 3

Result = TypeVar("Result")


def main() -> None:
    """Run the benchmark and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="10x4,35x4,60x4,100x8,1000x128", help="tables x devices (%(default)s)")
    parser.add_argument("--tasks", type=int, default=3, help="of every size (%(default)s)")
    parser.add_argument("--whole", type=int, default=100, help="maximum of tables for the whole published search")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cost = SimulatorCost()
    compiling, again = (timed(lambda: NeuroShard().solve(benchmark_task(10, 4, 0), cost))[1] for _ in range(2))
    print(f"first search {compiling:.1f} s, second {again:.3f} s: compiling, or reading what was", file=sys.stderr)
    sizes = [map(int, size.split("x")) for size in arguments.sizes.split(",")]
    rows = [row(*size, cost, arguments.tasks, arguments.whole) for size in sizes]
    print(json.dumps(rows, indent=2) if arguments.json else tabulate(rows, headers="keys", floatfmt=",.3f"))


def row(tables: int, devices: int, cost: SimulatorCost, tasks: int, whole: int) -> dict[str, Any]:
    """Time some tasks of one size; the ratio is the median of theirs."""
    columns: dict[str, list[float]] = {"search, s": [], "published, s": [], "ratio": []}
    for seed in range(tasks):
        task = benchmark_task(tables, devices, seed)
        columns["search, s"].append(timed(lambda task=task: NeuroShard().solve(task, cost))[1])
        if whole:
            columns["published, s"].append(published_s(task, cost, whole=tables <= whole))
            columns["ratio"].append(columns["published, s"][-1] / columns["search, s"][-1])
    medians = {name: statistics.median(values) for name, values in columns.items() if values}
    how = {"published is": "whole" if tables <= whole else "extrapolated"} if whole else {}
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts in KiB
    return {"tables": tables, "devices": devices, "tasks": tasks, **medians, **how, "peak memory, MiB": peak_mib}


def published_s(task: ShardingTask, cost: SimulatorCost, *, whole: bool) -> float:
    """Time the published search, or extrapolate from some of its inner searches."""
    search = PublishedSearch(task, cost)
    if whole:
        return timed(search.run)[1]
    _, first = timed(search.over_grid)
    parent = search.snapshot()
    settings = search.settings
    children = sum(1 for _ in search.children(parent))
    _, some = timed(lambda: [search.over_grid() for _ in itertools.islice(search.children(parent), INNER)])
    inner_searches = children * (1 + settings.beam_width * (settings.levels - 1))
    return first + some / INNER * inner_searches


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return what work returns, and the processor seconds it took: what other processes do counts little."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


if __name__ == "__main__":
    main()
