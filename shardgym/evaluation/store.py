"""Store: the records of one folder, which a run adds to, and what a run may do to records that are there."""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from shardgym.errors import InputError, UnknownNameError
from shardgym.evaluation.result import RECORDS, RUN_INFO, Result, RunInfo, TaskSequence, read_records, unpacked_records
from shardgym.evaluation.running_solver import RunningSolver
from shardgym.evaluation.solver_spec import SolverSpec
from shardgym.files import append_flushed, drop_torn_line, make_folder, only_writer, write_whole
from shardgym.machine import utc_now

ERRORS = "errors.log"

logger = logging.getLogger(__name__)


class Resume(StrEnum):
    """How a run treats results that its folder already has: `evaluate(..., resume=...)`, `--resume`."""

    #: Solve what has no record.
    MISSING = "missing"
    #: Solve what has no record and again what failed.
    FAILED = "failed"
    #: Solve what has no record and again what solvers made whose source has changed since.
    CHANGED = "changed"
    #: Start afresh; the old records are moved aside.
    ALL = "all"
    #: Solve nothing, report what is there.
    NONE = "none"

    @classmethod
    def _missing_(cls, value: object) -> Resume:
        raise UnknownNameError("resume mode", value, list(cls))


class Store:
    """The records file of one folder, open for appending. The caller has locked the folder (`only_writer`).

    What is done to records that are there is logged as a warning. The records in memory are the ones that count: a file
    that somebody removes or changes during the run is written anew.

    Args:
        folder: where the file is.
        run: what is about to run; joined with what the folder holds.

    Attributes:
        run: what all records of the folder are about; written before the first of them.
        results: the records that it holds.

    Raises:
        InputError: the folder holds records of something else, packed ones, or a damaged line.
    """

    def __init__(self, folder: Path, run: RunInfo) -> None:
        self.folder = folder
        self._path = unpacked_records(folder)
        self.results = read_records(self._path) if self._path.exists() else []
        torn = drop_torn_line(self._path)
        if torn is not None:
            logger.warning("%s: dropped a record that was cut off while it was written", torn.where(self._path))
        self._state = self._state_now()
        # A run that failed before its first record leaves nothing that another one could be mixed with.
        self.run = run.join(folder) if self.results else run

    def keep(self, results: Sequence[Result]) -> None:
        """Keep only `results`; when that drops any, the file as it was stays under another name."""
        dropped = len(self.results) - len(results)
        if not dropped:
            return
        self.mend()
        aside = unused_name(self._path)
        # A link and a rename: at no moment is there neither file.
        os.link(self._path, aside)
        self._write(results)
        logger.warning("%d records were taken out; the file as it was is %s", dropped, aside)

    def add(self, results: Sequence[Result], renewed: Sequence[Result] = ()) -> None:
        """Append records with one write and flush them to the disk.

        Args:
            results: new records.
            renewed: records that take the place of those of the same task, solver and seed. The file is then written
                anew, as a whole.

        Raises:
            InputError: the disk took only a part, which was removed again.
        """
        self.mend()
        if not self.results:
            self.write_run()
        if renewed:
            by_key = {result.key: result for result in renewed}
            self._write([by_key.get(result.key, result) for result in self.results] + list(results))
        else:
            try:
                append_flushed(self._path, _lines(results))
            finally:
                self._state = self._state_now()
            self.results += results

    def write_run(self) -> None:
        """Write what the records are about."""
        self.run.write(self.folder)
        self._state = self._state_now()

    def mend(self) -> None:
        """Write the files anew if they are not as this store left them; records of others are moved aside.

        Raises:
            InputError: the folder takes no files any more; the error says where the records are.
        """
        if self._state_now() == self._state:
            return
        try:
            make_folder(self.folder)
            aside = ""
            if os.path.lexists(self._path):
                aside = f"; the file as it was found is {self._path.rename(unused_name(self._path))}"
            self.run.write(self.folder)
            self._write(self.results)
        except (InputError, OSError) as error:
            saved = Path(tempfile.mkdtemp(prefix="shardgym-records-"), RECORDS)
            write_whole(saved, _lines(self.results))
            self._state = self._state_now()  # once is enough
            raise InputError(f"{self._path} was changed during the run, the records are in {saved}: {error}") from None
        logger.warning(
            "somebody changed or removed files of %s: its %d records are written anew%s",
            self.folder, len(self.results), aside,
        )  # fmt: skip

    def log_error(self, heading: str, text: str) -> None:
        """Append a traceback to the file of errors."""
        lines = f"--- {utc_now()} {heading}\n{text}\n"
        try:
            make_folder(self.folder)
            append_flushed(self.folder / ERRORS, lines.encode(errors="backslashreplace"))
        except InputError as error:
            logger.warning("a traceback is lost: %s", error)

    def _write(self, results: Sequence[Result]) -> None:
        write_whole(self._path, _lines(results))
        self.results = list(results)
        self._state = self._state_now()

    def _state_now(self) -> list[tuple[int, int, int] | None]:
        """Return what changes with the files; None for one that there is not."""
        found: list[tuple[int, int, int] | None] = []
        for name in (RECORDS, RUN_INFO):
            try:
                state = (self.folder / name).lstat()
            except OSError:
                found.append(None)
            else:
                found.append((state.st_ino, state.st_size, state.st_mtime_ns))
        return found


