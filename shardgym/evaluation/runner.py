"""evaluate: solvers on a suite, scored by a judge, one record per task, solver and seed."""

from __future__ import annotations

import functools
import itertools
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

from shardgym.arguments import check_int
from shardgym.costs.base import CostModel, make_cost
from shardgym.engines import Engine, HereEngine, make_engine
from shardgym.engines.base import OpenWorker
from shardgym.errors import InputError
from shardgym.evaluation.result import Result, RunInfo, TaskSequence, write_task
from shardgym.evaluation.solver import Solver
from shardgym.evaluation.solver_spec import SolverSpec, check_solvers
from shardgym.evaluation.store import Resume, Store, results_of
from shardgym.evaluation.task_worker import TaskAnswer, TaskJob, TaskWorker, open_task_worker, running_solvers
from shardgym.files import only_writer
from shardgym.progress import progress_bar
from shardgym.records import short_repr
from shardgym.tasks.suites import Suite
from shardgym.tasks.suites.spec import Track

#: Seconds that a plan may take when nothing else is said: none of our solvers takes a tenth of it.
TIMEOUT_S = 3600.0


def evaluate(
    suite: TaskSequence,
    solvers: Sequence[str | SolverSpec | Solver | type[Solver]],
    *,
    out: str | Path,
    judge: str | CostModel | None = None,
    oracle: str | CostModel | None = None,
    track: str | Track | None = None,
    judge_settings: Mapping[str, Any] | None = None,
    oracle_settings: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (0,),
    limit: int | None = None,
    resume: Resume | str = Resume.MISSING,
    time_limit_s: float | None = None,
    timeout_s: float = TIMEOUT_S,
    isolate: bool | None = None,
    engine: str | Engine = "here",
    progress: bool = False,
) -> list[Result]:
    """Run solvers on a suite and keep one record per task, solver and seed.

    Every solver solves a task with the oracle, then the judge scores all plans of the task in one call, then their
    records are appended to `out/records.jsonl` and flushed. A failure is a record with a reason; tracebacks go to
    `out/errors.log`. Killed at any moment, the file is whole and the same call finishes the rest.

    Args:
        suite: the tasks, with the name of the suite.
        solvers: names, `SolverSpec` for a solver with settings or a label, classes, or solvers that were made.
        out: folder of the records; one process at a time writes to it.
        judge: scores the plans. A name, or a cost model, which the caller closes. With `track`, leave it out.
        oracle: what solvers may query; another object than the judge.
        track: judge and oracle of the suite's track with this judge, e.g. "simulator", or of a `Track`. Without judge,
            oracle and track it is the suite's first track.
        judge_settings: keyword arguments for a judge given by name.
        oracle_settings: keyword arguments for an oracle given by name.
        seeds: every solver solves every task once per seed.
        limit: only the first so many tasks.
        resume: how existing records are treated, see `Resume`.
        time_limit_s: passed to solvers that take one.
        timeout_s: seconds after which a solver is stopped, whatever it does; the plan is then recorded as an error.
        isolate: whether every solver works in a process of its own (see `evaluation/running_solver.py`): what ends
            that process, or changes what is in it, concerns no other solver and no record. When False, solvers work in
            this process, e.g. below a debugger, and there is no timeout. None: where the system has fork.
        engine: where tasks are solved and scored: "here", one after the other; "loky", in processes of this machine;
            "ray", on a Ray cluster; or one by `shardgym.engines.make_engine`. Records are written here, as tasks are
            done. A worker that is lost is replaced, and its task done again.
        progress: draw progress bars on standard error when it is a terminal.

    Returns:
        The records of these solvers, seeds and tasks, old and new, by task, then solver, then seed.

    Raises:
        InputError: the folder holds records of something else, is damaged or in use, or a name is unknown.
        MissingDependencyError: judge, oracle or a solver need an extra that is not installed.
    """
    folder = Path(str(out)).absolute()  # a solver may change the current folder
    mode = Resume(resume)
    num_tasks = _check_suite(suite, limit)
    checked_seeds = _check_seeds(seeds)
    _check_seconds("time_limit_s", time_limit_s)
    _check_seconds("timeout_s", timeout_s)
    specs = check_solvers(solvers)
    doing = make_engine(engine) if isinstance(engine, str) else engine
    if track is not None or (judge is None and oracle is None):
        chosen = _chosen_track(suite, track, given=(judge, oracle, judge_settings, oracle_settings))
        judge, judge_settings = chosen.judge.cost, chosen.judge.settings
        oracle, oracle_settings = chosen.oracle.cost, chosen.oracle.settings
    if not isinstance(doing, HereEngine):
        check_by_name(doing, specs, judge, oracle)
    with ExitStack() as stack:
        oracle_name, oracle_cost = stack.enter_context(_open_cost("oracle", oracle, oracle_settings))
        judge_name, judge_cost = stack.enter_context(_open_cost("judge", judge, judge_settings))
        _check_apart(judge_cost, oracle_cost)
        running = stack.enter_context(running_solvers(specs, oracle_cost, timeout_s, isolate))
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
        stack.enter_context(only_writer(folder))
        store = Store(folder, run, mode, suite, specs)
        jobs = _jobs(run, store)
        total = sum(len(job.todo) for job in jobs)
        bar = stack.enter_context(
            progress_bar(shown=progress and total > 0, total=total, unit="plan", desc=suite.name)
        )  # fmt: skip
        if isinstance(doing, HereEngine):
            here = TaskWorker(run, suite, running, judge_cost, bar.set_postfix_str)
            open_worker = cast("OpenWorker[TaskJob, TaskAnswer]", functools.partial(nullcontext, here))
        else:
            for solver in running:
                solver.close()
            open_worker = functools.partial(open_task_worker, run, suite, specs, timeout_s, isolate)
        alone = not (judge_cost.deterministic and oracle_cost.deterministic)
        if jobs:
            # Whether tasks may have the suite's name is found out before any is solved.
            write_task(folder, suite, jobs[0].task_index, suite[jobs[0].task_index])
        for job, answer in doing.run(open_worker, jobs, alone=alone):
            write_task(folder, suite, job.task_index, suite[job.task_index])
            for heading, text in answer.errors:
                store.log_error(heading, text)
            store.add(answer.new, answer.renewed)
            bar.update(len(answer.new))
        return results_of(run, store.results)


