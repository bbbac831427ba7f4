"""How far solvers' plans for tiny-v1 are from the best of all plans, by their oracle and by the judge.

    python benchmarks/optimality.py [--tasks N] [--weights FOLDER] [--json]

Every feasible plan of whole tables and tables halved by columns is scored by both. By the oracle, the figure says how
well a solver searches; by the judge, which solvers cannot query, it also says what the oracle's errors cost. Solvers
that cut otherwise than in halves may end below the optimum of this set.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from shardgym import CostModel, Shard, ShardingPlan, ShardingTask, load_suite, make_cost, make_solver
from shardgym.errors import NO_PLAN
from shardgym.leaderboard.ranking import HEURISTICS
from shardgym.plan import COLUMN_UNIT

SOLVERS = (*HEURISTICS, "neuroshard", "neuroshard_plus")
_TOGETHER = 2000

#: Devices of a table's shards: one for a whole table, two for halves.
Places = tuple[int, ...]


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=12, help="(%(default)s)")
    parser.add_argument("--weights", type=Path, help="folder of 'shardgym pretrain'; the package's if not given")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    oracle = make_cost("simulator", weights=arguments.weights)
    judge = make_cost("simulator", weights=arguments.weights, role="judge")
    found = [compare(task, oracle, judge) for task in tqdm(load_suite("tiny-v1")[: arguments.tasks], disable=None)]
    rows = [row(name, np.array([task[name] for task in found if name in task])) for name in SOLVERS]
    print(json.dumps(rows, indent=2) if arguments.json else tabulate(rows, headers="keys", floatfmt=".4f"))


def row(name: str, ratios: np.ndarray) -> dict[str, Any]:
    """Summarise cost over optimum by oracle and judge, shape (tasks solved, 2)."""
    mean = ratios.mean(axis=0).tolist()
    worst = ratios.max(axis=0).tolist()
    return {
        "solver": name, "tasks solved": len(ratios), "oracle mean": mean[0], "oracle worst": worst[0],
        "judge mean": mean[1], "judge worst": worst[1],
    }  # fmt: skip


def compare(task: ShardingTask, oracle: CostModel, judge: CostModel) -> dict[str, list[float]]:
    """Return cost over optimum by oracle and judge for every solver that finds a plan."""
    best = [optimum(task, cost) for cost in (oracle, judge)]
    ratios = {}
    for name in SOLVERS:
        try:
            plan = make_solver(name).solve(task, oracle)
        except NO_PLAN:
            continue
        costs = [cost.evaluate(task, [plan])[0].total_ms for cost in (oracle, judge)]
        ratios[name] = [ms / least for ms, least in zip(costs, best, strict=True)]
    return ratios


def optimum(task: ShardingTask, cost: CostModel) -> float:
    """Return the least cost of all plans in ms; infeasible ones cost infinity."""
    plans = every_plan(task)
    least = float("inf")
    while part := list(itertools.islice(plans, _TOGETHER)):
        least = min(least, *(answer.total_ms for answer in cost.evaluate(task, part)))
    return least


def every_plan(task: ShardingTask) -> Iterator[ShardingPlan]:
    """Yield all plans of whole and halved tables; of those that differ by the numbers of devices alone, one."""
    devices = range(task.num_devices)
    whole = [(device,) for device in devices]
    halved = list(itertools.combinations(devices, 2))
    ways = [whole + (halved if table.embedding_dim % (2 * COLUMN_UNIT) == 0 else []) for table in task.tables]
    for places in itertools.product(*ways):
        order = list(dict.fromkeys(itertools.chain(*places)))
        if order == sorted(order) == list(range(len(order))):
            yield plan_of(task, places)


def plan_of(task: ShardingTask, places: tuple[Places, ...]) -> ShardingPlan:
    """Return the plan with tables, or their halves, on these devices."""
    shards = []
    for table, held in zip(task.tables, places, strict=True):
        width = table.embedding_dim // len(held)
        rows = (0, table.num_embeddings)
        shards += [Shard(table.name, rows, (n * width, (n + 1) * width), device) for n, device in enumerate(held)]
    return ShardingPlan.of(task, shards)


if __name__ == "__main__":
    main()
