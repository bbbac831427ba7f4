"""Our plans against those of TorchRec's planner, by TorchRec's rating and ours.

    python benchmarks/torchrec_planner.py [--group NAME ...] [--tasks N] [--limit SECONDS] [--json]

TorchRec plans every task three times: with its defaults, with its perf-sorted partitioner, and, up to 16
devices, as the best of several least widths with grids allowed, too. All have its own proposers and sharding types, and
run side by side, in as many processes as there are cores. TorchRec always plans by its own rating. `neuroshard_plus`
plans by the cost that is compared: the rating, and the model `gpu` for tasks on GPUs or `roofline` for those on CPUs.
Models are DLRM-DCNv2 (MLPerf), 300 tables of the synthetic pool, and four that `drawn_tasks.py` draws; 300 tables and
suites only if they are named. `--limit` is the planner's own `timeout_seconds`, after which it proposes no more: with a
thousand tables on 128 devices it has thousands of proposals, each of which takes a second. Figures are geometric means
over tasks of our cost over that of TorchRec's plan. "best" is the cheapest of the three, task by task, and "worst task"
the largest ratio to it. A task for which TorchRec finds no plan is counted under "TorchRec has none", one on which both
are equal to 0.05 % under "level".
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, get_args

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from drawn_tasks import DRAWN_MODELS, dcnv2, drawn_model, model_with_300_tables
from tabulate import tabulate
from tqdm import tqdm

from shardgym import ShardingPlan, ShardingTask, load_suite, make_cost, make_solver
from shardgym.costs.base import CostModel
from shardgym.errors import NO_PLAN
from shardgym.leaderboard.statistics import mean_ratio
from shardgym.plans.plan import Kind

THEIRS = ("torchrec", "torchrec_perf", "torchrec_columns")
OURS = "neuroshard_plus"
#: TorchRec tries one width after the other, which takes minutes with more devices.
_MOST_DEVICES_FOR_WIDTHS = 16
#: Sharding types of tables that are not in tiers.
ALL_TYPES = [kind for kind in get_args(Kind) if kind != "tiers"]
#: Ratios above this are losses; equal plans differ by rounding.
_LOSS = 1 + 1e-9
#: Ratios above this that are no losses are level.
_LEVEL = 1 - 5e-4
#: Suites on CPUs.
_CPU_SUITES = ("dlrm4-v2", "dlrm8-v2", "wide8-v2", "tight4-v2", "tight8-v2", "hetero4-v2")


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--group", action="append", metavar="NAME", help="repeatable; all that are there if not given")
    parser.add_argument("--tasks", type=int, default=10, help="of a suite at most (%(default)s)")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="of TorchRec's proposals, wall time")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = compare(groups(given.group, given.tasks), given.limit)
    print(json.dumps(rows, indent=1) if given.json else tabulate(rows, headers="keys", floatfmt=".3f"))


def groups(names: Sequence[str] | None, most: int) -> dict[str, list[ShardingTask]]:
    """Return tasks by group: models on 8 to 128 GPUs, and, if they are named, suites, at most so many tasks of each."""
    makers: dict[str, Callable[[], list[ShardingTask]]] = {}
    for devices in (8, 16, 64, 128):
        makers[f"DLRM-DCNv2, {devices} GPUs"] = lambda devices=devices: [dcnv2(devices)]
    for name, counts in DRAWN_MODELS.items():
        for devices in counts:
            makers[f"{name}, {devices} GPUs"] = lambda name=name, devices=devices: [drawn_model(name, devices)]
    for devices in (8, 64):
        makers[f"300 tables, {devices} GPUs"] = lambda devices=devices: [model_with_300_tables(devices)]
    for suite in ("published-v1", "production-v1", *_CPU_SUITES):
        makers[suite] = lambda suite=suite: spread(load_suite(suite), most)
    usual = [name for name in makers if name.endswith(" GPUs") and not name.startswith("300")]
    chosen = usual if names is None else [name for name in makers if any(name.startswith(start) for start in names)]
    return {name: makers[name]() for name in chosen}


def spread(tasks: Sequence[ShardingTask], most: int) -> list[ShardingTask]:
    """Return at most so many tasks, spread evenly, without those of more than 128 devices, which take long."""
    possible = [task for task in tasks if task.num_devices <= 128]
    return [possible[n] for n in np.unique(np.linspace(0, len(possible) - 1, min(most, len(possible))).astype(int))]


def compare(tasks_of: dict[str, list[ShardingTask]], limit_s: float | None = None) -> list[dict[str, Any]]:
    """Return a row per group and cost."""
    rows: list[dict[str, Any]] = []
    workers = ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn"))
    with workers, tqdm(total=sum(map(len, tasks_of.values())), unit="task", disable=None) as bar:
        for group, tasks in tasks_of.items():
            costs = [make_cost(name) for name in cost_names(group)]
            ratios: dict[str, list[dict[str, float]]] = {cost.name: [] for cost in costs}
            refused = 0
            for task in tasks:
                few = task.num_devices <= _MOST_DEVICES_FOR_WIDTHS
                theirs = [name for name in THEIRS if few or name != "torchrec_columns"]
                running = {name: workers.submit(solved, name, task, costs[0].name, limit_s) for name in theirs}
                plans = [(name, plan) for name, future in running.items() if (plan := future.result()) is not None]
                refused += not plans
                for cost in costs if plans else ():
                    ours = solved(OURS, task, cost.name)
                    mine = math.inf if ours is None else total_ms(cost, task, ours)
                    found = {name: mine / total_ms(cost, task, plan) for name, plan in plans}
                    ratios[cost.name].append({**found, "best": max(found.values())})
                bar.update()
            rows += [row(group, name, ratios_of_tasks, refused) for name, ratios_of_tasks in ratios.items()]
    return rows


def cost_names(group: str) -> tuple[str, ...]:
    """Return the costs that apply to the tasks of a group."""
    return ("torchrec_rating", "roofline" if group in _CPU_SUITES else "gpu")


def solved(name: str, task: ShardingTask, cost: str, limit_s: float | None = None) -> ShardingPlan | None:
    """Return the plan of the solver of that name; None if it finds none."""
    solver = make_solver(name, **({"sharding_types": ALL_TYPES} if name == "torchrec_columns" else {}))
    try:
        limit = {} if limit_s is None else {"time_limit_s": limit_s}
        plan: ShardingPlan = solver.solve(task, make_cost(cost), seed=0, **limit)
    except NO_PLAN:
        return None
    return plan


def total_ms(cost: CostModel, task: ShardingTask, plan: ShardingPlan) -> float:
    """Return what a plan costs."""
    return cost.evaluate(task, [plan])[0].total_ms


def row(group: str, cost: str, ratios: list[dict[str, float]], refused: int) -> dict[str, Any]:
    """Return figures over the tasks of a group; a variant counts on the tasks for which it has a plan."""
    means = {}
    for name in (*THEIRS, "best"):
        found = np.array([of_task[name] for of_task in ratios if name in of_task])
        means[f"over {name}"] = mean_ratio(found, np.ones(len(found))) if len(found) else None
    lost = sum(of_task["best"] > _LOSS for of_task in ratios)
    worst = max((of_task["best"] for of_task in ratios), default=None)
    level = sum(_LEVEL < of_task["best"] <= _LOSS for of_task in ratios)
    return {
        "tasks": group, "cost": cost, "number": len(ratios), **means, "lost": lost, "worst task": worst,
        "TorchRec has none": refused, "level": level,
    }  # fmt: skip


if __name__ == "__main__":
    main()
