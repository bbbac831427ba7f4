"""Boards: results that may share a table, because suite, judge, hardware and time limit are the same.

Repeated measurements, by several processors or with other ids, share one only where somebody asks for it.
"""

from __future__ import annotations

import functools
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shardgym.arrays import Bools, Floats
from shardgym.errors import InputError, UnknownNameError
from shardgym.evaluation.result import (
    PACKED_RECORDS,
    RECORDS,
    Key,
    Result,
    RunInfo,
    read_records,
    read_task,
    record_files,
)
from shardgym.evaluation.verify import same_times
from shardgym.records import canonical_json
from shardgym.tasks.task import ShardingTask

#: A cost of zero has no logarithm. No step takes less than this.
LEAST_MS = 1e-9


@dataclass(frozen=True)
class BoardKey:
    """What the results of one table have in common; `judge_settings` as canonical JSON."""

    suite: str
    judge: str
    judge_version: str
    judge_settings: str
    hardware: str
    time_limit_s: float | None


@dataclass(frozen=True)
class ResultFile:
    """Comparable results of one file.

    Attributes:
        file: where they are.
        key: what they have in common.
        results: at most one per task, solver and seed.
        info: what the run beside them promises; None when no `run.json` is there.
        first_task: what a board of several measurements adds to the indices of its tasks, see `joined`.
    """

    file: Path
    key: BoardKey
    results: tuple[Result, ...]
    info: RunInfo | None
    first_task: int = 0

    @property
    def place(self) -> str:
        """The folder of a run, or the file where it is none of a run; relative to here where it lies below."""
        path = self.file.parent if self.file.name in (RECORDS, PACKED_RECORDS) else self.file
        relative = os.path.relpath(path)
        return str(path) if relative.startswith("..") else relative


@dataclass(frozen=True)
class Board:
    """Comparable results.

    Attributes:
        key: what they have in common.
        files: where they come from, one or more.
        clash: why other files of the same key have tables of their own; None when there is one table for all.
        repeats: one line per file with records that an earlier one holds as well.
    """

    key: BoardKey
    files: tuple[ResultFile, ...]
    clash: str | None = None
    repeats: tuple[str, ...] = ()

    @functools.cached_property
    def results(self) -> tuple[Result, ...]:
        """At most one per task, solver and seed."""
        return tuple(
            replace(result, task_index=file.first_task + result.task_index) if file.first_task else result
            for file in self.files
            for result in file.results
        )

    @functools.cached_property
    def tasks(self) -> tuple[int, ...]:
        """Indices of the tasks that were asked for, ascending."""
        tasks = {result.task_index for result in self.results}
        for file in self.files:
            if file.info is not None:
                tasks.update(range(file.first_task, file.first_task + file.info.num_tasks))
        return tuple(sorted(tasks))

    @functools.cached_property
    def seeds(self) -> dict[str, tuple[int, ...]]:
        """The seeds that each solver was asked for, ascending; solvers in the order of their first run."""
        seeds: dict[str, set[int]] = {}
        for file in self.files:
            if file.info is not None:
                for solver in file.info.solvers:
                    seeds.setdefault(solver, set()).update(file.info.seeds)
            for result in file.results:
                seeds.setdefault(result.solver, set()).add(result.seed)
        return {solver: tuple(sorted(own)) for solver, own in seeds.items()}

    @property
    def solvers(self) -> tuple[str, ...]:
        """Solvers that were asked for, in the order of their first run."""
        return tuple(self.seeds)

    @functools.cached_property
    def _holders(self) -> dict[int, tuple[Result, Path]]:
        return {
            file.first_task + result.task_index: (result, file.file.parent)
            for file in self.files
            for result in file.results
        }

    def task(self, index: int) -> ShardingTask | None:
        """Return a task that has records; None where it is not at hand, or is not the task that these are about."""
        if index not in self._holders:
            return None
        try:
            return read_task(*self._holders[index])
        except InputError:
            return None

    def _first_task(self, task: int) -> int:
        """Return `first_task` of the measurement that a task is of."""
        return max((file.first_task for file in self.files if file.first_task <= task), default=0)

    def suite_index(self, task: int) -> int:
        """Return the index in the suite of a task of the board: the same, unless boards were joined."""
        return task - self._first_task(task)

    @functools.cached_property
    def measurements(self) -> dict[str, tuple[int, ...]]:
        """The indices of the tasks of each measurement, by its hardware and the seed of its ids; one unless joined."""
        keys = {file.first_task: file.key for file in self.files}
        seeds = {first: json.loads(key.judge_settings).get("seed", 0) for first, key in keys.items()}
        found = {}
        for first, key in keys.items():
            ids = f" with ids of seed {seeds[first]}" if len(set(seeds.values())) > 1 else ""
            found[key.hardware + ids] = tuple(task for task in self.tasks if self._first_task(task) == first)
        return found

    @functools.cached_property
    def same_tasks(self) -> list[list[int]]:
        """For every task of the suite, the places of its measurements in `tasks`: one each unless joined."""
        places: dict[int, list[int]] = {}
        for place, task in enumerate(self.tasks):
            places.setdefault(self.suite_index(task), []).append(place)
        return list(places.values())

    @property
    def place(self) -> str | None:
        """Where the records are, for a board that does not hold all of its key."""
        return None if self.clash is None else self.files[0].place


