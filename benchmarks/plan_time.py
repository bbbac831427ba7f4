"""Milliseconds of processor time per plan of every solver, from 10 to 1,000 tables on 4, 8 and 32 devices.

    python benchmarks/plan_time.py [--solver NAME[,KEY=VALUE...] ...] [--tables 10 30 ...] [--devices 4 8 32]
        [--repeats N] [--limit SECONDS] [--json]

A figure is the median over `--repeats` tasks, each solved once on one thread after a plan that does not count; tasks
have tables of the synthetic pool, and memory does not bind. The oracle is the simulator. Training, compiling and
loading do not count. A solver that takes longer than `--limit`, or finds no plan, is asked for no larger sizes on as
many devices.
"""

import argparse
import itertools
import json
import os
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
from drawn_tasks import benchmark_task
from tabulate import tabulate
from tqdm import tqdm

from shardgym import CostModel, make_cost
from shardgym.cli.common import open_solver
from shardgym.errors import ShardGymError
from shardgym.evaluation.solver import call_solver, solver_names, warm_up

#: Takes as long as its measurements, minutes a plan, so it is timed only where it is named.
MEASURES = "measured_rerank"


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--solver", action="append", metavar="NAME", help="repeatable; all but measured_rerank if not given"
    )
    parser.add_argument("--tables", type=int, nargs="+", default=[10, 30, 100, 300, 1000], help="(%(default)s)")
    parser.add_argument("--devices", type=int, nargs="+", default=[4, 8, 32], help="(%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="tasks of every size (%(default)s)")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds per plan, see above (%(default)s)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = given.solver or [name for name in solver_names() if name != MEASURES]
    cost = make_cost("simulator")
    rows = []
    for devices, name in tqdm(list(itertools.product(given.devices, names)), disable=None):
        rows.append({"devices": devices, "solver": name})
        for tables in sorted(given.tables):
            seconds = plan_s(name, tables, devices, cost, given.repeats)
            rows[-1][f"{tables} tables"] = None if seconds is None else 1000 * seconds
            if seconds is None or seconds > given.limit:
                break
    print(json.dumps(rows, indent=2) if given.json else tabulate(rows, headers="keys", floatfmt=",.3g"))


def plan_s(name: str, tables: int, devices: int, cost: CostModel, repeats: int) -> float | None:
    """Return the median of processor seconds of a solver's plans; None where it finds none."""
    solver = open_solver(name)
    seconds = []
    for seed in (0, *range(repeats)):
        task = benchmark_task(tables, devices, seed)
        if not seconds:
            warm_up(solver, task, cost)
        start = time.process_time()
        try:
            call_solver(solver, task, cost, seed)
        except ShardGymError:
            return None
        seconds.append(time.process_time() - start)
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    main()
