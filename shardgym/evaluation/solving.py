"""One call of a solver: what it answers, as plain data that crosses processes, and the attempt that this amounts to."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass as record

from shardgym.arguments import describe
from shardgym.costs.base import CostModel
from shardgym.errors import NO_PLAN, InfeasiblePlanError, InputError, one_line
from shardgym.evaluation.result import Status
from shardgym.evaluation.solver_spec import SolverSpec, resolved_settings, source_digest
from shardgym.plan import ShardingPlan
from shardgym.provenance import utc_now
from shardgym.records import CONFIG, Label, OneLine, Record
from shardgym.solver import Solver, call_solver, check_ready, warm_up
from shardgym.task import ShardingTask

#: Takes a heading and a traceback.
ErrorLog = Callable[[str, str], None]


@record(frozen=True, config=CONFIG)
class Answer(Record):
    """What a solver's call came to, JSON-ready: the process that solves sends it to the one that keeps records.

    Its fields are those of a `Result`, and as strict: what no record can hold is found here, where it costs one plan.

    Attributes:
        started: UTC.
        seconds: that the call took, without warming up.
        cpu_seconds: processor time of that, over all threads of the process that solved.
        failure: None when the solver returned something.
        reason: one line, why it failed.
        trace: traceback of an error.
        plan: JSON of the plan that it returned.
        weights_digest: of the weights that the solver solved with; "" when it has none.
        training_time_s: that these took to train; None where not known.
    """

    started: Label
    seconds: Annotated[float, Field(ge=0)]
    cpu_seconds: Annotated[float, Field(ge=0)]
    failure: Literal["infeasible", "error"] | None = None
    reason: OneLine | None = None
    trace: str | None = None
    plan: str | None = None
    weights_digest: str = ""
    training_time_s: Annotated[float, Field(ge=0)] | None = None


@dataclass(frozen=True)
class SolverFacts:
    """What a solver turned out to be when it was made, JSON-ready.

    Attributes:
        settings: all arguments that its class was called with, defaults too.
        source_digest: SHA-256 of the file that its class is defined in; "" where there is none.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    source_digest: str = ""

    @classmethod
    def of(cls, solver: Solver, settings: Mapping[str, Any]) -> SolverFacts:
        """Look at a solver that was made with settings."""
        made_by = type(solver)
        return cls(resolved_settings(made_by, settings), source_digest(made_by))

    def differs_from(self, recorded: str) -> bool:
        """Say whether the source digest of a record is another one; without a file nothing differs."""
        return bool(recorded) and bool(self.source_digest) and recorded != self.source_digest


@dataclass(frozen=True)
class Attempt:
    """What a solver returned for a task, checked and not yet scored.

    Attributes:
        spec: who solved.
        seed: given to the solver.
        answer: what the solver said.
        facts: what the solver is.
        failure: status other than "ok"; None for a feasible plan.
        reason: one line, why it failed.
        plan: None when there is none for this task.
        timed_out: whether the solver was stopped because it took too long.
    """

    spec: SolverSpec
    seed: int
    answer: Answer
    facts: SolverFacts
    failure: Status | None = None
    reason: str | None = None
    plan: ShardingPlan | None = None
    timed_out: bool = False


