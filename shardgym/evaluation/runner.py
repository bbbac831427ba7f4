"""evaluate: solvers on a suite, scored by a judge, one record per task, solver and seed."""

from __future__ import annotations

import dataclasses
import logging
import math
import numbers
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardgym.arguments import check_dict, check_int, check_list, check_name, describe
from shardgym.children import CAN_FORK
from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.plan_cost import PlanCost
from shardgym.errors import InputError, MeasurementError, MissingDependencyError, one_line
from shardgym.evaluation.result import (
    RECORDS,
    Result,
    RunInfo,
    Status,
    TaskSequence,
    read_records,
    records_file,
    write_task,
)
from shardgym.evaluation.running_solver import ErrorLog, RunningSolver
from shardgym.evaluation.solver_spec import SolverSpec, check_solvers
from shardgym.evaluation.store import Resume, Store, check_records, open_store, results_of
from shardgym.files import only_writer
from shardgym.plan import ShardingPlan
from shardgym.progress import ProgressBar
from shardgym.provenance import arithmetic, commit, utc_now, versions
from shardgym.solver import Solver
from shardgym.suites import Suite
from shardgym.suites.spec import Track
from shardgym.task import ShardingTask

#: Seconds that a plan may take when nothing else is said: none of our solvers takes a tenth of it.
TIMEOUT_S = 3600.0

logger = logging.getLogger(__name__)


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
    extend: bool = False,
    time_limit_s: float | None = None,
    timeout_s: float = TIMEOUT_S,
    isolate: bool | None = None,
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
        extend: whether solvers which have all their records may end without, and so without a rank: when a run adds
            seeds or tasks that they have not run with.
        time_limit_s: passed to solvers that take one.
        timeout_s: seconds after which a solver is stopped, whatever it does; the plan is then recorded as an error.
        isolate: whether every solver works in a process of its own (see `evaluation/running_solver.py`): what ends
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
    if track is not None or (judge is None and oracle is None):
        chosen = _chosen_track(suite, track, given=(judge, oracle, judge_settings, oracle_settings))
        judge, judge_settings = chosen.judge.cost, chosen.judge.settings
        oracle, oracle_settings = chosen.oracle.cost, chosen.oracle.settings
    with ExitStack() as stack:
        oracle_name, oracle_cost = stack.enter_context(_open_cost("oracle", oracle, oracle_settings))
        running = []
        if mode is not Resume.NONE:
            # Before the judge is made: a solver's process holds no copy of it.
            running = stack.enter_context(_running(specs, oracle_cost, timeout_s, isolate))
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
            results = read_records(records_file(folder) or folder / RECORDS)
            if results:
                run.join(folder)
            check_records(results, folder, run, suite, specs)
            return results_of(run, results)
        stack.enter_context(only_writer(folder))
        store = open_store(folder, run, mode, suite, running, extend=extend)
        scoring = Judge(judge_cost, run, store.log_error)
        try:
            _solve_missing(run, suite, running, scoring, store, progress)
        finally:
            store.mend()
        return results_of(run, store.results)


