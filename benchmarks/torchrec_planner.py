"""Our plans against those of TorchRec's planner, by TorchRec's rating and ours.

    python benchmarks/torchrec_planner.py [--model NAME ...] [--suite NAME ...] [--limit SECONDS] [--json]

TorchRec plans every task three times: with its defaults, with its perf-sorted partitioner, and, up to 16
devices, as the best of several least widths with grids allowed, too. All have its own proposers and sharding types, and
run side by side, in as many processes as there are cores. TorchRec always plans by its own rating. `neuroshard_plus`
plans by the cost that is compared: the rating, and the model `gpu` for tasks on GPUs or `roofline` for those on CPUs.
Models are DLRM-DCNv2 (MLPerf), and four that `drawn_tasks.py` draws; of suites those tasks of at most 128 devices that
are named. `--limit` is the planner's own `timeout_seconds`, after which it proposes no more: with a thousand tables on
128 devices it has thousands of proposals, each of which takes a second. Figures are our cost over that of TorchRec's
plan; "best" is the cheapest of the three. At the end stands the geometric mean over tasks.
"""

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any, get_args

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from drawn_tasks import DRAWN_MODELS, dcnv2, drawn_model
from tabulate import tabulate
from tqdm import tqdm

from shardgym import ShardingPlan, ShardingTask, load_suite, make_cost, make_solver
from shardgym.errors import NO_PLAN
from shardgym.plans.plan import Kind

THEIRS = ("torchrec", "torchrec_perf", "torchrec_columns")
OURS = "neuroshard_plus"
#: TorchRec tries one width after the other, which takes minutes with more devices.
_MOST_DEVICES_FOR_WIDTHS = 16
#: Maximum number of devices of suites' tasks, which otherwise take long.
_MOST_DEVICES = 128
#: Sharding types of tables that are not in tiers.
ALL_TYPES = [kind for kind in get_args(Kind) if kind != "tiers"]


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", action="append", metavar="NAME", help="how names begin; repeatable (default: all)")
    parser.add_argument("--suite", action="append", metavar="NAME", default=[], help="repeatable")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="wall time of TorchRec's proposals")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    named = given.model or ([] if given.suite else [""])
    tasks = [task for task in models() if task.name.startswith(tuple(named))] if named else []
    tasks += [task for name in given.suite for task in load_suite(name) if task.num_devices <= _MOST_DEVICES]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as workers:
        rows = [row for task in tqdm(tasks, disable=None) for row in compare(task, workers, given.limit)]
    print(json.dumps(rows, indent=1) if given.json else tabulate(rows, headers="keys", floatfmt=".3f"))
    for name in dict.fromkeys(row["cost"] for row in rows):
        best = [row["over best"] for row in rows if row["cost"] == name and "over best" in row]
        print(f"{name}: {np.exp(np.mean(np.log(best))):.3f} over {len(best)} tasks, worst {max(best):.3f}")


def models() -> list[ShardingTask]:
    """Return models on 8 to 128 GPUs."""
    drawn = [drawn_model(name, devices) for name, counts in DRAWN_MODELS.items() for devices in counts]
    return [*(dcnv2(devices) for devices in (8, 16, 64, 128)), *drawn]


def compare(task: ShardingTask, workers: Executor, limit_s: float | None = None) -> Iterator[dict[str, Any]]:
    """Yield a row per cost, without figures of TorchRec's variants that find no plan."""
    theirs = [name for name in THEIRS if task.num_devices <= _MOST_DEVICES_FOR_WIDTHS or name != "torchrec_columns"]
    running = {name: workers.submit(solved, name, task, "torchrec_rating", limit_s) for name in theirs}
    plans = {name: plan for name, future in running.items() if (plan := future.result()) is not None}
    for name in ("torchrec_rating", "roofline" if task.topology.device == "cpu-core" else "gpu"):
        row: dict[str, Any] = {"task": task.name, "cost": name}
        ours = solved(OURS, task, name)
        if ours is not None and plans:
            mine, *others = (answer.total_ms for answer in make_cost(name).evaluate(task, [ours, *plans.values()]))
            row |= {f"over {of}": mine / other for of, other in zip(plans, others, strict=True)}
            row["over best"] = mine / min(others)
        yield row


def solved(name: str, task: ShardingTask, cost: str, limit_s: float | None = None) -> ShardingPlan | None:
    """Return the plan of the solver of that name; None if it finds none."""
    solver = make_solver(name, **({"sharding_types": ALL_TYPES} if name == "torchrec_columns" else {}))
    try:
        limit = {} if limit_s is None else {"time_limit_s": limit_s}
        plan: ShardingPlan = solver.solve(task, make_cost(cost), seed=0, **limit)
    except NO_PLAN:
        return None
    return plan


if __name__ == "__main__":
    main()
