"""Board: results that may share a table, because suite, judge and hardware are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from shardgym.errors import InputError
from shardgym.evaluation.result import Key, Result
from shardgym.leaderboard.parts import BoardKey, Part, read_parts


@dataclass(frozen=True)
class Board:
    """Comparable results.

    Attributes:
        key: what they have in common.
        parts: the files that they come from, one or more.
        clash: why other files of the same key have tables of their own; None when there is one table for all.
    """

    key: BoardKey
    parts: tuple[Part, ...]
    clash: str | None = None

    @cached_property
    def results(self) -> tuple[Result, ...]:
        """At most one per task, solver and seed."""
        return tuple(result for part in self.parts for result in part.results)

    @cached_property
    def tasks(self) -> tuple[int, ...]:
        """Indices of the tasks that were asked for, ascending."""
        return tuple(sorted(set().union(*(part.tasks for part in self.parts))))

    @cached_property
    def seeds(self) -> dict[str, tuple[int, ...]]:
        """The seeds that each solver was asked for, ascending; solvers in the order of their first run."""
        found: dict[str, set[int]] = {}
        for part in self.parts:
            for solver, seeds in part.seeds.items():
                found.setdefault(solver, set()).update(seeds)
        return {solver: tuple(sorted(seeds)) for solver, seeds in found.items()}

    @property
    def solvers(self) -> tuple[str, ...]:
        """Solvers that were asked for, in the order of their first run."""
        return tuple(self.seeds)

    @property
    def place(self) -> str | None:
        """Where the records are, for a board that does not hold all of its key."""
        return None if self.clash is None else self.parts[0].place


def load_boards(paths: Sequence[str | Path], suite: str | None = None) -> list[Board]:
    """Read records and sort them into boards.

    Files of the same key share a board. Where two of them hold the same solver, task and seed, or different tasks
    under the same index, none is preferred: every file of that key has a board of its own.

    Args:
        paths: records files, or folders that are searched for `records.jsonl`.
        suite: only this one.

    Raises:
        InputError: a path holds no records, a line is damaged, or one file holds different tasks under one index.
        UnknownNameError: no record is of the suite.
    """
    by_key: dict[BoardKey, list[Part]] = {}
    for part in read_parts(paths, suite):
        by_key.setdefault(part.key, []).append(part)
    return [board for key, parts in by_key.items() for board in _boards(key, parts)]


def _boards(key: BoardKey, parts: Sequence[Part]) -> list[Board]:
    clash = _clash(parts)
    return [Board(key, tuple(parts))] if clash is None else [Board(key, (part,), clash) for part in parts]


def _clash(parts: Sequence[Part]) -> str | None:
    """Say what keeps files from sharing a table: the first thing found."""
    holders: dict[Key, Part] = {}
    firsts: dict[int, tuple[Part, str]] = {}
    found = None
    for part in parts:
        for result in part.results:
            holder = holders.setdefault(result.key, part)
            first, task_hash = firsts.setdefault(result.task_index, (part, result.task_hash))
            if task_hash != result.task_hash:
                found = found or _other_task(first, part, result)
            elif holder is not part:
                found = found or _double(holder, part, result)
    return found


def _other_task(first: Part, part: Part, result: Result) -> str:
    if first is part:
        raise InputError(f"{part.file}: task {result.task_index} of '{result.suite}' differs from that of the rest")
    return f"task {result.task_index} of {first.place} is another than that of {part.place}"


def _double(first: Part, part: Part, result: Result) -> str:
    return (
        f"{first.place} and {part.place} both hold solver '{result.solver}', task {result.task_index}, "
        f"seed {result.seed}; to share one, run one of them under a label (--solver LABEL=NAME)"
    )
