"""Searches that start from a learned solver's plan, against the same searches on their own and neuroshard_plus.

    python studies/warm_start/run.py SOLVER[,KEY=VALUE...] [--suite NAME] [--tasks N] [--json]

Ratios are geometric means over tasks of a plan's cost to that of neuroshard_plus without help, by the oracle that all
of them search with and by the judge that none sees, with 95 % bootstrap intervals. Times are medians; where a search
starts from the learned plan, they include making it. Tasks without a plan of some row are left out of all rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).parents[1]))

import numpy as np
from paired import paired_ratio
from tabulate import tabulate
from tqdm import tqdm

from shardgym import CostModel, ShardingPlan, ShardingTask, load_suite, make_cost, make_solver
from shardgym.arguments import check_int
from shardgym.cli.common import open_solver
from shardgym.errors import NO_PLAN, InputError, ShardGymError
from shardgym.solver import Solver, call_solver

REFERENCE = "neuroshard_plus"
SEARCHES = (REFERENCE, "local_search", "annealing")

#: What is compared: a search or None, and whether it starts from the learned plan.
Way = tuple[str | None, bool]
WAYS: tuple[Way, ...] = ((None, True), *((name, learned) for name in SEARCHES for learned in (False, True)))

#: Oracle ms, judge ms and ms to make the plan.
Scores = tuple[float, float, float]


def main() -> int:
    """Run the comparison and print it; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("solver", help="learned: registered name or module:Class, with settings such as weights=FOLDER")
    parser.add_argument("--suite", default="dlrm4-v1", help="(%(default)s)")
    parser.add_argument("--tasks", type=int, default=10, help="of every largest width (%(default)s)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        check_int("--tasks", arguments.tasks, 1)
        policy = open_solver(arguments.solver)
        suite = load_suite(arguments.suite)
        oracle = make_cost("simulator")
        judge = make_cost("simulator", role="judge")
        tasks = [task for group in by_width(suite, arguments.tasks).values() for task in group]
        searches = {name: make_solver(name) for name in SEARCHES}
        score(tasks[0], policy, searches, oracle, judge)  # what is compiled or read first is not timed
        scored = [score(task, policy, searches, oracle, judge) for task in tqdm(tasks, disable=None)]
        rows = table(arguments.solver.split(",")[0], [scores for scores in scored if scores is not None])
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(rows, indent=2) if arguments.json else tabulate(rows, headers="keys", floatfmt=".4f"))
    return 0


def by_width(suite: Sequence[ShardingTask], count: int) -> dict[int, list[ShardingTask]]:
    """Return some tasks for every largest width of a table, spread over the suite."""
    groups: dict[int, list[ShardingTask]] = defaultdict(list)
    for task in suite:
        groups[max(table.embedding_dim for table in task.tables)].append(task)
    return {
        width: [tasks[n] for n in np.linspace(0, len(tasks) - 1, min(count, len(tasks))).astype(int).tolist()]
        for width, tasks in sorted(groups.items())
    }


def score(
    task: ShardingTask, policy: Solver, searches: dict[str, Solver], oracle: CostModel, judge: CostModel
) -> dict[Way, Scores] | None:
    """Return the scores of all ways to a plan; None when one of them finds none."""
    scores: dict[Way, Scores] = {}
    try:
        start, policy_ms = timed(policy, task, oracle)
        for search, learned in WAYS:
            if search is None:
                plan = start
                ms = policy_ms
            else:
                plan, own_ms = timed(searches[search], task, oracle, start if learned else None)
                ms = own_ms + learned * policy_ms
            predicted, judged = (cost.evaluate(task, [plan])[0].total_ms for cost in (oracle, judge))
            scores[search, learned] = predicted, judged, ms
    except NO_PLAN:
        return None
    return scores


def timed(
    solver: Solver, task: ShardingTask, cost: CostModel, initial_plan: ShardingPlan | None = None
) -> tuple[ShardingPlan, float]:
    """Return a solver's plan and the ms that it took."""
    start = time.perf_counter()
    plan = call_solver(solver, task, cost, 0, initial_plan=initial_plan)
    return plan, 1000 * (time.perf_counter() - start)


def table(policy: str, scored: list[dict[Way, Scores]]) -> list[dict[str, Any]]:
    """Compare every way with the reference on its own.

    Raises:
        InputError: no task was solved in every way.
    """
    if not scored:
        raise InputError(f"no task that '{policy}' and all searches found a plan for")
    values = {way: np.array([scores[way] for scores in scored]) for way in WAYS}
    reference = values[REFERENCE, False]
    return [
        {
            "start": policy if learned else "its own", "search": search or "none", "tasks": len(scored),
            **paired_ratio(found[:, 0], reference[:, 0], "oracle "),
            **paired_ratio(found[:, 1], reference[:, 1], "judge "),
            "ms per plan": statistics.median(found[:, 2].tolist()),
        }
        for (search, learned), found in values.items()
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