def _jobs(run: RunInfo, store: Store) -> list[TaskJob]:
    """Return what the store lacks, task by task."""
    found = {result.key for result in store.results}
    jobs = []
    for index in range(run.num_tasks):
        keys = itertools.product(run.solvers, run.seeds)
        todo = tuple((solver, seed) for solver, seed in keys if (index, solver, seed) not in found)
        if todo:
            old = tuple(result for result in store.results if result.task_index == index)
            jobs.append(TaskJob(index, todo, old))
    return jobs


@contextmanager
def _open_cost(
    role: str, given: str | CostModel | None, settings: Mapping[str, Any] | None
) -> Iterator[tuple[str, CostModel]]:
    """Yield name and model; a model that was made here is closed at the end."""
    checked = dict(settings or {})
    if isinstance(given, CostModel):
        if checked:
            raise InputError(f"{role}_settings are for a cost model given by name: make the object with them instead")
        yield given.name, given
        return
    if given is None:
        raise InputError(f"{role}: expected the name of a cost or a cost model, got None; or give a track instead")
    with make_cost(given, **checked) as model:
        yield given, model


def _chosen_track(suite: TaskSequence, track: str | Track | None, given: Sequence[object]) -> Track:
    """Return a track that was given, or the one of the suite with that judge, or its first."""
    if any(value is not None for value in given):
        raise InputError("track: a track is judge and oracle with their settings: leave those out")
    if isinstance(track, Track):
        return track
    if not isinstance(suite, Suite):
        raise InputError(f"suite '{suite.name}' has no tracks: give judge and oracle, or a shardgym.tasks.suites.Track")
    return suite.track(track)


def check_by_name(engine: Engine, specs: Sequence[SolverSpec], *costs: str | CostModel | None) -> None:
    """Refuse objects, which other processes cannot make again."""
    given = [f"solver '{spec.title}'" for spec in specs if spec.given is not None]
    given += [f"cost '{cost.name}'" for cost in costs if isinstance(cost, CostModel)]
    if given:
        raise InputError(
            f"{given[0]} is an object, and engine '{engine.name}' makes solvers and costs in other processes: give its "
            "name or module:Class"
        )


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
    """Return how many tasks a run has; raises `InputError` for no suite, or a limit that is not 1 to its length."""
    if not isinstance(getattr(suite, "name", None), str) or not hasattr(suite, "__getitem__"):
        raise InputError(f"suite: expected tasks with a name, got {short_repr(suite)}")
    if limit is None:
        return len(suite)
    if check_int("limit", limit, 1) > len(suite):
        raise InputError(f"limit={limit}: suite '{suite.name}' has {len(suite)} tasks; give at most {len(suite)}")
    return limit


def _check_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """Return the seeds, each once; raises `InputError` when there is none or one is no whole number from 0 on."""
    checked = [check_int("seed", seed) for seed in list(seeds)]
    if not checked:
        raise InputError("no seed was given: name at least one")
    return tuple(dict.fromkeys(checked))


def _check_seconds(name: str, seconds: float | None) -> None:
    """Refuse what is not None, nor a number of seconds above 0."""
    is_number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and math.isfinite(seconds) and seconds > 0):
        raise InputError(f"{name}: expected a number of seconds above 0, got {short_repr(seconds)}")
