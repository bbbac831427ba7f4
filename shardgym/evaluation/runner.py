"""evaluate: solvers on a suite, scored by a judge, one record per task, solver and seed."""

from __future__ import annotations

import functools
import itertools
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import cast

from shardgym.costs.base import CostModel, make_cost
from shardgym.engines import Engine, OpenWorker, make_engine
from shardgym.errors import InputError, UnknownNameError, check_int, check_seconds, short_repr
from shardgym.evaluation.result import Result, RunInfo
from shardgym.evaluation.running_solver import RunningSolver, running_solvers
from shardgym.evaluation.solver import Solver
from shardgym.evaluation.solver_spec import SolverSpec, check_solvers
from shardgym.evaluation.store import Resume, Store, TaskSequence, results_of, write_task
from shardgym.evaluation.task_worker import TaskAnswer, TaskJob, TaskWorker, open_task_worker
from shardgym.files import only_writer
from shardgym.progress import progress_bar
from shardgym.tasks.suites import Suite
from shardgym.tasks.suites.spec import CostChoice, Track

_logger = logging.getLogger(__name__)

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

    Every solver solves a task with the oracle. The judge scores all plans of the task in one call, and their records
    are appended to `out/records.jsonl` and flushed; earlier records of a task that is measured again get new costs. A
    failure is a record with a reason; tracebacks go to `out/errors.log`. After an interruption, the same call resumes
    the run.

    Args:
        suite: the tasks, with the name of the suite.
        solvers: names, classes, solver objects, or `SolverSpec` for a solver with settings or a label.
        out: folder of the records; one process at a time writes to it.
        judge: cost that scores the plans: a name, or a cost model, which the caller closes.
        oracle: cost that solvers may query; another object than the judge.
        track: replaces judge and oracle: a `Track`, or the judge of one of the suite's tracks, e.g. "simulator". The
            default is the suite's first track.
        seeds: every solver solves every task once per seed.
        limit: number of tasks, from the first one; None for all.
        resume: what happens to existing records, see `Resume`.
        time_limit_s: time limit for solvers that take one.
        timeout_s: seconds after which a solver is stopped; its plan is then recorded as an error.
        isolate: whether every solver works in a process of its own (see `evaluation/running_solver.py`), so that a
            crash concerns no other solver and no record. If False, solvers work in this process, e.g. for a debugger,
            and there is no timeout. None: True if the system has fork and the oracle does not measure.
        engine: where tasks are solved and scored: "here", one after the other; "loky", in processes of this machine;
            "ray", on a Ray cluster; or an engine of `shardgym.engines.make_engine`. This process writes the records, as
            tasks are done. A lost worker is replaced, and its task repeated.
        progress: draw progress bars on standard error if it is a terminal.

    Returns:
        The records of these solvers, seeds and tasks, old and new, by task, then solver, then seed.

    Raises:
        InputError: the folder holds records of something else, is damaged or in use, or a name is unknown.
        MissingDependencyError: judge, oracle or a solver need an extra that is not installed.
    """
    folder = Path(str(out)).absolute()  # a solver may change the current folder
    if resume not in list(Resume):
        raise UnknownNameError("resume", str(resume), list(Resume))
    mode = Resume(resume)
    num_tasks = _check_suite(suite, limit)
    if isinstance(seeds, int):
        raise InputError(f"seeds={seeds}: expected a list, such as [{seeds}]")
    checked = [check_int("seed", seed) for seed in list(seeds)]
    if not checked:
        raise InputError("no seed was given: name at least one")
    checked_seeds = tuple(dict.fromkeys(checked))
    if time_limit_s is not None:
        check_seconds("time_limit_s", time_limit_s)
    check_seconds("timeout_s", timeout_s)
    specs = check_solvers(solvers)
    doing = make_engine(engine) if isinstance(engine, str) else engine
    costs = _chosen_costs(suite, track, judge, oracle)
    if doing.name != "here":
        _check_no_objects(specs, costs, doing.name)
    with ExitStack() as stack:
        oracle_name, oracle_cost = _open_cost(costs[1], stack)
        judge_name, judge_cost = _open_cost(costs[0], stack)
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
        _warn_of_changes(running, store.results)
        jobs = _jobs(run, store.results)
        again = sum(result.status == "ok" for job in jobs for result in job.old)
        if again and not judge_cost.deterministic:
            _logger.info("%s measures %d plans of earlier records again, together with the new ones", judge_name, again)
        total = sum(len(job.todo) for job in jobs)
        bar = stack.enter_context(
            progress_bar(shown=progress and total > 0, total=total, unit="plan", desc=suite.name)
        )  # fmt: skip
        if doing.name == "here":
            here = TaskWorker(run, suite, running, judge_cost, bar.set_postfix_str)
            open_worker = cast("OpenWorker[TaskJob, TaskAnswer]", functools.partial(nullcontext, here))
        else:
            for solver in running:
                solver.close()
            open_worker = functools.partial(
                open_task_worker, run, suite, specs, timeout_s, isolate, _logger.isEnabledFor(logging.INFO)
            )
        alone = not (judge_cost.deterministic and oracle_cost.deterministic)
        if jobs:
            # Whether tasks may have the suite's name is found out before any is solved.
            write_task(folder, suite, jobs[0].task_index)
        for job, answer in doing.run(open_worker, jobs, alone=alone):
            write_task(folder, suite, job.task_index)
            for heading, text in answer.errors:
                store.log_error(heading, text)
            store.add(answer.new, answer.renewed)
            bar.update(len(answer.new))
        return results_of(run, store.results)


def _chosen_costs(
    suite: TaskSequence, track: str | Track | None, judge: str | CostModel | None, oracle: str | CostModel | None
) -> tuple[CostChoice | CostModel, CostChoice | CostModel]:
    """Return judge and oracle: those given, those of the track, or those of the suite's first track."""
    if track is None and not (judge is None and oracle is None):
        return _choice("judge", judge), _choice("oracle", oracle)
    if judge is not None or oracle is not None:
        raise InputError("track: it sets judge and oracle: leave those out")
    if not isinstance(track, Track):
        if not isinstance(suite, Suite):
            raise InputError(f"suite '{suite.name}' has no tracks: give judge and oracle, or a track of yours")
        track = suite.track(track)
    return track.judge, track.oracle


