"""The parts of a run: solvers made from `SolverSpec`, their plans for a task, and the judge that scores these plans."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from shardgym.arguments import check_dict, check_list, describe
from shardgym.costs.base import CostModel, PlanCost
from shardgym.errors import NO_PLAN, InfeasiblePlanError, InputError, MeasurementError, MissingDependencyError
from shardgym.evaluation.result import Result, RunInfo, Status, recipe
from shardgym.plan import ShardingPlan
from shardgym.provenance import commit, utc_now, versions
from shardgym.records import canonical_json
from shardgym.solver import Solver, call_solver, make_solver, solver_names, warm_up
from shardgym.task import ShardingTask

_LABEL = re.compile(r"[A-Za-z0-9_.+-]{1,60}")


@dataclass(frozen=True)
class SolverSpec:
    """Which solver takes part in a run, with which settings, under which label.

    Attributes:
        name: a registered name, or `module:Class`.
        settings: keyword arguments for its class, JSON-ready.
        label: what it is called in records and tables; empty for its name. With labels, one solver takes part several
            times with different settings.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    @property
    def title(self) -> str:
        """What it is called in records and tables."""
        return self.label or self.name

    @property
    def made_from(self) -> str | None:
        """The name that the title stands for; None when it is the title."""
        return self.name if self.title != self.name else None

    @property
    def recipe(self) -> str:
        """Name behind a label, and settings, as text; the same as `Result.recipe`."""
        return recipe(self.made_from, self.settings)


@dataclass
class PreparedSolver:
    """A solver that was made, and warms up before its first task.

    Attributes:
        spec: what it was made from.
        solver: the solver.
        is_warm: whether it has warmed up.
    """

    spec: SolverSpec
    solver: Solver
    is_warm: bool = False

    def warm_up(self, task: ShardingTask, oracle: CostModel) -> None:
        """Let the solver warm up unless it has; where that fails it is tried again before the next task."""
        if not self.is_warm:
            warm_up(self.solver, task, oracle)
            self.is_warm = True


def prepare_solvers(solvers: Iterable[str | SolverSpec]) -> list[PreparedSolver]:
    """Make every solver before anything is solved, so that a wrong name costs no time.

    Raises:
        UnknownNameError: a solver that does not exist; the closest names are given.
        InputError: no solver, one title for different ones, a bad label, or settings that a class does not take.
    """
    specs: dict[str, SolverSpec] = {}
    for number, value in enumerate(check_list("solvers", solvers, "names or SolverSpec")):
        spec = _check_spec(number, value)
        if specs.setdefault(spec.title, spec) != spec:
            raise InputError(
                f"solver '{spec.title}' is given twice with different settings: label one, e.g. mine={spec.name},..."
            )
    if not specs:
        raise InputError("no solver was given: name at least one")
    for spec in specs.values():
        try:
            canonical_json(dict(spec.settings)).encode()
        except (TypeError, ValueError) as error:
            raise InputError(f"settings of solver '{spec.title}' are not JSON, which records need: {error}") from None
    return [PreparedSolver(spec, make_solver(spec.name, **spec.settings)) for spec in specs.values()]


def _check_spec(number: int, value: object) -> SolverSpec:
    """Return one entry of the list of solvers as a spec; a label that equals the name is dropped."""
    spec = SolverSpec(value) if isinstance(value, str) else value
    if not isinstance(spec, SolverSpec):
        raise InputError(
            f"solvers[{number}]: expected a name, 'module:Class' or a SolverSpec, got {describe(value)}; records name "
            "solvers so that they can be made again"
        )
    spec = dataclasses.replace(spec, settings=check_dict(f"settings of solver '{spec.name}'", spec.settings))
    if spec.made_from is None:
        return dataclasses.replace(spec, label="")
    check_label(spec.label, spec.name)
    return spec


def check_label(label: str, name: str) -> None:
    """Refuse a label that tables cannot show plainly, or that is the name of another solver; raises `InputError`."""
    if not _LABEL.fullmatch(label):
        raise InputError(f"label '{label:.80}': expected at most 60 letters, digits and any of _ . + -")
    if label in solver_names():
        raise InputError(f"label '{label}' is the name of another solver than '{name}': give another one")


