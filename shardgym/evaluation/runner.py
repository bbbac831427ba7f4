"""evaluate: solvers on a suite, scored by a judge, one record per task, solver and seed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.judge_guard import judges_closed
from shardgym.errors import InputError
from shardgym.evaluation.asked import check_time_limit, folder_of, seeds_of, settings_of, task_count
from shardgym.evaluation.belonging import check_records
from shardgym.evaluation.entrant import Entrant, SolverSpec, make_entrants
from shardgym.evaluation.missing import missing_in
from shardgym.evaluation.result import Result
from shardgym.evaluation.resume import Resume, key_of
from shardgym.evaluation.run_info import RunInfo
from shardgym.evaluation.store import RECORDS, Store, read_records, set_aside
from shardgym.evaluation.tasks import Tasks
from shardgym.evaluation.work import Work
from shardgym.files import only_writer

logger = logging.getLogger(__name__)


def evaluate(
    suite: Tasks,
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
        resume: what to do about records that are there, see `Resume`.
        time_limit_s: passed to solvers that take one.
        progress: draw progress bars on standard error when it is a terminal.

    Returns:
        The records of these solvers, seeds and tasks, old and new, by task, then solver, then seed.

    Raises:
        InputError: the folder holds records of something else, is damaged or in use, or a name is unknown.
        MissingDependencyError: judge, oracle or a solver need an extra that is not installed.
    """
    folder, mode, count, wanted_seeds = folder_of(out), Resume.of(resume), task_count(suite, limit), seeds_of(seeds)
    check_time_limit(time_limit_s)
    with ExitStack() as stack:
        judging = stack.enter_context(judges_closed())
        entrants = make_entrants(solvers)
        with judging():
            judge_name, judge_cost = stack.enter_context(_cost("judge", judge, judge_settings))
        oracle_name, oracle_cost = stack.enter_context(_cost("oracle", oracle, oracle_settings))
        _check_apart(judge_cost, oracle_cost)
        info = RunInfo(
            suite=suite.name, judge=judge_name, judge_version=judge_cost.version,
            judge_settings=judge_cost.settings(), hardware=judge_cost.hardware,
            oracle=oracle_name, oracle_settings=oracle_cost.settings(), time_limit_s=time_limit_s,
            num_tasks=count, solvers=tuple(e.spec.title for e in entrants), seeds=wanted_seeds,
        )  # fmt: skip
        if mode is Resume.NONE:
            results = read_records(folder / RECORDS)
            if results:
                info.join(folder)
            check_records(results, folder, info, suite, entrants)
            return _asked(results, info, entrants)
        stack.enter_context(only_writer(folder))
        store, joined = _open(folder, info, mode, lambda old: check_records(old, folder, info, suite, entrants))
        _say_what_is_there(store, info, entrants)
        Work(suite, entrants, info, joined, judge_cost, judging, oracle_cost, store).run(progress)
        return _asked(store.results, info, entrants)


@contextmanager
def _cost(role: str, given: str | CostModel, settings: Mapping[str, Any] | None) -> Iterator[tuple[str, CostModel]]:
    """Yield name and model; a model that was made here is closed at the end."""
    wanted = settings_of(f"{role}_settings", settings, isinstance(given, CostModel))
    if isinstance(given, CostModel):
        yield given.name, given
        return
    with make_cost(given, **wanted) as model:
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


def _open(
    folder: Path, info: RunInfo, mode: Resume, check: Callable[[Sequence[Result]], None]
) -> tuple[Store, RunInfo]:
    """Open the folder's records as far as this run keeps them; refuse records of something else.

    Returns:
        The records, and what they are about together with this run.
    """
    if mode is Resume.ALL:
        aside = set_aside(folder)
        if aside is not None:
            logger.warning("started afresh; the old records are in %s", aside)
    store = Store(folder)
    # A run that failed before its first record leaves nothing that another one could be mixed with.
    joined = info.join(folder) if store.results else info
    check(store.results)
    if store.results:
        joined.write(folder)
    if mode is Resume.FAILED:
        store.keep([result for result in store.results if result.status == "ok"])
    for notice in store.notices:
        logger.warning(notice)
    return store, joined


def _say_what_is_there(store: Store, info: RunInfo, entrants: Sequence[Entrant]) -> None:
    found, todo = len(_asked(store.results, info, entrants)), sum(map(len, missing_in(store.results, info, entrants)))
    if found:
        logger.info("%d records found, %d to solve (--resume all to start afresh)", found, todo)


def _asked(results: Sequence[Result], info: RunInfo, entrants: Sequence[Entrant]) -> list[Result]:
    """Return the records that a run was asked for, in its order."""
    by_key = {key_of(result): result for result in results}
    names = [entrant.spec.title for entrant in entrants]
    keys = [(index, name, seed) for index in range(info.num_tasks) for name in names for seed in info.seeds]
    return [by_key[key] for key in keys if key in by_key]