def _choice(role: str, given: str | CostModel | None) -> CostChoice | CostModel:
    if isinstance(given, CostModel):
        return given
    if given is None:
        raise InputError(f"{role}: expected the name of a cost or a cost model, got None; or give a track instead")
    return CostChoice(given)


def _open_cost(given: CostChoice | CostModel, stack: ExitStack) -> tuple[str, CostModel]:
    """Return name and model; a model that is made here is closed by the stack."""
    if isinstance(given, CostModel):
        return given.name, given
    return given.cost, stack.enter_context(make_cost(given.cost, **given.settings))


def _warn_of_changes(running: Sequence[RunningSolver], results: Sequence[Result]) -> None:
    """Name solvers whose source file or weights are not those that made their earlier records."""
    for solver in running:
        title = solver.spec.title
        for field, what in (("source_digest", "source file"), ("weights_digest", "weights")):
            made_of = {getattr(result, field) for result in results if result.solver == title}
            if solver.facts[field] and made_of - {solver.facts[field], ""}:
                changed = f"the {what} of '{title}' changed after its earlier records were made, and they stay"
                is_own = ":" in solver.spec.name
                _logger.warning("%s%s", changed, ": give it a new label, or --resume all" if is_own else "")


def _check_apart(judge: CostModel, oracle: CostModel) -> None:
    """Refuse an oracle that may only score, and a judge that solvers could query."""
    if judge is oracle:
        raise InputError("judge and oracle are the same object: a solver must not hold the cost that scores it")
    if oracle.scores_only:
        raise InputError(f"oracle '{oracle.name}' has role 'judge', which is for scoring: expected an oracle")
    if judge.learned and (judge.name, judge.version) == (oracle.name, oracle.version):
        raise InputError(
            f"judge '{judge.name}' has the oracle's weights, whose errors solvers exploit: give another judge, "
            f"such as make_cost('{judge.name}', role='judge'), or a track"
        )


def _jobs(run: RunInfo, results: Iterable[Result]) -> list[TaskJob]:
    """Return what each task lacks, with the records that it has."""
    old: dict[int, list[Result]] = defaultdict(list)
    for result in results:
        old[result.task_index].append(result)
    jobs = []
    for index in range(run.num_tasks):
        found = {(result.solver, result.seed) for result in old[index]}
        todo = tuple(key for key in itertools.product(run.solvers, run.seeds) if key not in found)
        if todo:
            jobs.append(TaskJob(index, todo, tuple(old[index])))
    return jobs


def _check_no_objects(specs: Sequence[SolverSpec], costs: Iterable[CostChoice | CostModel], engine: str) -> None:
    """Raise `InputError` for solvers and costs that other processes cannot make again."""
    given = [f"solver '{spec.title}'" for spec in specs if spec.given is not None]
    given += [f"cost '{cost.name}'" for cost in costs if isinstance(cost, CostModel)]
    if given:
        raise InputError(
            f"{given[0]} is an object, but engine '{engine}' makes solvers and costs in other processes: give its name "
            "or module:Class"
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
