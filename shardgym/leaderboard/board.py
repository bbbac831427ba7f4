"""Board: results that may share a table, because suite, judge and hardware are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardgym.errors import InputError
from shardgym.evaluation.result import Result
from shardgym.evaluation.resume import Key, key_of
from shardgym.evaluation.run_info import RunInfo
from shardgym.evaluation.store import RECORDS, read_results, record_files
from shardgym.records import canonical_json


@dataclass(frozen=True)
class BoardKey:
    """What the results of one table have in common."""

    suite: str
    judge: str
    judge_version: str
    judge_settings: str
    hardware: str
    time_limit_s: float | None


@dataclass(frozen=True)
class Board:
    """Comparable results.

    Attributes:
        key: what they have in common.
        results: at most one per task, solver and seed.
        tasks: indices of the tasks that were asked for, ascending.
        solvers: solvers that were asked for, in the order of their first run.
    """

    key: BoardKey
    results: tuple[Result, ...]
    tasks: tuple[int, ...]
    solvers: tuple[str, ...]


def load_boards(paths: Sequence[str | Path]) -> list[Board]:
    """Read records and sort them into boards.

    Args:
        paths: records files, or folders that are searched for `records.jsonl`.

    Raises:
        InputError: a path holds no records, a line is damaged, or two files hold the same solver, task and seed.
    """
    parts = [part for file in record_files(paths) for part in _parts(file)]
    keys = dict.fromkeys(part.key for _, part in parts)
    if not keys:
        raise InputError(f"{', '.join(map(str, paths))}: no records yet; expected at least one whole line")
    return [_joined([(file, part) for file, part in parts if part.key == key]) for key in keys]


def _parts(file: Path) -> list[tuple[Path, Board]]:
    """Split the records of one file into boards."""
    results = read_results(file)
    info = RunInfo.beside(file.parent) if file.name == RECORDS else None
    groups: dict[_Group, list[Result]] = {} if info is None else {_group(info): []}
    for result in results:
        groups.setdefault(_group(result), []).append(result)
    if info is not None and len(groups) > 1:
        raise InputError(f"{file} holds records that are not of the run in {file.parent / 'run.json'}")
    return [(file, _part(file, group, members, info)) for group, members in groups.items()]


#: Suite, judge, its settings as JSON, hardware, time limit.
_Group = tuple[str, str, str, str, float | None]


def _group(of: Result | RunInfo) -> _Group:
    return (of.suite, of.judge, canonical_json(of.judge_settings), of.hardware, of.time_limit_s)


def _part(file: Path, group: _Group, results: list[Result], info: RunInfo | None) -> Board:
    suite, judge, settings, hardware, time_limit_s = group
    versions = {r.cost.version for r in results if r.cost is not None} | ({info.judge_version} if info else set())
    if len(versions) > 1:
        raise InputError(f"{file} mixes versions {', '.join(sorted(versions))} of judge '{judge}': score them apart")
    asked = set(range(info.num_tasks)) if info else set()
    solvers = dict.fromkeys([*(info.solvers if info else ()), *(r.solver for r in results)])
    key = BoardKey(suite, judge, next(iter(versions), ""), settings, hardware, time_limit_s)
    return Board(key, tuple(results), tuple(sorted(asked | {r.task_index for r in results})), tuple(solvers))


def _joined(parts: Sequence[tuple[Path, Board]]) -> Board:
    """Join boards of several files; a task, solver and seed may be in one of them only."""
    home: dict[Key, Path] = {}
    hashes: dict[int, str] = {}
    for file, part in parts:
        for result in part.results:
            _check_once(home.setdefault(key_of(result), file), file, result)
            if hashes.setdefault(result.task_index, result.task_hash) != result.task_hash:
                raise InputError(f"{file}: task {result.task_index} of '{result.suite}' differs from that of the rest")
    boards = [part for _, part in parts]
    return Board(
        key=boards[0].key,
        results=tuple(result for board in boards for result in board.results),
        tasks=tuple(sorted({task for board in boards for task in board.tasks})),
        solvers=tuple(dict.fromkeys(solver for board in boards for solver in board.solvers)),
    )


def _check_once(first: Path, file: Path, result: Result) -> None:
    if first != file:
        raise InputError(
            f"solver '{result.solver}', task {result.task_index}, seed {result.seed} is both in {first} and in {file}: "
            "give only one of them, or run one under a label (--solver LABEL=NAME)"
        )