def _lines(results: Iterable[Result]) -> bytes:
    return "".join(result.to_json() + "\n" for result in results).encode()


def unused_name(path: Path) -> Path:
    """Return a name for an old records file that is not taken."""
    stem = f"records-{utc_now()[:19].replace(':', '')}"
    names = (path.with_name(f"{stem}{number or ''}.old") for number in itertools.count())
    return next(name for name in names if not name.exists())


def open_store(
    folder: Path,
    run: RunInfo,
    mode: Resume,
    suite: TaskSequence,
    running: Sequence[RunningSolver],
    *,
    extend: bool = False,
) -> Store:
    """Open the folder's records as far as this run keeps them.

    Raises:
        InputError: they are of something else, or solvers would lose their ranks and `extend` does not allow it.
    """
    path = unpacked_records(folder)
    if mode is Resume.ALL and path.exists():
        logger.warning("started afresh; the old records are in %s", path.rename(unused_name(path)))
    store = Store(folder, run)
    check_records(store.results, folder, run, suite, [solver.spec for solver in running])
    if not extend:
        _check_ranks(store, run)
    if store.results:
        store.write_run()
    sources = {solver.spec.title: solver.facts.get("source_digest") for solver in running}
    changed = [r for r in store.results if r.source_digest and sources.get(r.solver) not in (None, "", r.source_digest)]
    if mode is Resume.FAILED:
        store.keep([result for result in store.results if result.status == "ok"])
    elif mode is Resume.CHANGED:
        store.keep([result for result in store.results if result not in changed])
    elif changed:
        names = ", ".join(sorted({result.solver for result in changed}))
        logger.warning(
            "the source of %s has changed since %d records were made: they stay as they are "
            "(--resume changed makes them again)", names, len(changed),
        )  # fmt: skip
    found = len(results_of(run, store.results))
    if found:
        todo = run.num_tasks * len(run.solvers) * len(run.seeds) - found
        logger.info("%d records found, %d to solve (--resume all to start afresh)", found, todo)
    return store


