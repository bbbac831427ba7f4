"""What each solver achieved on a board, by seed and task, and what its failures count."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardgym.arrays import Bools, Floats
from shardgym.evaluation.result import Result
from shardgym.leaderboard.boards import Board
from shardgym.leaderboard.reference import WORST_FACTOR, References

#: A cost of zero has no logarithm. No step takes less than this.
LEAST_MS = 1e-9


@dataclass(frozen=True)
class SolverResults:
    """One solver's results on the tasks of a board, T of them, with S seeds of its own.

    Attributes:
        solver: its name.
        records: its results.
        seed_ms: cost by seed and task, NaN where there is no record and where it failed, shape (S, T).
        failed: where it failed, shape (S, T).
    """

    solver: str
    records: Sequence[Result]
    seed_ms: Floats
    failed: Bools

    @classmethod
    def of_board(cls, board: Board) -> list[SolverResults]:
        """Sort the records of a board by solver, seed and task."""
        by_solver: dict[str, list[Result]] = defaultdict(list)
        for result in board.results:
            by_solver[result.solver].append(result)
        column = {task: number for number, task in enumerate(board.tasks)}
        everyone = []
        for solver, seeds in board.seeds.items():
            row = {seed: number for number, seed in enumerate(seeds)}
            seed_ms = np.full((len(seeds), len(column)), np.nan)
            failed = np.zeros(seed_ms.shape, dtype=bool)
            for result in by_solver[solver]:
                place = row[result.seed], column[result.task_index]
                failed[place] = result.status != "ok"
                seed_ms[place] = np.nan if failed[place] else max(result.total_ms, LEAST_MS)
            everyone.append(cls(solver, by_solver[solver], seed_ms, failed))
        return everyone

    @property
    def is_complete(self) -> bool:
        """Whether every task has a record for every seed that was asked for."""
        return len(self.records) == self.seed_ms.size

    @functools.cached_property
    def cost_ms(self) -> Floats:
        """Geometric mean over seeds, NaN unless it solved the task with every seed that was asked for, shape (T,)."""
        with np.errstate(invalid="ignore"):
            means: Floats = np.exp(np.log(self.seed_ms).mean(axis=0))
        return means

    @property
    def failing_ms(self) -> Floats:
        """Costs with infinity for failures and NaN where there is no record, shape (S, T)."""
        return np.where(self.failed, np.inf, self.seed_ms)

    def counted_ms(self, failure_ms: Floats) -> Floats:
        """Return costs with those of failures put in, NaN where there is no record.

        Args:
            failure_ms: what a failure counts by task, shape (T,).

        Returns:
            Shape (S, T).
        """
        return np.where(self.failed, failure_ms, self.seed_ms)


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
