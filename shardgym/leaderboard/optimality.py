"""How far from optimal the plans of a board may be: lower bounds of its tasks."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats
from shardgym.bounds import lower_bound
from shardgym.costs.base import make_cost
from shardgym.costs.roofline import RooflineCost
from shardgym.leaderboard.boards import Board
from shardgym.suites import load_suite, suite_names


class TaskBounds(NamedTuple):
    """Lower bounds of the tasks of a board, in its order.

    Attributes:
        total_ms: no plan costs less, shape (T,).
        row_cuts: whether plans that cut rows are covered; they are where a plan of the board does.
    """

    total_ms: Floats
    row_cuts: bool


def task_bounds(board: Board) -> TaskBounds | None:
    """Return the bounds of a board's tasks.

    None where there are none: another judge than `roofline`, or another version of it; a suite that is no part of the
    package, or has other tasks than the records.
    """
    key = board.key
    if key.judge != RooflineCost.name or key.judge_version != RooflineCost.version or key.suite not in suite_names():
        return None
    suite = load_suite(key.suite)
    if any(index >= len(suite) for index in board.tasks):
        return None
    tasks = {index: suite[index] for index in board.tasks}
    if any(result.task_hash != tasks[result.task_index].digest for result in board.results):
        return None
    rows = {index: {table.name: table.num_embeddings for table in task.tables} for index, task in tasks.items()}
    row_cuts = any(
        shard.num_rows != rows[result.task_index][shard.table]
        for result in board.results
        if result.status == "ok" and result.plan is not None
        for shard in result.plan.shards
    )
    cost = make_cost(key.judge, **json.loads(key.judge_settings))
    bounds = [lower_bound(task, cost, row_cuts=row_cuts).total_ms for task in tasks.values()]
    return TaskBounds(np.array(bounds, dtype=np.float64), row_cuts)