def _solve_missing(
    run: RunInfo,
    suite: TaskSequence,
    solvers: Sequence[RunningSolver],
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
            solved = []
            for solver, seed in todo:
                bar.remark(solver.spec.title)
                solved.append(solver.solve(task, _asked(run, index, task, solver.spec, seed), judge.log))
            bar.remark(f"task {index}: {run.judge} scores {len(solved)} plans")
            old = [result for result in store.results if result.task_index == index]
            new, renewed = judge.score(task, solved, old)
            store.add(new, renewed)
            bar.update(len(solved))


def _asked(run: RunInfo, index: int, task: ShardingTask, spec: SolverSpec, seed: int) -> Result:
    """Return the result that a solver is asked for: without a plan, and without what solving shows."""
    return Result(
        suite=run.suite,
        task_index=index,
        task_hash=task.digest,
        solver=spec.title,
        made_from=spec.made_from,
        solver_settings=dict(spec.settings),
        seed=seed,
        judge=run.judge,
        judge_settings=run.judge_settings,
        oracle=run.oracle,
        hardware=run.hardware,
        status="unmeasured",
        reason="not solved yet",
        solve_time_s=0.0,
        time_limit_s=run.time_limit_s,
        started=utc_now(),
        versions=versions() | arithmetic(),
        commit=commit(),
    )


@contextmanager
def _running(
    specs: Sequence[SolverSpec], oracle: CostModel, timeout_s: float, isolate: bool | None
) -> Iterator[list[RunningSolver]]:
    """Make every solver before anything is solved, so that a wrong setting costs no time, and end them afterwards.

    Raises:
        InputError: a solver cannot be made, or this system cannot isolate solvers and is asked to.
    """
    if isolate is None and not CAN_FORK:
        logger.warning("this system has no fork: what ends a solver ends the run, and nothing stops it")
    isolated = CAN_FORK if isolate is None else isolate
    running = [RunningSolver(spec, oracle, timeout_s=timeout_s, isolate=isolated) for spec in specs]
    with ExitStack() as stack:
        for solver in running:
            stack.callback(solver.close)
            solver.start()
        for solver in running:
            solver.wait_until_made()
        yield running


@contextmanager
def _open_cost(
    role: str, given: str | CostModel | None, settings: Mapping[str, Any] | None
) -> Iterator[tuple[str, CostModel]]:
    """Yield name and model; a model that was made here is closed at the end."""
    checked = check_dict(f"{role}_settings", settings)
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
        raise InputError(f"suite '{suite.name}' has no tracks: give judge and oracle, or a shardgym.suites.Track")
    return suite.track(track)


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
        raise InputError(f"suite: expected tasks with a name, got {describe(suite)}; shardgym.load_suite reads a suite")
    if limit is None:
        return len(suite)
    if check_int("limit", limit, 1) > len(suite):
        raise InputError(f"limit={limit}: suite '{suite.name}' has {len(suite)} tasks; give at most {len(suite)}")
    return limit


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


@dataclass(frozen=True)
class Judge:
    """Scores the plans of all solvers for a task.

    Attributes:
        cost: the cost model that scores.
        run: what the results are part of.
        log: takes tracebacks.
    """

    cost: CostModel
    run: RunInfo
    log: ErrorLog

    def score(
        self, task: ShardingTask, solved: Sequence[Result], old: Sequence[Result]
    ) -> tuple[list[Result], list[Result]]:
        """Score all plans of a task in one call, so that a measured judge interleaves them.

        Args:
            task: the task.
            solved: new results, without costs.
            old: results of the task that are compared with them. A cost that is not deterministic measures their plans
                again, in the same call: what is compared must not have drifted apart.

        Returns:
            The new results with costs, and the old results with new costs, as far as these could be had.
        """
        plans = [r.plan for r in solved if r.status == "unmeasured" and r.plan is not None]
        again: list[Result] = []
        if plans and not self.cost.deterministic:
            again = [r for r in old if r.status == "ok"]
        costs = iter(self._costs(task, [*plans, *(r.plan for r in again if r.plan is not None)]) if plans else ())
        new = [self._scored(task, r, next(costs) if r.status == "unmeasured" else None) for r in solved]
        renewed = [dataclasses.replace(r, cost=cost) for r, cost in zip(again, costs, strict=True) if cost.feasible]
        return new, renewed

    def _costs(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        try:
            return self.cost.evaluate(task, plans)
        except (InputError, MissingDependencyError):
            raise  # e.g. an extra is not installed: it would fail for every other task, too
        except Exception as error:
            if not isinstance(error, MeasurementError):
                self.log(f"judge {self.run.judge}, task {task.name or task.digest[:12]}", traceback.format_exc())
            return [self.cost.no_cost(task, one_line(error))] * len(plans)

    def _scored(self, task: ShardingTask, result: Result, cost: PlanCost | None) -> Result:
        if cost is None:
            if result.plan is None or result.reason is None:
                return result
            return dataclasses.replace(result, cost=self.cost.no_cost(task, result.reason))
        status: Status = "ok" if cost.feasible else "unmeasured"
        return dataclasses.replace(result, status=status, reason=cost.reason, cost=cost)
