"""evaluate: solvers on a suite, scored by a judge, one record per task, solver and seed."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import math
import numbers
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, cast

from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.plan_cost import PlanCost
from shardgym.engines import Engine, OpenWorker, make_engine
from shardgym.errors import InputError, MeasurementError, MissingDependencyError, check_int, one_line, short_repr
from shardgym.evaluation.result import Result, RunInfo, Status, TaskSequence, write_task
from shardgym.evaluation.running_solver import Answer, RunningSolver, running_solvers
from shardgym.evaluation.solver import Solver
from shardgym.evaluation.solver_spec import SolverSpec, check_solvers
from shardgym.evaluation.store import Resume, Store, results_of
from shardgym.files import only_writer
from shardgym.machine import arithmetic, commit, versions
from shardgym.plans.plan import ShardingPlan
from shardgym.progress import progress_bar
from shardgym.tasks.suites import Suite
from shardgym.tasks.suites.spec import CostChoice, Track
from shardgym.tasks.task import ShardingTask

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
    are appended to `out/records.jsonl` and flushed. A failure is a record with a reason; tracebacks go to
    `out/errors.log`. After an interruption, the same call resumes the run.

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
    mode = Resume(resume)
    num_tasks = _check_suite(suite, limit)
    checked = [check_int("seed", seed) for seed in list(seeds)]
    if not checked:
        raise InputError("no seed was given: name at least one")
    checked_seeds = tuple(dict.fromkeys(checked))
    _check_seconds("time_limit_s", time_limit_s)
    _check_seconds("timeout_s", timeout_s)
    specs = check_solvers(solvers)
    doing = make_engine(engine) if isinstance(engine, str) else engine
    if track is not None or (judge is None and oracle is None):
        if judge is not None or oracle is not None:
            raise InputError("track: it sets judge and oracle: leave those out")
        chosen = track if isinstance(track, Track) else _track_of(suite, track)
        costs: list[CostChoice | CostModel] = [chosen.judge, chosen.oracle]
    else:
        costs = [_choice("judge", judge), _choice("oracle", oracle)]
    if doing.name != "here":
        # Other processes cannot make objects again.
        given = [f"solver '{spec.title}'" for spec in specs if spec.given is not None]
        given += [f"cost '{cost.name}'" for cost in costs if isinstance(cost, CostModel)]
        if given:
            raise InputError(
                f"{given[0]} is an object, but engine '{doing.name}' makes solvers and costs in other processes: give "
                "its name or module:Class"
            )
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
        for solver in running:
            for field, what in (("source_digest", "source file"), ("weights_digest", "weights")):
                made_of = {getattr(result, field) for result in store.results if result.solver == solver.spec.title}
                if solver.facts[field] and made_of - {solver.facts[field], ""}:
                    _logger.warning(
                        "the %s of '%s' changed after its earlier records were made, and they stay: give it a new "
                        "label, or --resume all",
                        what,
                        solver.spec.title,
                    )
        found = {result.key for result in store.results}
        jobs = []
        for index in range(run.num_tasks):
            keys = itertools.product(run.solvers, run.seeds)
            todo = tuple((solver, seed) for solver, seed in keys if (index, solver, seed) not in found)
            if todo:
                old = tuple(result for result in store.results if result.task_index == index)
                jobs.append(TaskJob(index, todo, old))
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


def _track_of(suite: TaskSequence, judge: str | None) -> Track:
    if not isinstance(suite, Suite):
        raise InputError(f"suite '{suite.name}' has no tracks: give judge and oracle, or a shardgym.tasks.suites.Track")
    return suite.track(judge)


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


def _check_suite(suite: TaskSequence, limit: int | None) -> int:
    """Return how many tasks a run has; raises `InputError` for no suite, or a limit that is not 1 to its length."""
    if not isinstance(getattr(suite, "name", None), str) or not hasattr(suite, "__getitem__"):
        raise InputError(f"suite: expected tasks with a name, got {short_repr(suite)}")
    if limit is None:
        return len(suite)
    if check_int("limit", limit, 1) > len(suite):
        raise InputError(f"limit={limit}: suite '{suite.name}' has {len(suite)} tasks; give at most {len(suite)}")
    return limit


def _check_seconds(name: str, seconds: float | None) -> None:
    """Raise `InputError` unless the time is None or a number of seconds above 0."""
    is_number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and math.isfinite(seconds) and seconds > 0):
        raise InputError(f"{name}: expected a number of seconds above 0, got {short_repr(seconds)}")


# --- solving and scoring, here or in a process of an engine -----------------------------------------------------------


class TaskJob(NamedTuple):
    """What is left to do for one task."""

    task_index: int
    todo: tuple[tuple[str, int], ...]  #: titles of solvers, and seeds, that have no record
    old: tuple[Result, ...]  #: records of the task that are there

    def __str__(self) -> str:
        return f"task {self.task_index}"


class TaskAnswer(NamedTuple):
    """The results of a job."""

    new: list[Result]
    renewed: list[Result]  #: old results with new costs
    errors: list[tuple[str, str]]  #: headings and tracebacks


class TaskWorker:
    """Solves and scores a task at a time.

    All plans of a task are scored in one call, so that a measured judge interleaves them. A judge that is not
    deterministic measures the plans of old results again in the same call: what is compared must not have drifted
    apart. `tell` hears what is being done.
    """

    def __init__(
        self, run: RunInfo, suite: TaskSequence, solvers: Sequence[RunningSolver], judge: CostModel,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._run = run
        self._suite = suite
        self._solvers = {solver.spec.title: solver for solver in solvers}
        self._judge = judge
        self._tell = tell

    def __call__(self, job: TaskJob) -> TaskAnswer:
        """Solve and score what is left to do for a task."""
        task = self._suite[job.task_index]
        answer = TaskAnswer([], [], [])
        solved = []
        for title, seed in job.todo:
            self._tell(title)
            solver = self._solvers[title]
            found = solver.solve(task, seed, self._run.time_limit_s)
            if found.trace:
                heading = f"{title}, task {task.name or task.digest[:12]}, seed {seed}"
                answer.errors.append((heading, found.trace))
            solved.append(self._result(job.task_index, task, solver, seed, found))
        self._tell(f"task {job.task_index}: {self._run.judge} scores {len(solved)} plans")
        self._score(task, solved, job.old, answer)
        return answer

    def _result(self, index: int, task: ShardingTask, solver: RunningSolver, seed: int, found: Answer) -> Result:
        """Return what a solver answered as a result that no judge has scored."""
        spec = solver.spec
        run = self._run
        told = found._asdict()
        del told["trace"]
        fields: dict[str, Any] = {
            "suite": run.suite, "task_index": index, "task_hash": task.digest, "solver": spec.title,
            "made_from": spec.made_from, "solver_settings": dict(spec.settings), "seed": seed, "judge": run.judge,
            "judge_settings": run.judge_settings, "oracle": run.oracle, "hardware": run.hardware,
            "time_limit_s": run.time_limit_s, "versions": versions() | arithmetic(), "commit": commit(),
        }  # fmt: skip
        try:
            return Result(**(fields | solver.facts | told))
        except InputError as error:
            reason = f"the solver's answer cannot be recorded: {one_line(error, with_type=False)}"
            times = {name: told[name] for name in ("started", "solve_time_s", "cpu_time_s")}
            return Result(**fields, **times, status="error", reason=reason)

    def _score(self, task: ShardingTask, solved: Sequence[Result], old: Sequence[Result], answer: TaskAnswer) -> None:
        """Add new results with their costs, and old results with new costs if there are any."""
        plans = [r.plan for r in solved if r.status == "unmeasured" and r.plan is not None]
        again: list[Result] = []
        if plans and not self._judge.deterministic:
            again = [r for r in old if r.status == "ok"]
        both = [*plans, *(r.plan for r in again if r.plan is not None)]
        costs = iter(self._costs(task, both, answer) if plans else ())
        answer.new.extend(self._scored(task, r, next(costs) if r.status == "unmeasured" else None) for r in solved)
        renewed = [dataclasses.replace(r, cost=cost) for r, cost in zip(again, costs, strict=True) if cost.feasible]
        answer.renewed.extend(renewed)

    def _costs(self, task: ShardingTask, plans: Sequence[ShardingPlan], answer: TaskAnswer) -> list[PlanCost]:
        try:
            return self._judge.evaluate(task, plans)
        except (InputError, MissingDependencyError):
            raise  # e.g. an extra is not installed: it would fail for every other task, too
        except Exception as error:
            if not isinstance(error, MeasurementError):
                heading = f"judge {self._run.judge}, task {task.name or task.digest[:12]}"
                answer.errors.append((heading, traceback.format_exc()))
            return [self._judge.no_cost(task, one_line(error))] * len(plans)

    def _scored(self, task: ShardingTask, result: Result, cost: PlanCost | None) -> Result:
        if cost is None:
            if result.plan is None or result.reason is None:
                return result
            return dataclasses.replace(result, cost=self._judge.no_cost(task, result.reason))
        status: Status = "ok" if cost.feasible else "unmeasured"
        return dataclasses.replace(result, status=status, reason=cost.reason, cost=cost)


@contextmanager
def open_task_worker(
    run: RunInfo, suite: TaskSequence, specs: Sequence[SolverSpec], timeout_s: float, isolate: bool | None
) -> Iterator[TaskWorker]:
    """Make judge, oracle and solvers of a run in a process of an engine; raises `InputError` for another judge."""
    with ExitStack() as stack:
        oracle = stack.enter_context(make_cost(run.oracle, **run.oracle_settings))
        solvers = stack.enter_context(running_solvers(specs, oracle, timeout_s, isolate))
        judge = stack.enter_context(make_cost(run.judge, **run.judge_settings))
        here = (judge.hardware, judge.version)
        there = (run.hardware, run.judge_version)
        if here != there:
            raise InputError(
                f"judge '{run.judge}' on {socket.gethostname()} is {here}, but {there} in this run: leave this machine "
                "out, or start a run on it with a folder of its own"
            )
        yield TaskWorker(run, suite, solvers, judge)
