"""How far solvers' plans for tiny-v1 are from the best of all plans, by their oracle and by the judge.

    python studies/optimality/run.py [--tasks N] [--weights FOLDER] [--json]

Every feasible plan of whole tables and tables halved by columns is scored by both. By the oracle, the figure says how
well a solver searches; by the judge, which solvers cannot query, it also says what the oracle's errors cost. Solvers
that cut otherwise than in halves may end below the optimum of this set.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from shardgym import CostModel, ShardingTask, load_suite, make_cost, make_solver
from shardgym.errors import NO_PLAN
from shardgym.leaderboard.ranking import HEURISTICS

SOLVERS = (*HEURISTICS, "neuroshard", "neuroshard_plus")
#: Of one task; devices that are interchangeable counted each.
_MOST_PLANS = 10**9


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
    """Return the least cost of all plans in ms."""
    best = make_solver("exhaustive", parts=2, limit=_MOST_PLANS).solve(task, cost)
    return cost.evaluate(task, [best])[0].total_ms


if __name__ == "__main__":
    main()
