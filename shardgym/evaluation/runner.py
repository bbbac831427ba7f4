"""evaluate: solvers on a suite, scored by a judge, one record per task, solver and seed."""

from __future__ import annotations

import itertools
import logging
import math
import numbers
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

from shardgym.arguments import check_dict, check_int, check_list, check_name, describe
from shardgym.costs.base import CostModel, judges_closed, make_cost
from shardgym.errors import InputError, UnknownNameError
from shardgym.evaluation.result import RECORDS, Result, RunInfo, TaskSequence, read_records, write_task
from shardgym.evaluation.scoring import Judge
from shardgym.evaluation.solver_process import CAN_FORK, host_solver
from shardgym.evaluation.solver_spec import SolverSpec, check_solvers
from shardgym.evaluation.solving import SolverHost
from shardgym.files import append_flushed, drop_torn_line, only_writer, write_whole
from shardgym.progress import ProgressBar
from shardgym.provenance import utc_now

ERRORS = "errors.log"

#: Seconds that a plan may take when nothing else is said: none of our solvers takes a tenth of it.
TIMEOUT_S = 3600.0

logger = logging.getLogger(__name__)


class Resume(StrEnum):
    """How a run treats results that its folder already has: `evaluate(..., resume=...)`, `--resume`."""

    #: Solve what has no record.
    MISSING = "missing"
    #: Solve what has no record and again what failed.
    FAILED = "failed"
    #: Start afresh; the old records are moved aside.
    ALL = "all"
    #: Solve nothing, report what is there.
    NONE = "none"

    @classmethod
    def _missing_(cls, value: object) -> Resume:
        raise UnknownNameError("resume mode", value, list(cls))


def evaluate(
    suite: TaskSequence,
    solvers: Sequence[str | SolverSpec],
    *,
    out: str | Path,
    judge: str | CostModel,
    oracle: str | CostModel,
    judge_settings: Mapping[str, Any] | None = None,
    oracle_settings: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (0,),
    limit: int | None = None,
    resume: Resume | str = Resume.MISSING,
    time_limit_s: float | None = None,
    timeout_s: float = TIMEOUT_S,
    isolate: bool | None = None,
    progress: bool = False,
) -> list[Result]:
    """Run solvers on a suite and keep one record per task, solver and seed.

    Every solver solves a task with the oracle, then the judge scores all plans of the task in one call, then their
    records are appended to `out/records.jsonl` and flushed. A failure is a record with a reason; tracebacks go to
    `out/errors.log`. Killed at any moment, the file is whole and the same call finishes the rest.

    From before the first solver is made until the call returns, a judge of `scores_only` answers this run alone, in the
    thread that called. So one run at a time in a process can have such a judge.

    Args:
        suite: the tasks, with the name of the suite.
        solvers: names, or `SolverSpec` for a solver with settings or a label.
        out: folder of the records; one process at a time writes to it.
        judge: scores the plans. A name, or a cost model, which the caller closes.
        oracle: what solvers may query; another object than the judge.
        judge_settings: keyword arguments for a judge given by name.
        oracle_settings: keyword arguments for an oracle given by name.
        seeds: every solver solves every task once per seed.
        limit: only the first so many tasks.
        resume: how existing records are treated, see `Resume`.
        time_limit_s: passed to solvers that take one.
        timeout_s: seconds after which a solver is stopped, whatever it does; the plan is then recorded as an error.
        isolate: whether every solver works in a process of its own (see `evaluation/solver_process.py`): what ends
            that process, or changes what is in it, concerns no other solver and no record. When False, solvers work in
            this process, e.g. below a debugger, and there is no timeout. None: where the system has fork.
        progress: draw progress bars on standard error when it is a terminal.

    Returns:
        The records of these solvers, seeds and tasks, old and new, by task, then solver, then seed.

    Raises:
        InputError: the folder holds records of something else, is damaged or in use, or a name is unknown.
        MissingDependencyError: judge, oracle or a solver need an extra that is not installed.
    """
    folder = Path(check_name("out", out)).absolute()  # a solver may change the current folder
    mode = Resume(resume)
    num_tasks = _check_suite(suite, limit)
    checked_seeds = _check_seeds(seeds)
    _check_seconds("time_limit_s", time_limit_s)
    _check_seconds("timeout_s", timeout_s)
    specs = check_solvers(solvers)
    with ExitStack() as stack:
        judging = stack.enter_context(judges_closed())
        oracle_name, oracle_cost = stack.enter_context(_open_cost("oracle", oracle, oracle_settings))
        hosts = []
        if mode is not Resume.NONE:
            # Before the judge is made: a solver's process holds no copy of it.
            hosts = stack.enter_context(_hosts(specs, oracle_cost, timeout_s, isolate))
        with judging():
            judge_name, judge_cost = stack.enter_context(_open_cost("judge", judge, judge_settings))
        _check_apart(judge_cost, oracle_cost)
        run = RunInfo(
            suite=suite.name,
            judge=judge_name,
            judge_version=judge_cost.version,
            judge_settings=judge_cost.settings(),
            hardware=judge_cost.hardware,
            oracle=oracle_name,
            oracle_settings=oracle_cost.settings(),
            time_limit_s=time_limit_s,
            num_tasks=num_tasks,
            solvers=tuple(spec.title for spec in specs),
            seeds=checked_seeds,
        )
        if mode is Resume.NONE:
            results = read_records(folder / RECORDS)
            if results:
                run.join(folder)
            _check_records(results, folder, run, suite, specs)
            return _results_of(run, results)
        stack.enter_context(only_writer(folder))
        store = _open_store(folder, run, mode, suite, specs)
        scoring = Judge(judge_cost, judging, run, store.log_error)
        _solve_missing(run, suite, hosts, scoring, store, progress)
        return _results_of(run, store.results)


