"""Results as arrays: what every solver made of every task."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from shardgym.arrays import Bools, Floats
from shardgym.evaluation.result import Result
from shardgym.leaderboard.board import Board


@dataclass(frozen=True)
class Outcome:
    """One solver's results on the tasks of a board, T of them.

    Attributes:
        solver: its name.
        recorded: whether there is a record, shape (T,).
        solved: whether all records of the task are ok, shape (T,).
        cost_ms: mean over seeds, NaN where not solved, shape (T,).
        num_records: how many there are.
        num_asked: how many records were asked for, one per task and seed.
        median_s: median time per plan; NaN without records.
        failures: number of records per status other than "ok".
    """

    solver: str
    recorded: Bools
    solved: Bools
    cost_ms: Floats
    num_records: int
    num_asked: int
    median_s: float
    failures: Counter[str]

    @property
    def complete(self) -> bool:
        """Whether every task has a record for every seed that was asked for."""
        return self.num_records == self.num_asked

    @property
    def completeness(self) -> float:
        """Share of the records asked for that there are; NaN when none was."""
        return self.num_records / self.num_asked if self.num_asked else float("nan")

    @property
    def num_solved(self) -> int:
        """Tasks solved."""
        return int(self.solved.sum())


def outcomes(board: Board) -> list[Outcome]:
    """Return one outcome per solver of a board, in its order."""
    by_solver: dict[str, list[Result]] = defaultdict(list)
    for result in board.results:
        by_solver[result.solver].append(result)
    return [_outcome(solver, by_solver[solver], board.tasks, len(seeds)) for solver, seeds in board.seeds.items()]


def _outcome(solver: str, results: list[Result], tasks: tuple[int, ...], num_seeds: int) -> Outcome:
    by_task: dict[int, list[Result]] = defaultdict(list)
    for result in results:
        by_task[result.task_index].append(result)
    solved = np.array([bool(by_task[t]) and all(r.status == "ok" for r in by_task[t]) for t in tasks], dtype=bool)
    costs = [np.mean([r.total_ms for r in by_task[t]]) if ok else np.nan for t, ok in zip(tasks, solved, strict=True)]
    return Outcome(
        solver=solver,
        recorded=np.array([bool(by_task[t]) for t in tasks], dtype=bool),
        solved=solved,
        cost_ms=np.array(costs, dtype=np.float64),
        num_records=len(results),
        num_asked=len(tasks) * num_seeds,
        median_s=statistics.median(r.solve_time_s for r in results) if results else float("nan"),
        failures=Counter(r.status for r in results if r.status != "ok"),
    )