class InlineSolver:
    """A solver in this process: inside of a `SolverProcess`, or by itself for debuggers and systems without fork.

    It warms up before its first task; where that fails, it tries again before the next one. By itself, what ends it
    ends the run.

    Args:
        spec: what it is made from.
        oracle: what it may query.
        caught: exceptions of the solver that become failures.
    """

    def __init__(
        self, spec: SolverSpec, oracle: CostModel, caught: tuple[type[BaseException], ...] = (Exception, SystemExit)
    ) -> None:
        self.spec = spec
        self.facts = SolverFacts()
        self._oracle = oracle
        self._caught = caught
        self._solver: Solver | None = None
        self._is_warm = False

    def start(self) -> None:
        """Make the solver; raises what `make_solver` does, and what its `check_ready` refuses."""
        solver = self.spec.make()
        check_ready(solver, self._oracle)
        self.facts = SolverFacts.of(solver, self.spec.settings)
        self._solver = solver

    def wait_until_made(self) -> None:
        """Return at once."""

    def solve(self, task: ShardingTask, seed: int, time_limit_s: float | None, log: ErrorLog | None) -> Attempt:
        """Let the solver solve a task; a keyboard interrupt gets through. `log` takes a traceback."""
        answer = self.answer(task.to_json(), seed, time_limit_s)
        return attempt_of(self.spec, self.facts, seed, task, answer, log)

    def close(self) -> None:
        """Forget the solver."""
        self._solver = None

    def answer(self, task_json: str, seed: int, time_limit_s: float | None) -> Answer:
        """Call the solver with a task of its own, and time the call.

        Whatever the solver raises becomes a failure with a reason; so does changing the task. Wherever the solver goes,
        the current folder stays.
        """
        solver = self._solver
        assert solver is not None
        task = ShardingTask.from_json(task_json)
        found: dict[str, Any] = {}  # fields of the answer
        started = utc_now()
        clock = time.perf_counter()
        cpu_clock = time.process_time()
        with contextlib.chdir(os.curdir):
            try:
                if not self._is_warm:
                    warm_up(solver, task, self._oracle)
                    self._is_warm = True
                clock = time.perf_counter()
                cpu_clock = time.process_time()
                returned: object = call_solver(solver, task, self._oracle, seed, time_limit_s=time_limit_s)
            except NO_PLAN as error:
                found = {"failure": "infeasible", "reason": one_line(error, with_type=False)}
            except self._caught as error:
                found = {"failure": "error", "reason": one_line(error), "trace": traceback.format_exc()}
            seconds = time.perf_counter() - clock
            cpu_seconds = time.process_time() - cpu_clock
            try:
                if not found:
                    found["plan"] = _plan_json(returned)
                found["weights_digest"], found["training_time_s"] = _weights_of(solver)
            except Exception as error:  # a property may raise anything
                reason = one_line(error, with_type=not isinstance(error, InputError))
                found |= {"failure": "error", "reason": reason, "plan": None}
        try:
            is_changed = task.to_json() != task_json
        except (ValueError, TypeError, AttributeError):  # changed into something that is no record any more
            is_changed = True
        if is_changed:
            found |= {"failure": "error", "reason": "the solver changed the task", "plan": None}
        try:
            return Answer(started, seconds, cpu_seconds, **found)
        except InputError as error:  # e.g. the solver replaced the clock
            reason = f"its call cannot be recorded: {one_line(error, with_type=False)}"
            return Answer(started, 0.0, 0.0, "error", reason)


def _plan_json(returned: object) -> str:
    """Return the JSON of what a solver returned; raises `InputError` when it is no plan."""
    if not isinstance(returned, ShardingPlan):
        raise InputError(f"the solver returned {type(returned).__name__}, not a ShardingPlan")
    try:
        return str(returned.to_json())
    except Exception as error:  # a subclass with methods of its own, or fields that were changed by force
        raise InputError(f"the solver returned a broken plan: {one_line(error)}") from None


def _weights_of(solver: Solver) -> tuple[str, float | None]:
    """Return the digest of a solver's weights and the seconds they took to train; raises `InputError` for nonsense."""
    digest = getattr(solver, "weights_digest", None) or ""
    if not isinstance(digest, str) or not re.fullmatch(r"([0-9a-f]{64})?", digest):
        raise InputError(f"weights_digest of the solver: expected 64 hexadecimal digits or '', got {describe(digest)}")
    seconds = getattr(solver, "training_time_s", None)
    if seconds is not None and not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
        raise InputError(f"training_time_s of the solver: expected seconds or None, got {describe(seconds)}")
    return digest, seconds


def attempt_of(
    spec: SolverSpec, facts: SolverFacts, seed: int, task: ShardingTask, answer: Answer, log: ErrorLog | None
) -> Attempt:
    """Check the plan of an answer, in the process that keeps records, where no solver can change how; log its trace."""
    if answer.trace is not None and log is not None:
        log(f"{spec.title}, task {task.name or task.digest[:12]}, seed {seed}", answer.trace)
    attempt = Attempt(spec, seed, answer, facts)
    if answer.plan is None:
        reason = answer.reason or "the solver returned nothing"
        return replace(attempt, failure=answer.failure or "error", reason=reason)
    try:
        plan = ShardingPlan.from_json(answer.plan)
    except InputError as error:
        return replace(attempt, failure="error", reason=f"the solver returned a broken plan: {one_line(error)}")
    try:
        plan.validate(task)
    except InfeasiblePlanError as error:
        return replace(attempt, failure="infeasible", reason=one_line(error, with_type=False), plan=plan)
    except InputError as error:
        return replace(attempt, failure="error", reason=one_line(error, with_type=False))
    return replace(attempt, plan=plan)
