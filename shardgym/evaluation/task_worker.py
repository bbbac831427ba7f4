"""TaskWorker: takes tasks of a run one at a time, lets its solvers solve them, and has their plans scored."""

from __future__ import annotations

import dataclasses
import logging
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.plan_cost import PlanCost
from shardgym.errors import InputError, MeasurementError, MissingDependencyError, one_line
from shardgym.evaluation.result import Result, RunInfo, Status, TaskSequence
from shardgym.evaluation.running_solver import RunningSolver
from shardgym.evaluation.solver_spec import SolverSpec
from shardgym.machine import arithmetic, commit, utc_now, versions
from shardgym.plans.plan import ShardingPlan
from shardgym.processes import CAN_FORK
from shardgym.tasks.task import ShardingTask

logger = logging.getLogger(__name__)


class TaskJob(NamedTuple):
    """What a run lacks of one task.

    Attributes:
        task_index: of the task in the suite.
        todo: titles of solvers, and seeds, that have no record.
        old: records of the task that are there.
    """

    task_index: int
    todo: tuple[tuple[str, int], ...]
    old: tuple[Result, ...]

    def __str__(self) -> str:
        return f"task {self.task_index}"


class TaskAnswer(NamedTuple):
    """What came of a job.

    Attributes:
        new: results of what was to do.
        renewed: old results with new costs, see `TaskWorker`.
        errors: headings and tracebacks.
    """

    new: list[Result]
    renewed: list[Result]
    errors: list[tuple[str, str]]


class TaskWorker:
    """Solves and scores a task at a time.

    All plans of a task are scored in one call, so that a measured judge interleaves them. A judge that is not
    deterministic measures the plans of old results again in the same call: what is compared must not have drifted
    apart.

    Args:
        run: what the results are part of.
        suite: the tasks.
        solvers: are at work.
        judge: scores.
        tell: hears what is being done.
    """

    def __init__(
        self,
        run: RunInfo,
        suite: TaskSequence,
        solvers: Sequence[RunningSolver],
        judge: CostModel,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._run = run
        self._suite = suite
        self._solvers = {solver.spec.title: solver for solver in solvers}
        self._judge = judge
        self._tell = tell

    def __call__(self, job: TaskJob) -> TaskAnswer:
        """Solve what there is to do of a task, and score it."""
        task = self._suite[job.task_index]
        answer = TaskAnswer([], [], [])
        solved = []
        for title, seed in job.todo:
            self._tell(title)
            solver = self._solvers[title]
            asked = self._asked(job.task_index, task, solver.spec, seed)
            solved.append(solver.solve(task, asked, lambda *error: answer.errors.append(error)))
        self._tell(f"task {job.task_index}: {self._run.judge} scores {len(solved)} plans")
        self._score(task, solved, job.old, answer)
        return answer

    def _asked(self, index: int, task: ShardingTask, spec: SolverSpec, seed: int) -> Result:
        """Return the result that a solver is asked for: without a plan, and without what solving shows."""
        return Result(
            suite=self._run.suite,
            task_index=index,
            task_hash=task.digest,
            solver=spec.title,
            made_from=spec.made_from,
            solver_settings=dict(spec.settings),
            seed=seed,
            judge=self._run.judge,
            judge_settings=self._run.judge_settings,
            oracle=self._run.oracle,
            hardware=self._run.hardware,
            status="unmeasured",
            reason="not solved yet",
            solve_time_s=0.0,
            time_limit_s=self._run.time_limit_s,
            started=utc_now(),
            versions=versions() | arithmetic(),
            commit=commit(),
        )

    def _score(self, task: ShardingTask, solved: Sequence[Result], old: Sequence[Result], answer: TaskAnswer) -> None:
        """Add new results with costs, and old results with new costs, as far as these could be had."""
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
    """Make judge, oracle and solvers of a run in another process than the one that records it.

    Raises:
        InputError: the judge here is another one than that of the run, e.g. of other hardware.
    """
    with ExitStack() as stack:
        oracle = stack.enter_context(make_cost(run.oracle, **run.oracle_settings))
        solvers = stack.enter_context(running_solvers(specs, oracle, timeout_s, isolate))
        judge = stack.enter_context(make_cost(run.judge, **run.judge_settings))
        for what, here, there in (
            ("hardware", judge.hardware, run.hardware), ("version", judge.version, run.judge_version),
        ):  # fmt: skip
            if here != there:
                raise InputError(
                    f"judge '{run.judge}' on {socket.gethostname()} has {what} {here}, the run has {there}: leave this "
                    "machine out, or start the run on it with a folder of its own"
                )
        yield TaskWorker(run, suite, solvers, judge)


@contextmanager
def running_solvers(
    specs: Sequence[SolverSpec], oracle: CostModel, timeout_s: float, isolate: bool | None
) -> Iterator[list[RunningSolver]]:
    """Make every solver before anything is solved, so that a wrong setting costs no time, and end them afterwards.

    Raises:
        InputError: a solver cannot be made, or this system cannot isolate solvers and is asked to.
    """
    if isolate is None and not CAN_FORK:
        logger.warning("this system has no fork: what ends a solver ends the run, and nothing stops it")
    if isolate is None and not oracle.deterministic:
        logger.info(
            "oracle '%s' measures: solvers that ask it work in this process, and nothing stops them", oracle.name
        )
    isolated = CAN_FORK and oracle.deterministic if isolate is None else isolate
    running = [RunningSolver(spec, oracle, timeout_s=timeout_s, isolate=isolated) for spec in specs]
    with ExitStack() as stack:
        for solver in running:
            stack.callback(solver.close)
            solver.start()
        for solver in running:
            solver.wait_until_made()
        yield running
