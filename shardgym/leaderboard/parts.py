"""Part: the records of one file that may share a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardgym.errors import InputError, UnknownNameError
from shardgym.evaluation.result import Result, RunInfo
from shardgym.evaluation.store import RECORDS, read_records, record_files
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
class Part:
    """Comparable results of one file.

    Attributes:
        file: where they are.
        key: what they have in common.
        results: at most one per task, solver and seed.
        info: what the run beside them promises; None when no `run.json` is there.
    """

    file: Path
    key: BoardKey
    results: tuple[Result, ...]
    info: RunInfo | None

    @property
    def place(self) -> str:
        """The folder of a run, or the file where it is none of a run; seen from here where it lies below."""
        path = self.file.parent if self.file.name == RECORDS else self.file
        shown = os.path.relpath(path)
        return str(path) if shown.startswith("..") else shown

    @property
    def tasks(self) -> set[int]:
        """Indices of the tasks that were asked for."""
        return {*range(self.info.num_tasks if self.info else 0), *(r.task_index for r in self.results)}

    @property
    def seeds(self) -> dict[str, set[int]]:
        """The seeds that each solver was asked for, solvers in the order of the run."""
        found = {solver: set(self.info.seeds) for solver in self.info.solvers} if self.info else {}
        for result in self.results:
            found.setdefault(result.solver, set()).add(result.seed)
        return found


def read_parts(paths: Sequence[str | Path], suite: str | None = None) -> list[Part]:
    """Read records, of one suite or of all; files of other suites are not looked at more closely.

    Raises:
        InputError: a path holds no records, a line is damaged, or a file holds what no single run can have made.
        UnknownNameError: no record is of the suite.
    """
    files = [_File.read(path) for path in record_files(paths)]
    suites = {name for file in files for name in file.suites}
    if not suites:
        raise InputError(f"{', '.join(map(str, paths))}: no records yet; expected at least one whole line")
    if suite is not None and suite not in suites:
        raise UnknownNameError("suite among the records", suite, suites)
    parts = [part for file in files if suite is None or suite in file.suites for part in file.parts()]
    return [part for part in parts if suite in (None, part.key.suite)]


#: Suite, judge, its settings as JSON, hardware, time limit.
_Group = tuple[str, str, str, str, float | None]


def _group(of: Result | RunInfo) -> _Group:
    return (of.suite, of.judge, canonical_json(of.judge_settings), of.hardware, of.time_limit_s)


@dataclass(frozen=True)
class _File:
    """The records of one file by what they have in common."""

    path: Path
    info: RunInfo | None
    groups: dict[_Group, list[Result]]

    @classmethod
    def read(cls, path: Path) -> _File:
        info = RunInfo.beside(path.parent) if path.name == RECORDS else None
        groups: dict[_Group, list[Result]] = {} if info is None else {_group(info): []}
        for result in read_records(path):
            groups.setdefault(_group(result), []).append(result)
        return cls(path, info, groups)

    @property
    def suites(self) -> set[str]:
        return {group[0] for group in self.groups}

    def parts(self) -> list[Part]:
        if self.info is not None and len(self.groups) > 1:
            raise InputError(f"{self.path} holds records that are not of the run in {self.path.parent / 'run.json'}")
        return [self._part(group, results) for group, results in self.groups.items()]

    def _part(self, group: _Group, results: list[Result]) -> Part:
        suite, judge, settings, hardware, time_limit_s = group
        told = {self.info.judge_version} if self.info else set()
        versions = {r.cost.version for r in results if r.cost is not None} | told
        if len(versions) > 1:
            raise InputError(
                f"{self.path} mixes versions {', '.join(sorted(versions))} of judge '{judge}': score them apart"
            )
        key = BoardKey(suite, judge, next(iter(versions), ""), settings, hardware, time_limit_s)
        return Part(self.path, key, tuple(results), self.info)