def _solve_missing(
    run: RunInfo,
    suite: TaskSequence,
    solvers: Sequence[SolverHost],
    judge: Judge,
    store: Store,
    progress: bool,
) -> None:
    """Solve, score and append what the store lacks, task by task."""
    found = {result.key for result in store.results}
    missing = [
        [(solver, seed) for solver in solvers for seed in run.seeds if (index, solver.spec.title, seed) not in found]
        for index in range(run.num_tasks)
    ]
    total = sum(map(len, missing))
    with ProgressBar(shown=progress and total > 0, total=total, unit="plan", desc=suite.name) as bar:
        for index, todo in enumerate(missing):
            if not todo:
                continue
            task = suite[index]
            write_task(store.folder, suite, index, task)
            attempts = []
            for solver, seed in todo:
                bar.remark(solver.spec.title)
                attempts.append(solver.solve(task, seed, run.time_limit_s, judge.log))
            bar.remark(f"task {index}: {run.judge} scores {len(attempts)} plans")
            old = [result for result in store.results if result.task_index == index]
            new, renewed = judge.score(task, index, attempts, old)
            store.add(new, renewed)
            bar.update(len(attempts))


@contextmanager
def _hosts(
    specs: Sequence[SolverSpec], oracle: CostModel, timeout_s: float, isolate: bool | None
) -> Iterator[list[SolverHost]]:
    """Make every solver before anything is solved, so that a wrong setting costs no time, and end them afterwards.

    Raises:
        InputError: a solver cannot be made, or this system cannot isolate solvers and is asked to.
    """
    if isolate is None and not CAN_FORK:
        logger.warning("this system has no fork: what ends a solver ends the run, and nothing stops it")
    hosts = [host_solver(spec, oracle, timeout_s=timeout_s, isolate=isolate) for spec in specs]
    with ExitStack() as stack:
        for host in hosts:
            stack.callback(host.close)
            host.start()
        for host in hosts:
            host.wait_until_made()
        yield hosts


def _results_of(run: RunInfo, results: Iterable[Result]) -> list[Result]:
    """Return the results that a run was asked for, in its order."""
    by_key = {result.key: result for result in results}
    keys = itertools.product(range(run.num_tasks), run.solvers, run.seeds)
    return [by_key[key] for key in keys if key in by_key]