def load_boards(paths: Sequence[str | Path], suite: str | None = None, *, join: bool = False) -> list[Board]:
    """Read records and sort them into boards.

    Files of the same key share a board. A solver, task and seed that two runs of as many tasks hold with the same plan
    and cost counts once, with the solving time of the first file. Where plans or costs differ, or tasks of the same
    index do, none is preferred: every file of that key has a board of its own.

    Args:
        paths: records files, or folders that are searched for them.
        suite: only this one; files of other suites are not looked at more closely.
        join: repeated measurements, see `joined`.

    Raises:
        InputError: a path holds no records, a line is damaged, or a file holds what no single run can have made.
        UnknownNameError: no record is of the suite.
    """
    read = [_read_file(path) for path in record_files(paths)]
    suites = {file.key.suite for files in read for file in files}
    if not suites:
        raise InputError(f"{', '.join(map(str, paths))}: no records yet; expected at least one whole line")
    if suite is not None and suite not in suites:
        raise UnknownNameError("suite among the records", suite, suites)
    by_key: dict[BoardKey, list[ResultFile]] = {}
    for files in read:
        if suite is None or any(file.key.suite == suite for file in files):
            for file in _check_one_run(files):
                if suite in (None, file.key.suite):
                    by_key.setdefault(file.key, []).append(file)
    boards = []
    for key, files in by_key.items():
        clash = _clash(files)
        boards += [_shared(key, files)] if clash is None else [Board(key, (file,), clash) for file in files]
    return joined(boards) if join else boards


def joined(boards: Sequence[Board]) -> list[Board]:
    """Join boards of one kind that were measured on several processors, or with other ids.

    Every measurement of a task is a task of the joined board, so plans are only compared with plans that were measured
    beside them. In a ranking a task counts once, as the mean over its measurements. Boards whose files contradict each
    other are left as they are.
    """
    kinds: dict[tuple[BoardKey, int | None], list[Board]] = {}
    for n, board in enumerate(boards):
        settings = json.loads(board.key.judge_settings)
        settings.pop("seed", None)
        kind = replace(board.key, hardware="", judge_settings=canonical_json(settings))
        kinds.setdefault((kind, None if board.clash is None else n), []).append(board)
    found = []
    for (kind, _), group in kinds.items():
        first_task = 0
        files: list[ResultFile] = []
        for board in group:
            files += [replace(file, first_task=first_task) for file in board.files]
            first_task += board.tasks[-1] + 1 if board.tasks else 0
        key = replace(group[0].key, hardware=" and ".join(dict.fromkeys(board.key.hardware for board in group)))
        if any(board.key.judge_settings != key.judge_settings for board in group):
            key = replace(key, judge_settings=kind.judge_settings)
        found.append(Board(key, tuple(files), group[0].clash, tuple(line for board in group for line in board.repeats)))
    return found