#: Takes a heading and a traceback.
ErrorLog = Callable[[str, str], None]

_LONGEST_REASON = 500


@dataclass(frozen=True)
class Attempt:
    """What a solver returned for a task, before it is scored.

    Attributes:
        spec: who solved.
        seed: given to the solver.
        started: UTC.
        seconds: that the call took.
        cpu_seconds: processor time of that, over all threads of this process.
        failure: status other than "ok"; None for a feasible plan.
        reason: one line, why it failed.
        plan: None when there is none for this task.
        weights_digest: of the weights that the solver solved with; "" when it has none.
        training_time_s: that these took to train; None where not known.
    """

    spec: SolverSpec
    seed: int
    started: str
    seconds: float
    cpu_seconds: float
    failure: Status | None = None
    reason: str | None = None
    plan: ShardingPlan | None = None
    weights_digest: str = ""
    training_time_s: float | None = None


def solve_task(
    prepared: PreparedSolver,
    task: ShardingTask,
    oracle: CostModel,
    seed: int,
    time_limit_s: float | None = None,
    log: ErrorLog | None = None,
) -> Attempt:
    """Let a solver solve a copy of a task and time the call, after it has warmed up once.

    Whatever the solver raises becomes a failure with a reason, except a keyboard interrupt; so does changing the task.
    Wherever the solver goes, the current folder stays.
    """
    before = task.to_json()
    copy = ShardingTask.from_json(before)
    failure: Status | None = None
    reason: str | None = None
    plan: ShardingPlan | None = None
    weights_digest = ""
    training_time_s = None
    started = utc_now()
    clock = time.perf_counter()
    cpu_clock = time.process_time()
    with contextlib.chdir(os.curdir):
        try:
            prepared.warm_up(copy, oracle)
            clock = time.perf_counter()
            cpu_clock = time.process_time()
            answer: object = call_solver(prepared.solver, copy, oracle, seed, time_limit_s=time_limit_s)
        except NO_PLAN as error:
            failure = "infeasible"
            reason = one_line(error, with_type=False)
        except (Exception, SystemExit) as error:
            failure = "error"
            reason = one_line(error)
            if log is not None:
                log(f"{prepared.spec.title}, task {task.name or task.digest[:12]}, seed {seed}", traceback.format_exc())
        seconds = time.perf_counter() - clock
        cpu_seconds = time.process_time() - cpu_clock
        if failure is None:
            plan, failure, reason = _inspect(answer, copy)
        try:
            weights_digest, training_time_s = _weights_of(prepared.solver)
        except Exception as error:  # a property may raise anything
            failure = "error"
            reason = one_line(error, with_type=not isinstance(error, InputError))
            plan = None
    try:
        is_changed = copy.to_json() != before
    except (ValueError, TypeError, AttributeError):  # changed into something that is no record any more
        is_changed = True
    if is_changed:
        failure = "error"
        reason = "the solver changed the task"
        plan = None
    return Attempt(
        prepared.spec, seed, started, seconds, cpu_seconds, failure, reason, plan, weights_digest, training_time_s
    )


def _weights_of(solver: Solver) -> tuple[str, float | None]:
    """Return the digest of a solver's weights and the seconds they took to train; raises `InputError` for nonsense."""
    digest = getattr(solver, "weights_digest", None) or ""
    if not isinstance(digest, str) or not re.fullmatch(r"([0-9a-f]{64})?", digest):
        raise InputError(f"weights_digest of the solver: expected 64 hexadecimal digits or '', got {describe(digest)}")
    seconds = getattr(solver, "training_time_s", None)
    if seconds is not None and not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
        raise InputError(f"training_time_s of the solver: expected seconds or None, got {describe(seconds)}")
    return digest, seconds