class Store:
    """The records file of one folder, open for appending. The caller has locked the folder (`only_writer`).

    What is done to records that are there is logged as a warning.

    Args:
        folder: where the file is.
        run: what is about to run; joined with what the folder holds.

    Attributes:
        run: what all records of the folder are about; written before the first of them.
        results: the records that it holds.

    Raises:
        InputError: the folder holds records of something else, or a damaged line.
    """

    def __init__(self, folder: Path, run: RunInfo) -> None:
        self.folder = folder
        self._path = folder / RECORDS
        self.results = read_records(self._path) if self._path.exists() else []
        torn = drop_torn_line(self._path)
        if torn is not None:
            logger.warning("%s: dropped a record that was cut off while it was written", torn.where(self._path))
        # A run that failed before its first record leaves nothing that another one could be mixed with.
        self.run = run.join(folder) if self.results else run

    def keep(self, results: Sequence[Result]) -> None:
        """Keep only `results`; when that drops any, the file as it was stays under another name."""
        dropped = len(self.results) - len(results)
        if not dropped:
            return
        aside = _unused_name(self._path)
        # A link and a rename: at no moment is there neither file.
        os.link(self._path, aside)
        self._write(results)
        logger.warning("%d failed results will be made again; the old records are in %s", dropped, aside)

    def add(self, results: Sequence[Result], renewed: Sequence[Result] = ()) -> None:
        """Append records with one write and flush them to the disk.

        Args:
            results: new records.
            renewed: records that take the place of those of the same task, solver and seed. The file is then written
                anew, as a whole.

        Raises:
            InputError: the disk took only a part, which was removed again.
        """
        if not self.results:
            self.run.write(self.folder)
        if renewed:
            by_key = {result.key: result for result in renewed}
            self._write([by_key.get(result.key, result) for result in self.results] + list(results))
        else:
            append_flushed(self._path, "".join(result.to_json() + "\n" for result in results).encode())
            self.results += results

    def log_error(self, heading: str, text: str) -> None:
        """Append a traceback to the file of errors."""
        with (self.folder / ERRORS).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"--- {utc_now()} {heading}\n{text}\n")

    def _write(self, results: Sequence[Result]) -> None:
        write_whole(self._path, "".join(result.to_json() + "\n" for result in results))
        self.results = list(results)


def _unused_name(path: Path) -> Path:
    """Return a name for an old records file that is not taken."""
    stem = f"records-{utc_now()[:19].replace(':', '')}"
    names = (path.with_name(f"{stem}{number or ''}.old") for number in itertools.count())
    return next(name for name in names if not name.exists())


def _open_store(folder: Path, run: RunInfo, mode: Resume, suite: TaskSequence, solvers: Iterable[SolverSpec]) -> Store:
    """Open the folder's records as far as this run keeps them; refuse records of something else."""
    path = folder / RECORDS
    if mode is Resume.ALL and path.exists():
        logger.warning("started afresh; the old records are in %s", path.rename(_unused_name(path)))
    store = Store(folder, run)
    _check_records(store.results, folder, run, suite, solvers)
    if store.results:
        store.run.write(folder)
    if mode is Resume.FAILED:
        store.keep([result for result in store.results if result.status == "ok"])
    found = len(_results_of(run, store.results))
    if found:
        todo = run.num_tasks * len(run.solvers) * len(run.seeds) - found
        logger.info("%d records found, %d to solve (--resume all to start afresh)", found, todo)
    return store


def _check_records(
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


@contextmanager
def _open_cost(
    role: str, given: str | CostModel, settings: Mapping[str, Any] | None
) -> Iterator[tuple[str, CostModel]]:
    """Yield name and model; a model that was made here is closed at the end."""
    checked = check_dict(f"{role}_settings", settings)
    if isinstance(given, CostModel):
        if checked:
            raise InputError(f"{role}_settings are for a cost model given by name: make the object with them instead")
        yield given.name, given
        return
    with make_cost(given, **checked) as model:
        yield given, model


def _check_apart(judge: CostModel, oracle: CostModel) -> None:
    """Refuse an oracle that may only score, and a judge that solvers could query."""
    if judge is oracle:
        raise InputError("judge and oracle are the same object: a solver must not hold the cost that scores it")
    if oracle.scores_only:
        raise InputError(f"oracle '{oracle.name}' has role 'judge', which is for scoring: expected an oracle")
    if judge.learned and (judge.name, judge.version) == (oracle.name, oracle.version):
        raise InputError(
            f"judge '{judge.name}' has the weights of the oracle, whose errors solvers use: give another judge, "
            "or role 'judge'"
        )


def _check_suite(suite: TaskSequence, limit: int | None) -> int:
    """Return how many tasks a run has; raises `InputError` for no suite, or a limit that is no number from 1 on."""
    if not isinstance(getattr(suite, "name", None), str) or not hasattr(suite, "__getitem__"):
        raise InputError(f"suite: expected tasks with a name, got {describe(suite)}; shardgym.load_suite reads a suite")
    return len(suite) if limit is None else min(check_int("limit", limit, 1), len(suite))


def _check_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """Return the seeds, each once; raises `InputError` when there is none or one is no whole number from 0 on."""
    checked = [check_int("seed", seed) for seed in check_list("seeds", seeds, "whole numbers", ordered=False)]
    if not checked:
        raise InputError("no seed was given: name at least one")
    return tuple(dict.fromkeys(checked))


def _check_seconds(name: str, seconds: float | None) -> None:
    """Refuse what is not None, nor a number of seconds above 0."""
    is_number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and math.isfinite(seconds) and seconds > 0):
        raise InputError(f"{name}: expected a number of seconds above 0, got {describe(seconds)}")
