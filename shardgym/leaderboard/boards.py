"""Boards: the results of one run's folder, which share a table, and what each solver of it did."""

from __future__ import annotations

import functools
import math
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardgym.arrays import Bools, Floats
from shardgym.errors import InputError
from shardgym.evaluation.result import Result, RunInfo, read_records, record_files
from shardgym.evaluation.store import read_task
from shardgym.evaluation.verify import EXACT
from shardgym.files import read_text
from shardgym.records import parse_json
from shardgym.tasks.task import ShardingTask

#: A cost of zero has no logarithm. No step takes less than this.
LEAST_MS = 1e-9
#: Beside the records of some boards: lower bounds on the costs of all plans, by tools/plan_bounds.py.
BOUNDS = "bounds.json"


@dataclass(frozen=True)
class Board:
    """The results of one folder."""

    folder: Path  #: where they are
    run: RunInfo  #: what they have in common, by the `run.json` beside them
    results: tuple[Result, ...]  #: at most one per task, solver and seed
    bounds: dict[str, float] = field(default_factory=dict)  #: lower bounds on plans' costs in ms, by digest of the task
    place: str | None = None  #: the folder, if other boards have the same suite, judge and hardware

    @property
    def num_tasks(self) -> int:
        """How many of the suite's tasks were asked for, counted from its first."""
        return self.run.num_tasks

    @functools.cached_property
    def seeds(self) -> dict[str, tuple[int, ...]]:
        """The seeds of each solver, ascending: those that it has records of, or all where it has none."""
        seeds: dict[str, set[int]] = {solver: set() for solver in self.run.solvers}
        for result in self.results:
            seeds.setdefault(result.solver, set()).add(result.seed)
        return {solver: tuple(sorted(own or self.run.seeds)) for solver, own in seeds.items()}

    @functools.cached_property
    def bound_ms(self) -> Floats:
        """Lower bound of the plans of each task, NaN where none is known, shape (T,)."""
        bound_ms = np.full(self.num_tasks, np.nan)
        for result in self.results:
            bound_ms[result.task_index] = self.bounds.get(result.task_hash, math.nan)
        return bound_ms

    def task(self, index: int) -> ShardingTask | None:
        """Return a task that has records; None where it is not at hand, or is not the task that these are about."""
        result = next((result for result in self.results if result.task_index == index), None)
        if result is None:
            return None
        try:
            return read_task(result, self.folder)
        except InputError:
            return None


def load_boards(paths: Sequence[str | Path]) -> list[Board]:
    """Read the records of folders; each is a board of its own.

    Args:
        paths: folders of runs, or their records files; folders are searched for those of runs below them.

    Raises:
        InputError: a path holds no records, no `run.json` is beside them, something is wrong with a line (see
            `checked_lines`), or lower bounds beside them are of another judge or above a cost.
    """
    runs = {file: RunInfo.of(file) for file in record_files(paths)}
    boards = []
    for file, run in runs.items():
        results = read_records(file, run)
        if not results:
            raise InputError(f"{file} holds no records yet: expected at least one whole line")
        boards.append(Board(file.parent, run, tuple(results), _read_bounds(file.parent, run, results)))
    kinds = Counter(_kind(board) for board in boards)
    return [replace(b, place=os.path.relpath(b.folder)) if kinds[_kind(b)] > 1 else b for b in boards]


def _kind(board: Board) -> tuple[str, str, str]:
    return board.run.suite, board.run.judge, board.run.hardware


def _read_bounds(folder: Path, run: RunInfo, results: Sequence[Result]) -> dict[str, float]:
    """Return the bounds beside the records of a run, none where there are none."""
    path = folder / BOUNDS
    if not path.is_file():
        return {}
    content: dict[str, Any] = parse_json(read_text(path), str(path))
    judge = f"{content.get('judge')} {content.get('judge_version')}"
    if judge != f"{run.judge} {run.judge_version}":
        raise InputError(
            f"{path} is for {judge}, but the board for {run.judge} {run.judge_version}: "
            f"run 'python tools/plan_bounds.py {folder}' again"
        )
    bounds_ms: dict[str, float] = content["bounds_ms"]
    for result in results:
        if result.total_ms < (1 - EXACT) * bounds_ms.get(result.task_hash, 0.0):
            raise InputError(f"{path}: {result.subject} costs less: run 'python tools/plan_bounds.py {folder}' again")
    return bounds_ms


@dataclass(frozen=True)
class SolverResults:
    """One solver's results on the tasks of a board, T of them, with S seeds of its own."""

    solver: str  #: its name
    records: Sequence[Result]  #: its results
    seed_ms: Floats  #: cost by seed and task, NaN where there is no record and where it failed, shape (S, T)
    failed: Bools  #: where it failed, shape (S, T)

    @classmethod
    def of_board(cls, board: Board) -> list[SolverResults]:
        """Sort the records of a board by solver, seed and task."""
        by_solver: dict[str, list[Result]] = defaultdict(list)
        for result in board.results:
            by_solver[result.solver].append(result)
        everyone = []
        for solver, seeds in board.seeds.items():
            seed_ms = np.full((len(seeds), board.num_tasks), np.nan)
            failed = np.zeros(seed_ms.shape, dtype=bool)
            for result in by_solver[solver]:
                place = seeds.index(result.seed), result.task_index
                failed[place] = result.status != "ok"
                seed_ms[place] = np.nan if failed[place] else max(result.total_ms, LEAST_MS)
            everyone.append(cls(solver, by_solver[solver], seed_ms, failed))
        return everyone

    @property
    def is_complete(self) -> bool:
        """Whether every task has a record for every seed."""
        return len(self.records) == self.seed_ms.size

    @functools.cached_property
    def cost_ms(self) -> Floats:
        """Geometric mean over seeds, NaN unless it solved the task with every seed, shape (T,)."""
        with np.errstate(invalid="ignore"):
            means: Floats = np.exp(np.log(self.seed_ms).mean(axis=0))
        return means