def _inspect(answer: object, task: ShardingTask) -> tuple[ShardingPlan | None, Status | None, str | None]:
    """Return plan, failure and reason of what a solver returned."""
    if not isinstance(answer, ShardingPlan):
        return None, "error", f"the solver returned {type(answer).__name__}, not a ShardingPlan"
    try:
        # Through JSON: a subclass, or a plan that was changed by force, does not get past the checks.
        plan = ShardingPlan.from_json(answer.to_json())
        plan.validate(task)
    except InfeasiblePlanError as error:
        return plan, "infeasible", one_line(error, with_type=False)
    except InputError as error:
        return None, "error", one_line(error, with_type=False)
    except Exception as error:  # a subclass with methods of its own, or fields that were changed by force
        return None, "error", f"the solver returned a broken plan: {one_line(error)}"
    return plan, None, None


def one_line(error: BaseException, with_type: bool = True) -> str:
    """Return an error as one line of at most 500 characters that UTF-8 can write."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "its message cannot be printed"
    line = f"{type(error).__name__}: {text}" if with_type and text else text or type(error).__name__
    line = line.encode(errors="backslashreplace").decode()
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 1] + "…"


@dataclass(frozen=True)
class Judge:
    """Scores the plans of all solvers for a task.

    Attributes:
        cost: the cost model that scores.
        judging: opens it to this thread; see `judges_closed`.
        run: what the results are part of.
        log: takes tracebacks.
    """

    cost: CostModel
    judging: Callable[[], AbstractContextManager[None]]
    run: RunInfo
    log: ErrorLog

    def score(
        self, task: ShardingTask, index: int, attempts: Sequence[Attempt], old: Sequence[Result] = ()
    ) -> tuple[list[Result], list[Result]]:
        """Score all plans of a task in one call, so that a measured judge interleaves them.

        Args:
            task: the task.
            index: its position in the suite.
            attempts: new ones.
            old: results of the task that are compared with them. A cost that is not deterministic measures their plans
                again, in the same call: what is compared must not have drifted apart.

        Returns:
            One result per attempt, in order, and the old results with new costs, as far as these could be had.
        """
        plans = [a.plan for a in attempts if a.failure is None and a.plan is not None]
        again: list[Result] = []
        if plans and not self.cost.deterministic:
            again = [r for r in old if r.status == "ok"]
        costs = iter(self._costs(task, [*plans, *(r.plan for r in again if r.plan is not None)]) if plans else ())
        new = [self._result(task, index, a, next(costs) if a.failure is None else None) for a in attempts]
        renewed = [dataclasses.replace(r, cost=cost) for r, cost in zip(again, costs, strict=True) if cost.feasible]
        return new, renewed

    def _costs(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        try:
            with self.judging():
                costs = self.cost.evaluate(task, plans)
        except (InputError, MissingDependencyError):
            raise  # e.g. an extra is not installed: it would fail for every other task, too
        except Exception as error:
            if not isinstance(error, MeasurementError):
                self.log(f"judge {self.run.judge}, task {task.name or task.digest[:12]}", traceback.format_exc())
            return [self.cost.no_cost(task, one_line(error))] * len(plans)
        if len(costs) != len(plans):
            raise TypeError(f"cost '{self.run.judge}' returned {len(costs)} costs for {len(plans)} plans")
        return costs

    def _result(self, task: ShardingTask, index: int, attempt: Attempt, cost: PlanCost | None) -> Result:
        status: Status = attempt.failure or "ok"
        reason = attempt.reason
        if cost is not None and not cost.feasible:
            status = "unmeasured"
            reason = cost.reason
        if attempt.plan is not None and reason is not None and cost is None:
            cost = self.cost.no_cost(task, reason)
        return Result(
            suite=self.run.suite,
            task_index=index,
            task_hash=task.digest,
            solver=attempt.spec.title,
            made_from=attempt.spec.made_from,
            solver_settings=dict(attempt.spec.settings),
            weights_digest=attempt.weights_digest,
            training_time_s=attempt.training_time_s,
            seed=attempt.seed,
            judge=self.run.judge,
            judge_settings=self.run.judge_settings,
            oracle=self.run.oracle,
            hardware=self.run.hardware,
            status=status,
            reason=reason,
            plan=attempt.plan,
            cost=cost,
            solve_time_s=attempt.seconds,
            cpu_time_s=attempt.cpu_seconds,
            time_limit_s=self.run.time_limit_s,
            started=attempt.started,
            versions=versions(),
            commit=commit(),
        )
