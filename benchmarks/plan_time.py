"""Milliseconds of processor time per plan of every solver, from 10 to 1,000 tables on 4, 8 and 32 devices.

    python benchmarks/plan_time.py [--solver NAME[,KEY=VALUE...] ...] [--tables 10 30 ...] [--devices 4 8 32]
        [--repeats N] [--limit SECONDS] [--json]

A figure is the median over `--repeats` tasks, each solved once on one thread after a plan that does not
count; tasks have tables of the synthetic pool, and memory does not bind. The oracle is the simulator. Training,
compiling and loading do not count.

A solver that takes longer than `--limit` for one plan, which is then the figure, with a star, is asked for no larger
sizes on as many devices: "-". Nothing is stopped half-way. Where there is no plan, standard error has the reason.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
from drawn_tasks import benchmark_task
from tabulate import tabulate
from tqdm import tqdm

from shardgym import CostModel, make_cost
from shardgym.cli.common import open_solver
from shardgym.errors import ShardGymError
from shardgym.evaluation.solver import Solver, call_solver, solver_names, warm_up

TOO_LONG = "-"
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
    rows = [
        row(name, sorted(given.tables), devices, cost, given.repeats, given.limit)
        for devices, name in tqdm(list(itertools.product(given.devices, names)), disable=None)
    ]
    if given.json:
        print(json.dumps(rows, indent=2))
    else:
        cells = [{key: shown(value) for key, value in row.items()} for row in rows]
        align = ("right", "left", *["right"] * len(given.tables))
        print(tabulate(cells, headers="keys", colalign=align, disable_numparse=True))


def row(name: str, sizes: list[int], devices: int, cost: CostModel, repeats: int, limit_s: float) -> dict[str, Any]:
    """Time a solver on ascending numbers of tables.

    Args:
        name: of the solver, with settings.
        sizes: numbers of tables.
        devices: of all tasks.
        cost: the oracle.
        repeats: tasks of each size.
        limit_s: seconds after which a solver is too slow.

    Returns:
        Milliseconds by number of tables; text where there is no figure.
    """
    cells: dict[str, Any] = {"devices": devices, "solver": name}
    late = False
    for tables in sizes:
        cells[str(tables)] = TOO_LONG
        if late:
            continue
        try:
            seconds = times(open_solver(name), tables, devices, cost, repeats, limit_s)
        except ShardGymError as error:
            print(f"{name}, {tables} tables on {devices} devices: {error}", file=sys.stderr)
            cells[str(tables)] = "no plan"
            continue
        late = seconds[-1] > limit_s
        cells[str(tables)] = f"{1000 * seconds[-1]:,.0f}*" if late else 1000 * statistics.median(seconds)
    return cells


def shown(value: Any) -> str:
    """Return a cell as text, milliseconds with three digits."""
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"
    return str(value)


def times(solver: Solver, tables: int, devices: int, cost: CostModel, repeats: int, limit_s: float) -> list[float]:
    """Return the processor seconds of some plans after one that does not count; only the last may be over the limit."""
    seconds: list[float] = []
    for seed in (0, *range(repeats)):
        task = benchmark_task(tables, devices, seed)
        if not seconds:
            warm_up(solver, task, cost)
        start = time.process_time()
        call_solver(solver, task, cost, seed)
        seconds.append(time.process_time() - start)
        if seconds[-1] > limit_s:
            return seconds
    return seconds[1:]


if __name__ == "__main__":
    main()
