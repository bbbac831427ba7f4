"""Plans of neuroshard_plus, neuroshard and the heuristics: cost by the oracle, cost by a judge, and seconds.

    python benchmarks/plus.py [--weights FOLDER] [--suite NAME] [--tasks N] [--time-limit SECONDS] [--kicks N] [--json]

Ratios are geometric means over tasks of a solver's cost to that of neuroshard, by the oracle that the solvers search
with and by the judge that they do not see, with 95 % bootstrap intervals; once for every largest width of a task and
once for all tasks. Seconds are medians; solvers take turns on every task, each with an oracle of its own. A time limit
is for neuroshard_plus alone. Tasks without a plan of some solver are left out of that solver's rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from paired import paired_ratio
from tabulate import tabulate
from tqdm import tqdm

from shardgym import NoFeasiblePlanError, ShardingTask, load_suite, make_cost, make_solver
from shardgym.leaderboard.ranking import HEURISTICS
from shardgym.solver import call_solver

REFERENCE, PLUS = "neuroshard", "neuroshard_plus"
SOLVERS = (*HEURISTICS, REFERENCE, PLUS)

#: Oracle ms, judge ms and seconds of one solver's plan for one task.
Scores = tuple[float, float, float]


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", type=Path, help="folder of 'shardgym pretrain'; the package's if not given")
    parser.add_argument("--suite", default="dlrm4-v1", help="(%(default)s)")
    parser.add_argument("--tasks", type=int, default=4, help="of every largest width (%(default)s)")
    parser.add_argument("--time-limit", type=float, help="seconds for neuroshard_plus; none if not given")
    parser.add_argument("--kicks", type=int, help="of neuroshard_plus; its default if not given")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    comparison = Comparison(arguments.weights, arguments.kicks, arguments.time_limit)
    chosen = by_width(load_suite(arguments.suite), arguments.tasks)
    comparison.solve(next(iter(chosen.values()))[0])  # what is compiled or read first is not timed
    total = sum(map(len, chosen.values()))
    with tqdm(total=total, disable=None) as bar:
        scores = {width: [comparison.solve(task, bar) for task in tasks] for width, tasks in chosen.items()}
    rows = [row for width, solved in scores.items() for row in table(str(width), solved)]
    rows += table("all", [solved for several in scores.values() for solved in several])
    print(json.dumps(rows, indent=2) if arguments.json else tabulate(rows, headers="keys", floatfmt=".4f"))


def by_width(suite: Sequence[ShardingTask], count: int) -> dict[int, list[ShardingTask]]:
    """Return some tasks for every largest width of a table, spread over the suite."""
    groups: dict[int, list[ShardingTask]] = defaultdict(list)
    for task in suite:
        groups[max(table.embedding_dim for table in task.tables)].append(task)
    return {
        width: [tasks[n] for n in np.linspace(0, len(tasks) - 1, min(count, len(tasks))).astype(int).tolist()]
        for width, tasks in sorted(groups.items())
    }


class Comparison:
    """Solvers, each with an oracle of its own, and the judge.

    Args:
        weights: folder of both; None for the package's.
        kicks: of neuroshard_plus.
        time_limit_s: for neuroshard_plus.
    """

    def __init__(self, weights: Path | None, kicks: int | None, time_limit_s: float | None) -> None:
        self._oracles = {name: make_cost("simulator", weights=weights) for name in SOLVERS}
        self._judge = make_cost("simulator", weights=weights, role="judge")
        self._solvers = {name: make_solver(name, **({"kicks": kicks} if name == PLUS else {})) for name in SOLVERS}
        self._limits = {PLUS: time_limit_s}

    def solve(self, task: ShardingTask, bar: Any = None) -> dict[str, Scores]:
        """Return the scores of every solver that finds a plan."""
        scores = {}
        for name, solver in self._solvers.items():
            start = time.perf_counter()
            try:
                plan = call_solver(solver, task, self._oracles[name], 0, time_limit_s=self._limits.get(name))
            except NoFeasiblePlanError:
                continue
            seconds = time.perf_counter() - start
            (predicted,), (judged,) = (cost.evaluate(task, [plan]) for cost in (self._oracles[name], self._judge))
            scores[name] = predicted.total_ms, judged.total_ms, seconds
        if bar is not None:
            bar.update()
        return scores


def table(width: str, solved: list[dict[str, Scores]]) -> list[dict[str, Any]]:
    """Compare every solver with the reference on the tasks that both solved."""
    rows = []
    for name in SOLVERS:
        both = [scores for scores in solved if name in scores and REFERENCE in scores]
        if both:
            mine, theirs = (np.array([scores[which] for scores in both]) for which in (name, REFERENCE))
            rows.append({
                "largest width": width, "solver": name, "tasks": len(both),
                **paired_ratio(mine[:, 0], theirs[:, 0], "oracle "),
                **paired_ratio(mine[:, 1], theirs[:, 1], "judge "),
                "median s": statistics.median(mine[:, 2].tolist()),
            })  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