def _check_ranks(store: Store, run: RunInfo) -> None:
    """Refuse a run after which a solver that has all its records lacks some: it would have no rank any more."""
    before = RunInfo.beside(store.folder) if store.results else None
    if before is None:
        return
    there = {result.key for result in store.results}
    after = there | set(itertools.product(range(run.num_tasks), run.solvers, run.seeds))
    losing = [
        solver
        for solver in before.solvers
        if all((i, solver, s) in there for i in range(before.num_tasks) for s in before.seeds)
        and not all((i, solver, s) in after for i in range(store.run.num_tasks) for s in store.run.seeds)
    ]
    if not losing:
        return
    new = [f"seed {seed}" for seed in sorted(set(store.run.seeds) - set(before.seeds))]
    if store.run.num_tasks > before.num_tasks:
        new.append(f"tasks {before.num_tasks}-{store.run.num_tasks - 1}")
    named = ", ".join(losing[:3]) + (f" and {len(losing) - 3} more" if len(losing) > 3 else "")
    raise InputError(
        f"{store.folder} ranks {named}, which would lack {' and '.join(new)} and lose their rank: run them with that "
        "too, give another folder, or allow it with --extend (evaluation.drop_records takes a seed or tasks out again)"
    )


def check_records(
    results: Sequence[Result], folder: Path, run: RunInfo, suite: TaskSequence, solvers: Iterable[SolverSpec]
) -> None:
    """Check every record of a folder, also those that this run does not ask for.

    Raises:
        InputError: a record is of another judge, oracle, time limit, task, or of a solver with other settings.
    """
    remedy = "give another folder, or --resume all to start afresh"
    recipes = {spec.title: spec.recipe for spec in solvers}
    for result in results:
        run.check(result, str(folder))
        wanted = recipes.get(result.solver, result.recipe)
        if wanted != result.recipe:
            raise InputError(
                f"{folder} holds records of solver '{result.solver}' with settings {result.recipe}, this run has "
                f"{wanted}: give this one a label of its own, {remedy}"
            )
    for index in sorted({result.task_index for result in results}):
        digest = suite[index].digest if index < len(suite) else None
        if any(result.task_hash != digest for result in results if result.task_index == index):
            raise InputError(f"{folder} holds records of another task {index} of suite '{suite.name}': {remedy}")


def results_of(run: RunInfo, results: Iterable[Result]) -> list[Result]:
    """Return the results that a run was asked for, in its order."""
    by_key = {result.key: result for result in results}
    keys = itertools.product(range(run.num_tasks), run.solvers, run.seeds)
    return [by_key[key] for key in keys if key in by_key]


def drop_records(
    folder: Path, *, solvers: Sequence[str] = (), seeds: Sequence[int] = (), limit: int | None = None
) -> int:
    """Take solvers, seeds, or all tasks after the first `limit` out of a folder, as if they had never run there.

    The records file as it was stays beside the new one, under another name.

    Args:
        folder: of a run.
        solvers: names or labels, as in the records.
        seeds: seeds.
        limit: number of tasks that stay.

    Returns:
        How many records were taken out.

    Raises:
        InputError: the folder has no such solver, seed or tasks, nothing would be left, or it is in use.
    """
    run = RunInfo.beside(folder)
    if run is None or not unpacked_records(folder).exists():
        raise InputError(f"{folder} is no folder of a run: expected {RECORDS} and run.json")
    for kind, asked, known in (("solver", solvers, run.solvers), ("seed", seeds, run.seeds)):
        for value in asked:
            if value not in known:
                raise UnknownNameError(f"{kind} of {folder}", value, map(str, known))
    if limit is not None and not 1 <= limit < run.num_tasks:
        raise InputError(f"limit {limit}: expected fewer than the {run.num_tasks} tasks of {folder}, and at least 1")
    smaller = replace(
        run,
        num_tasks=limit or run.num_tasks,
        solvers=tuple(solver for solver in run.solvers if solver not in solvers),
        seeds=tuple(seed for seed in run.seeds if seed not in seeds),
    )
    if smaller == run:
        raise InputError("nothing to drop: name a solver, a seed or a limit")
    with only_writer(folder):
        store = Store(folder, run)
        kept = [
            r for r in store.results
            if r.solver in smaller.solvers and r.seed in smaller.seeds and r.task_index < smaller.num_tasks
        ]  # fmt: skip
        if not kept:
            raise InputError(f"nothing would be left in {folder}: remove the folder instead")
        dropped = len(store.results) - len(kept)
        store.keep(kept)
        smaller.write(folder)
    return dropped