def _read_file(path: Path) -> list[ResultFile]:
    """Read a records file and the `run.json` beside it: by what its results have in common, without judge versions."""
    info = RunInfo.of(path)
    groups: dict[BoardKey, list[Result]] = {}
    if info is not None:
        groups[_key_of(info)] = []
    for result in read_records(path):
        groups.setdefault(_key_of(result), []).append(result)
    return [ResultFile(path, key, tuple(results), info) for key, results in groups.items()]


def _key_of(record: Result | RunInfo) -> BoardKey:
    settings = canonical_json(record.judge_settings)
    return BoardKey(record.suite, record.judge, "", settings, record.hardware, record.time_limit_s)


def _check_one_run(files: Sequence[ResultFile]) -> list[ResultFile]:
    """Return the groups of one records file with the version of their judge; raises `InputError` for several."""
    checked = []
    for file in files:
        versions = {r.cost.version for r in file.results if r.cost is not None}
        if file.info is not None:
            versions.add(file.info.judge_version)
            if len(files) > 1:
                run_json = file.file.parent / "run.json"
                raise InputError(f"{file.file} holds records that are not of the run in {run_json}")
        if len(versions) > 1:
            mixed = f"{file.file} mixes versions {', '.join(sorted(versions))} of judge '{file.key.judge}'"
            raise InputError(f"{mixed}: score them apart")
        checked.append(replace(file, key=replace(file.key, judge_version=next(iter(versions), ""))))
    return checked


def _clash(files: Sequence[ResultFile]) -> str | None:
    """Say what keeps files from sharing a table: the first thing found."""
    holders: dict[Key, tuple[ResultFile, Result]] = {}
    first_tasks: dict[int, tuple[ResultFile, str]] = {}
    clashes = []
    for file in files:
        for result in file.results:
            index = result.task_index
            holder, held = holders.setdefault(result.key, (file, result))
            first, task_hash = first_tasks.setdefault(index, (file, result.task_hash))
            if task_hash != result.task_hash:
                if first is file:
                    raise InputError(f"{file.file}: task {index} of '{result.suite}' differs from that of the rest")
                clashes.append(f"task {index} of {first.place} is another than that of {file.place}")
            elif holder is not file and not (_same_extent(holder, file) and _same_outcome(held, result)):
                how = "and not the same" if _same_extent(holder, file) else "in runs of different numbers of tasks"
                clashes.append(
                    f"{holder.place} and {file.place} both hold solver '{result.solver}', task {index}, "
                    f"seed {result.seed}, {how}; to share one, run one of them under a label (--solver LABEL=NAME)"
                )
    return clashes[0] if clashes else None


def _same_extent(one: ResultFile, other: ResultFile) -> bool:
    """Say whether two runs were asked for the same tasks: in one table, all solvers of the shorter would lack some."""
    return one.info is None or other.info is None or one.info.num_tasks == other.info.num_tasks


def _same_outcome(one: Result, other: Result) -> bool:
    """Say whether two records of one solver, task and seed differ in nothing but who ran it, when and how fast.

    So do those of a deterministic judge, wherever they were made. Measured costs are never the same twice.
    """
    outcomes = [
        (r.status, r.recipe, r.oracle, r.weights_digest, r.plan and r.plan.digest, r.cost and r.cost.per_device.shape)
        for r in (one, other)
    ]
    if outcomes[0] != outcomes[1]:
        return False
    return one.cost is None or other.cost is None or same_times(one.cost, other.cost)


def _shared(key: BoardKey, files: Sequence[ResultFile]) -> Board:
    """Return the board of files without a clash: what several of them hold is kept in the first."""
    holders: dict[Key, ResultFile] = {}
    kept: list[ResultFile] = []
    repeats = []
    for file in files:
        own = [result for result in file.results if holders.setdefault(result.key, file) is file]
        others = [result for result in file.results if holders[result.key] is not file]
        if others:
            solvers = ", ".join(dict.fromkeys(result.solver for result in others))
            places = " and ".join(dict.fromkeys(holders[result.key].place for result in others))
            repeats.append(
                f"{solvers}: {len(others)} records of {file.place} are those of {places} again, with the same plans "
                "and costs; solving times are of the latter."
            )
        kept.append(replace(file, results=tuple(own)))
    return Board(key, tuple(kept), repeats=tuple(repeats))


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
