"""Store: the records of one folder, which a run adds to, and beside them the tasks that do not come with shardgym."""

import itertools
import logging
import time
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from shardgym.errors import InputError
from shardgym.evaluation.result import RECORDS, Result, RunInfo, read_records, records_file
from shardgym.evaluation.solver_spec import SolverSpec
from shardgym.files import append_flushed, drop_torn_line, make_folder, write_whole
from shardgym.machine import utc_now
from shardgym.tasks.suites import shipped_suite
from shardgym.tasks.task import ShardingTask

ERRORS = "errors.log"
TASKS = "tasks"

logger = logging.getLogger(__name__)


class TaskSequence(Protocol):
    """What a run needs of a suite: a name, and tasks by position."""

    @property
    def name(self) -> str: ...  # noqa: D102

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> ShardingTask: ...


class Resume(StrEnum):
    """How a run treats results that its folder already has: `evaluate(..., resume=...)`, `--resume`."""

    #: Solve what has no record.
    MISSING = "missing"
    #: Start afresh; the old records are moved aside.
    ALL = "all"


class Store:
    """The records file of one folder, open for appending. The caller has locked the folder (`only_writer`).

    `run` is what is about to run, and `mode` says whether records that are there stay. A folder with records of
    something else, packed ones or a damaged line is refused.
    """

    def __init__(
        self, folder: Path, run: RunInfo, mode: Resume, suite: TaskSequence, solvers: Iterable[SolverSpec]
    ) -> None:
        self._folder = folder
        self._path = folder / RECORDS
        stored = records_file(folder)
        if stored not in (None, self._path):
            raise InputError(f"{stored} is packed: unpack it with 'xz -d {stored}', or give another folder")
        if mode is Resume.ALL and self._path.exists():
            aside = self._path.rename(self._path.with_name(f"records-{time.time_ns()}.old"))
            logger.warning("started afresh; the old records are in %s", aside)
        torn = drop_torn_line(self._path)
        if torn is not None:
            logger.warning("%s: dropped a record that was cut off while it was written", torn.where(self._path))
        self.results = read_records(self._path, RunInfo.beside(folder) or run) if self._path.exists() else []
        self.run = run  #: what all records of the folder are about: this run, and those before it
        # A run that failed before its first record leaves nothing that another one could be mixed with.
        if self.results:
            self.run = run.join(folder)
            _check_records(self.results, folder, suite, solvers)
            self.run.write(folder)
        found = len(results_of(run, self.results))
        if found:
            todo = run.num_tasks * len(run.solvers) * len(run.seeds) - found
            logger.info("%d records found, %d to solve (--resume all to start afresh)", found, todo)

    def add(self, results: Sequence[Result], renewed: Sequence[Result] = ()) -> None:
        """Append records with one write and flush them to the disk.

        Renewed records replace those of the same task, solver and seed, and the whole file is rewritten. If the disk
        takes only a part, the part is removed again, and `InputError` is raised.
        """
        if not self.results:
            self.run.write(self._folder)
        if renewed:
            by_key = {result.key: result for result in renewed}
            self.results = [by_key.get(result.key, result) for result in self.results]
            write_whole(self._path, _lines([*self.results, *results]))
        else:
            append_flushed(self._path, _lines(results))
        self.results += results

    def log_error(self, heading: str, text: str) -> None:
        """Append a traceback to the file of errors."""
        lines = f"--- {utc_now()} {heading}\n{text}\n"
        append_flushed(self._folder / ERRORS, lines.encode(errors="backslashreplace"))


def _lines(results: Iterable[Result]) -> bytes:
    return "".join(result.to_json() + "\n" for result in results).encode()


def _check_records(results: Sequence[Result], folder: Path, suite: TaskSequence, solvers: Iterable[SolverSpec]) -> None:
    """Raise `InputError` if a record in the folder has other tasks or settings than this run."""
    remedy = "give another folder, or --resume all to start afresh"
    recipes = {spec.title: spec.recipe for spec in solvers}
    for result in results:
        wanted = recipes.get(result.solver, result.recipe)
        if wanted != result.recipe:
            raise InputError(
                f"{folder} holds records of solver '{result.solver}' with settings {result.recipe}, not "
                f"{wanted}: give the solver another label, {remedy}"
            )
    for index in sorted({result.task_index for result in results}):
        task = suite[index] if index < len(suite) else None
        digest = None if task is None else task.digest
        if any(result.task_hash != digest for result in results if result.task_index == index):
            named = f"not '{task.name}'" if task else f"of {len(suite)}"
            raise InputError(
                f"{folder} holds records of suite '{suite.name}' with another task {index}, {named}: {remedy}"
            )


def results_of(run: RunInfo, results: Iterable[Result]) -> list[Result]:
    """Return the results that a run was asked for, in its order."""
    by_key = {result.key: result for result in results}
    keys = itertools.product(range(run.num_tasks), run.solvers, run.seeds)
    return [by_key[key] for key in keys if key in by_key]


def write_task(folder: Path, suite: TaskSequence, index: int) -> None:
    """Write a task next to its records unless it comes with shardgym.

    Raises:
        InputError: a suite has the name, but not the tasks, of one that comes with shardgym.
    """
    shipped = shipped_suite(suite.name)
    task = suite[index]
    if shipped is None:
        path = folder / TASKS / f"{task.digest}.json"
        if not path.exists():
            make_folder(path.parent)
            write_whole(path, task.to_json() + "\n")
    elif index >= len(shipped) or shipped[index].digest != task.digest:
        raise InputError(f"suite '{suite.name}' differs from the suite of that name in shardgym: give it another name")


def read_task(result: Result, folder: Path) -> ShardingTask:
    """Return the task that a record in `folder` is about.

    Raises:
        InputError: there is no task with the record's hash.
    """
    shipped = shipped_suite(result.suite)
    source = f"task {result.task_index} of suite '{result.suite}'"
    if shipped is None:
        path = folder / TASKS / f"{result.task_hash}.json"
        if not path.exists():
            raise InputError(f"suite '{result.suite}' does not come with shardgym and {path} is missing")
        task = ShardingTask.load(path)
        source = str(path)
    else:
        task = shipped[result.task_index]
    if task.digest != result.task_hash:
        raise InputError(f"{source} has digest {task.digest[:12]}, but the record has {result.task_hash[:12]}")
    return task
