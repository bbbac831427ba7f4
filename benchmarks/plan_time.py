"""Milliseconds of processor time per plan of every solver, from 10 to 1,000 tables on 4, 8 and 32 devices.

    python benchmarks/plan_time.py [--solver NAME[,KEY=VALUE...] ...] [--tables 10,30,...] [--devices 4,8,32]
        [--repeats N] [--limit SECONDS] [--json]

A figure is the median over `--repeats` tasks, each solved once on one thread after a plan that does not
count; tasks have tables of the synthetic pool, and memory does not bind. The oracle is the simulator. Training,
compiling and loading do not count.

A solver that takes longer than `--limit` for one plan, which is then the figure, with a star, is asked for no larger
sizes on as many devices: "-". Nothing is stopped half-way. Why other cells are empty is said below the table.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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
from shardgym.errors import InputError, ShardGymError, check_int
from shardgym.evaluation.solver import Solver, call_solver, solver_names, warm_up

TOO_LONG = "-"
#: Takes as long as its measurements, minutes a plan, so it is timed only where it is named.
MEASURES = "measured_rerank"


def main() -> int:
    """Run the benchmark and print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--solver", action="append", metavar="NAME", help="repeatable; all but measured_rerank if not given"
    )
    parser.add_argument("--tables", default="10,30,100,300,1000", help="(%(default)s)")
    parser.add_argument("--devices", default="4,8,32", help="(%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="tasks of every size (%(default)s)")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds per plan, see above (%(default)s)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    names = arguments.solver or [name for name in solver_names() if name != MEASURES]
    reasons: dict[str, str] = {}
    try:
        check_int("--repeats", arguments.repeats, 1)
        counts = numbers("--tables", arguments.tables)
        asked = [(devices, name) for devices in numbers("--devices", arguments.devices) for name in names]
        for name in arguments.solver or ():
            open_solver(name)  # a wrong name is an error before anything runs
        cost = make_cost("simulator")
        rows = [
            row(name, [(tables, devices) for tables in counts], cost, arguments.repeats, arguments.limit, reasons)
            for devices, name in tqdm(asked, disable=None)
        ]
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if arguments.json:
        print(json.dumps({"rows": rows, "reasons": reasons}, indent=2))
    else:
        cells = [{key: shown(value) for key, value in row.items()} for row in rows]
        align = ("right", "left", *["right"] * len(counts))
        print(tabulate(cells, headers="keys", colalign=align, disable_numparse=True))
        print(f"\n*: one plan, as it took more than {arguments.limit:g} s; larger sizes are left out: {TOO_LONG}")
        for name, reason in reasons.items():
            print(f"{letter(name, reasons)}: {reason}")
    return 0


def numbers(option: str, text: str) -> list[int]:
    """Read "10,30" as ascending whole numbers; raises `InputError` when it is something else."""
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise InputError(f"{option}: expected whole numbers from 1 on such as 10,30, got '{text:.40}'")
    return sorted({int(number) for number in text.split(",")})


def row(
    name: str, sizes: list[tuple[int, int]], cost: CostModel, repeats: int, limit_s: float, reasons: dict[str, str]
) -> dict[str, Any]:
    """Time a solver on ascending numbers of tables.

    Args:
        name: of the solver, with settings.
        sizes: (tables, devices), all with as many devices.
        cost: the oracle.
        repeats: tasks of each size.
        limit_s: seconds after which a solver is too slow.
        reasons: by solver, why cells of it have no figure; the first one is kept.

    Returns:
        Milliseconds by number of tables; text where there is no figure.
    """
    cells: dict[str, Any] = {"devices": sizes[0][1], "solver": name}
    late = False
    for tables, devices in sizes:
        if late:
            cells[str(tables)] = TOO_LONG
            continue
        try:
            seconds = times(open_solver(name), tables, devices, cost, repeats, limit_s)
        except ShardGymError as error:
            reasons.setdefault(name, str(error))
            cells[str(tables)] = letter(name, reasons)
            continue
        late = seconds[-1] > limit_s
        cells[str(tables)] = f"{1000 * seconds[-1]:,.0f}*" if late else 1000 * statistics.median(seconds)
    return cells


def letter(name: str, reasons: dict[str, str]) -> str:
    """Return what stands in a table for the reason of a solver: a, b, ..."""
    return chr(ord("a") + list(reasons).index(name))


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
    sys.exit(main())
