"""Holding the records of a file to the `run.json` beside it, and to each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardgym.errors import InputError
from shardgym.evaluation.entrant import check_label
from shardgym.evaluation.run_info import RUN_INFO, RunInfo
from shardgym.evaluation.store import RECORDS
from shardgym.evaluation.verify.checked import Checked
from shardgym.evaluation.verify.spans import holes, text
from shardgym.evaluation.verify.stored import Stored

_Rows = list[Stored | Checked]


def hold_to_run(file: Path, rows: _Rows) -> tuple[_Rows, list[str]]:
    """Return the rows with a mismatch for every record that is not of the run, and a line per gap.

    Raises:
        InputError: `run.json` is damaged.
    """
    info = RunInfo.beside(file.parent) if file.name == RECORDS else None
    stored = [row for row in rows if isinstance(row, Stored)]
    firsts = _Firsts(stored)
    held = [_held(row, info, firsts) if isinstance(row, Stored) else row for row in rows]
    if info is None:
        return held, [f"no {RUN_INFO} of {file}: which records it should hold is not known"]
    return held, _gaps(file, info, stored)


def _held(stored: Stored, info: RunInfo | None, firsts: _Firsts) -> Stored | Checked:
    problem = (_not_of(info, stored) if info is not None else None) or firsts.problem(stored) or _bad_label(stored)
    return stored if problem is None else stored.row("mismatch", problem)


def _not_of(info: RunInfo, stored: Stored) -> str | None:
    """Return what of a record its run does not have."""
    result = stored.result
    try:
        info.check(result, "the line")
    except InputError as error:
        return f"not of the run in {RUN_INFO}: {str(error).removesuffix(': give another folder')}"
    if result.solver not in info.solvers:
        return f"{RUN_INFO} has no solver '{result.solver}', only {', '.join(info.solvers)}"
    if result.seed not in info.seeds:
        return f"{RUN_INFO} has no seed {result.seed}, only {', '.join(map(str, info.seeds))}"
    if result.task_index >= info.num_tasks:
        return f"{RUN_INFO} has {info.num_tasks} tasks, the record is about task {result.task_index}"
    return None


def _bad_label(stored: Stored) -> str | None:
    """Return why no run can have called its solver so."""
    try:
        if stored.result.made_from is not None:
            check_label(stored.result.solver, stored.result.made_from)
    except InputError as error:
        return str(error)
    return None


class _Firsts:
    """The first record of every task and of every solver: later ones must have its task and its settings."""

    def __init__(self, stored: Sequence[Stored]) -> None:
        self._hashes: dict[int, str] = {}
        self._recipes: dict[str, str] = {}
        for result in (s.result for s in stored):
            self._hashes.setdefault(result.task_index, result.task_hash)
            self._recipes.setdefault(result.solver, result.recipe)

    def problem(self, stored: Stored) -> str | None:
        """Return how a record differs from the first of its task or of its solver."""
        result = stored.result
        first = self._hashes[result.task_index]
        if result.task_hash != first:
            return f"task {result.task_hash[:12]}, the file's first record of task {result.task_index} has {first[:12]}"
        if result.recipe != self._recipes[result.solver]:
            return f"solver settings {result.recipe}, the solver's first record has {self._recipes[result.solver]}"
        return None


def _gaps(file: Path, info: RunInfo, stored: Sequence[Stored]) -> list[str]:
    """Return one line that names what the run promises and the file lacks; none when it lacks nothing."""
    there: dict[tuple[str, int], list[int]] = {}
    for result in (s.result for s in stored):
        there.setdefault((result.solver, result.seed), []).append(result.task_index)
    missing, count = [], 0
    for solver in info.solvers:
        for seed in info.seeds:
            lacking = holes(there.get((solver, seed), ()), info.num_tasks)
            count += sum(last - first + 1 for first, last in lacking)
            named = f" with seed {seed}" if len(info.seeds) > 1 else ""
            missing += [f"{solver}{named} on tasks {text(lacking)}"] if lacking else []
    records = "record" if count == 1 else "records"
    return [f"{count} {records} missing in {file}: {'; '.join(missing)}"] if missing else []
