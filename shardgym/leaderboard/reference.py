"""Costs that a board is compared with and that its records may lack: of failed tasks, and of the base.

A failed task counts what a plan costs that needs no solver, `first_fit`, by the judge of the board. A judge that
measures cannot be asked again: there it counts `WORST_FACTOR` times the dearest plan that the task has on the board.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.base import CostModel, make_cost, registered_class
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.leaderboard.boards import Board, SolverResults
from shardgym.plan import COLUMN_UNIT, Shard, ShardingPlan, check_possible
from shardgym.solver import make_solver, solver_names
from shardgym.task import ShardingTask

#: What all boards are relative to, whether it is among their solvers or not. It asks no cost model.
BASE = "size_lookup_greedy"

#: Where the judge cannot be asked again. On the simulated boards of this project `first_fit` costs 1.9 times as much as
#: the dearest plan of a solver, the geometric mean over the tasks that some solver failed.
WORST_FACTOR = 2.0


def first_fit(task: ShardingTask) -> ShardingPlan:
    """Return the fallback plan: every table on the first device with room, largest first, cut where none has.

    A table that fits nowhere whole is cut by columns: each device in turn takes as many as it has room for.

    Raises:
        NoFeasiblePlanError: columns are left when all devices are full, or no plan is feasible.
    """
    check_possible(task)
    room = list(task.topology.memory_bytes)
    shards = []
    for table in sorted(task.tables, key=task.table_bytes, reverse=True):
        size = task.table_bytes(table)
        whole = next((device for device, left in enumerate(room) if left >= size), None)
        if whole is not None:
            shards.append(Shard.whole(table, whole))
            room[whole] -= size
            continue
        rows = (0, table.num_embeddings)
        first = 0
        for device, left in enumerate(room):
            widths = range(COLUMN_UNIT, table.embedding_dim - first + 1, COLUMN_UNIT)
            fitting = bisect.bisect_right(widths, left, key=lambda width: task.block_bytes(rows[1], width))
            if fitting:
                last = first + widths[fitting - 1]
                shards.append(Shard(table.name, rows, (first, last), device))
                room[device] -= shards[-1].bytes(task)
                first = last
        if first < table.embedding_dim:
            raise NoFeasiblePlanError(f"{table.embedding_dim - first} columns of table '{table.name}' fit nowhere")
    return ShardingPlan.of(task, shards)


class References:
    """Scores plans that are not among the records of a board.

    Args:
        board: gives judge and tasks.
    """

    def __init__(self, board: Board) -> None:
        self._board = board

    @functools.cached_property  # weights are loaded only where a cost is missing
    def _judge(self) -> CostModel | None:
        """The judge of the board if it is registered, gives the same costs anywhere, and has the same version."""
        key = self._board.key
        settings = json.loads(key.judge_settings)
        cls = registered_class(key.judge)
        if cls is None or not cls.deterministic or cls.paths & settings.keys():
            return None
        try:
            judge = make_cost(key.judge, **settings)
        except InputError:  # e.g. hardware that no weights ship for
            return None
        return judge if judge.version == key.judge_version and judge.hardware == key.hardware else None

    def fallback_ms(self, indices: Iterable[int]) -> dict[int, float]:
        """Return what `first_fit` costs by task; a task that is not at hand, or has no such plan, is left out."""
        return self._scored(indices, first_fit)

    def base_ms(self) -> Floats:
        """Return what the plan of `BASE` costs by task of the board, NaN where that cannot be found, shape (T,).

        Where it finds no plan, it counts what `first_fit` costs, as for every solver.
        """
        judge = self._judge
        tasks = self._board.tasks
        costs: dict[int, float] = {}
        if judge is not None and BASE in solver_names():
            base = make_solver(BASE)
            costs = self._scored(tasks, lambda task: base.solve(task, judge, seed=0))
            costs |= self.fallback_ms(index for index in tasks if index not in costs)
        return np.array([costs.get(index, np.nan) for index in tasks], dtype=np.float64)

    def _scored(self, indices: Iterable[int], plan_of: Callable[[ShardingTask], ShardingPlan]) -> dict[int, float]:
        costs = {}
        for index in indices:
            task = self._board.task(index)
            if task is None or self._judge is None:
                continue
            with contextlib.suppress(NoFeasiblePlanError, InputError):  # or the judge does not know such tasks
                (cost,) = self._judge.evaluate(task, [plan_of(task)])
                if cost.feasible:
                    costs[index] = cost.total_ms
        return costs


@dataclass(frozen=True)
class FailureCosts:
    """What a failure counts.

    Attributes:
        ms: by task of the board, NaN where nothing is known, as nobody has a plan, shape (T,).
        num_fallback: tasks that some solver failed where it is the cost of the fallback plan.
        num_worst: tasks where it is `WORST_FACTOR` times the cost of the dearest plan on the board.
    """

    ms: Floats
    num_fallback: int
    num_worst: int

    @classmethod
    def of(cls, board: Board, everyone: Sequence[SolverResults], references: References) -> FailureCosts:
        """Work out the costs of the tasks that some solver failed."""
        ms = np.full(len(board.tasks), np.nan)
        failed = np.zeros(len(board.tasks), dtype=bool)
        for results in everyone:
            failed |= results.failed.any(axis=0)
        found = references.fallback_ms([board.tasks[n] for n in np.flatnonzero(failed)])
        num_worst = 0
        for n in np.flatnonzero(failed):
            known = [ms for results in everyone for ms in results.seed_ms[:, n] if np.isfinite(ms)]
            if board.tasks[n] in found:
                ms[n] = found[board.tasks[n]]
            elif known:
                ms[n] = WORST_FACTOR * max(known)
                num_worst += 1
        return cls(ms, len(found), num_worst)
