"""TaskWorker: solves and scores one task at a time, in the process of a run or in one of an engine."""

from __future__ import annotations

import dataclasses
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.plan_cost import PlanCost
from shardgym.errors import InputError, MeasurementError, MissingDependencyError, one_line
from shardgym.evaluation.result import Result, RunInfo, Status
from shardgym.evaluation.running_solver import Answer, RunningSolver, running_solvers
from shardgym.evaluation.solver_spec import SolverSpec
from shardgym.evaluation.store import TaskSequence
from shardgym.machine import arithmetic, commit, versions
from shardgym.plans.plan import ShardingPlan
from shardgym.progress import log_to_stderr
from shardgym.tasks.task import ShardingTask


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
        """Add new results with their costs, and old results with new costs; solvers with one plan share its cost."""
        plans = [r.plan for r in solved if r.status == "unmeasured" and r.plan is not None]
        again: list[Result] = []
        if plans and not self._judge.deterministic:
            again = [r for r in old if r.status == "ok"]
        distinct = list(dict.fromkeys([*plans, *(r.plan for r in again if r.plan is not None)]))
        costs = dict(zip(distinct, self._costs(task, distinct, answer), strict=True)) if plans else {}
        for result in solved:
            cost = costs[result.plan] if result.status == "unmeasured" and result.plan is not None else None
            answer.new.append(self._scored(task, result, cost))
        renewed = [(result, costs[result.plan]) for result in again if result.plan is not None]
        answer.renewed.extend(dataclasses.replace(result, cost=cost) for result, cost in renewed if cost.feasible)

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
    run: RunInfo, suite: TaskSequence, specs: Sequence[SolverSpec], timeout_s: float, isolate: bool | None, info: bool
) -> Iterator[TaskWorker]:
    """Make judge, oracle and solvers of a run in a process of an engine; raises `InputError` for another judge."""
    with ExitStack() as stack:
        stack.enter_context(log_to_stderr(info=info))
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
