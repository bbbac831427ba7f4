"""How a learned solver that was fitted on one size of task does on others, beside solvers that learn nothing.

    python studies/transfer/run.py SOLVER[,KEY=VALUE...] [--weights FOLDER | --out FOLDER] [--training-tasks N]
        [--steps N] [--tasks N] [--seed N] [--json]

The solver is fitted on 20 to 40 tables of the pool's train half on 4 devices, with the simulator as oracle; `--weights`
takes weights that were fitted before, `--out` keeps what is fitted. It is tested without any further fitting on new
tasks: of that size, of four other sizes, and of that size with a part of the tables known from training ("unseen" is
the share that is not). Memory does not bind, so whole tables always fit.

A ratio is the geometric mean over tasks of the solver's cost to that of another one, by the oracle, with a 95 %
bootstrap interval. Tasks without a plan of one of the two are left out; "tasks" says how many are left at least.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "benchmarks")]

import numpy as np
from drawn_tasks import BATCH, pool_halves
from paired import paired_ratio
from tabulate import tabulate
from tqdm import tqdm

from shardgym import CostModel, ShardingTask, Topology, make_cost, make_solver
from shardgym.arguments import check_int
from shardgym.arrays import Floats
from shardgym.cli.common import parse_spec
from shardgym.errors import NO_PLAN, InputError, ShardGymError
from shardgym.solver import Solver, call_solver

#: Apart, so that no task is drawn for both.
_TRAINING, _TESTING = 1, 2
WIDTHS = (4, 8, 16, 32, 64, 128)
#: More than the largest table has, and several times what a device holds on average.
_MEMORY_BYTES = 4 * 2**30
RIVALS = ("lookup_greedy", "lpt", "neuroshard")


class Setting(NamedTuple):
    """A kind of task: devices, smallest and largest number of tables, and the share of tables of the test half."""

    devices: int
    tables: tuple[int, int]
    unseen: float = 1.0


FITTED_ON = Setting(4, (20, 40), 0.0)
TESTED_ON = (
    Setting(4, (20, 40)), Setting(4, (60, 80)), Setting(2, (10, 20)), Setting(8, (40, 80)), Setting(8, (80, 120)),
    Setting(4, (20, 40), 0.5), Setting(4, (20, 40), 0.25), Setting(4, (20, 40), 0.0),
)  # fmt: skip


def main() -> int:
    """Fit, test and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("solver", help="registered name or module:Class, with settings")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--weights", type=Path, help="folder of weights; fits nothing")
    kept.add_argument("--out", type=Path, help="folder for what is fitted; goes on from a checkpoint there")
    parser.add_argument("--training-tasks", type=int, default=600, help="(%(default)s)")
    parser.add_argument("--steps", type=int, help="of training; the solver's default if not given")
    parser.add_argument("--tasks", type=int, default=50, help="of every setting (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of training (%(default)s)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        check_int("--training-tasks", arguments.training_tasks, 1)
        check_int("--tasks", arguments.tasks, 1)
        cost = make_cost("simulator")
        name, settings = parse_spec(arguments.solver)
        if arguments.weights is None:
            solver = make_solver(name, **settings)
            if not callable(getattr(solver, "fit", None)):
                raise InputError(f"solver '{name}' learns nothing: it has no fit(tasks, cost, seed)")
            fit(solver, cost, arguments.training_tasks, arguments.steps, arguments.seed, arguments.out)
        else:
            solver = make_solver(name, weights=str(arguments.weights), **settings)
        rows = [
            row for number, setting in enumerate(tqdm(TESTED_ON, disable=None))
            for row in compare(solver, setting, cost, arguments.tasks, number)
        ]  # fmt: skip
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        align = ["right"] * 5 + ["left"] * len(RIVALS)
        print(tabulate(wide(rows), headers="keys", colalign=align, disable_numparse=True))
    return 0


def fit(solver: Solver, cost: CostModel, count: int, steps: int | None, seed: int, out: Path | None) -> None:
    """Fit a learned solver on the train half, and keep its weights where a folder is given."""
    rng = np.random.default_rng([seed, _TRAINING])
    tasks = [task_of_halves(*FITTED_ON, rng) for _ in range(count)]
    solver.fit(  # type: ignore[attr-defined]
        tasks, cost, seed=seed, steps=steps, checkpoint_dir=out, resume=out is not None, progress=True,
        source="train half of synthetic-2021: 20 to 40 tables on 4 devices",
    )  # fmt: skip
    if out is not None:
        solver.save(out)  # type: ignore[attr-defined]


def compare(solver: Solver, setting: Setting, cost: CostModel, count: int, number: int) -> list[dict[str, Any]]:
    """Compare a solver with every other one on new tasks of a setting.

    Args:
        solver: that was fitted.
        setting: of the tasks.
        cost: oracle of all, and what plans are compared by.
        count: tasks.
        number: of the setting, which its chance follows from.
    """
    rng = np.random.default_rng([number, _TESTING])
    tasks = [task_of_halves(*setting, rng) for _ in range(count)]
    call_solver(solver, tasks[0], cost, 0)  # what is loaded at the first plan is not timed
    mine, ms = costs_ms(solver, tasks, cost)
    rows = []
    for rival in RIVALS:
        theirs, _ = costs_ms(make_solver(rival), tasks, cost)
        both = np.isfinite(mine) & np.isfinite(theirs)
        if not both.any():
            raise InputError(f"{setting}: no task that both the solver and {rival} found a plan for")
        rows.append({
            "devices": setting.devices, "tables": "{} to {}".format(*setting.tables), "unseen": f"{setting.unseen:.0%}",
            "ms per plan": ms, "tasks": int(both.sum()), "over": rival, **paired_ratio(mine[both], theirs[both]),
        })  # fmt: skip
    return rows


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


def wide(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one line per setting, with ratio and interval over every other solver."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        setting = {name: row[name] for name in ("devices", "tables", "unseen", "ms per plan", "tasks")}
        line = lines.setdefault(tuple(setting.values())[:3], setting)
        line["ms per plan"] = f"{row['ms per plan']:.1f}"
        line["tasks"] = min(line["tasks"], row["tasks"])
        ends = "" if row["from"] is None else f" ({row['from']:.3f} to {row['to']:.3f})"
        line[f"over {row['over']}"] = f"{row['ratio']:.3f}{ends}"
    return list(lines.values())


def costs_ms(solver: Solver, tasks: list[ShardingTask], cost: CostModel) -> tuple[Floats, float]:
    """Return the cost of every plan, NaN where there is none, and the median processor time per plan, all in ms."""
    costs = np.full(len(tasks), np.nan)
    times = []
    for n, task in enumerate(tasks):
        start = time.process_time()
        try:
            plan = call_solver(solver, task, cost, 0)
        except NO_PLAN:
            continue
        finally:
            times.append(1000 * (time.process_time() - start))
        costs[n] = cost.evaluate(task, [plan])[0].total_ms
    return costs, float(np.median(times))


if __name__ == "__main__":
    sys.exit(main())
