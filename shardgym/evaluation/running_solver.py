"""RunningSolver: a solver at work, in a process of its own or in this one, and what it answers as results.

In a process of its own, whatever ends a solver, or keeps it from ending, costs one plan. Solver and oracle are pickled
for it. An oracle that measures has processes and devices of its own, so that solvers which ask it work here.

Time is taken here, from the question to the answer, and processor time from the system.

First in this file is the side of the run, then what happens where the solver is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import re
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from shardgym.costs.base import CostModel
from shardgym.errors import NO_PLAN, InfeasiblePlanError, InputError, ShardGymError, one_line
from shardgym.evaluation.result import Result
from shardgym.evaluation.solver import Solver, call_solver, check_ready, warm_up
from shardgym.evaluation.solver_spec import SolverSpec, resolved_settings, source_digest
from shardgym.machine import utc_now
from shardgym.plans.plan import ShardingPlan
from shardgym.processes import CAN_FORK, Child, ChildError, Handler
from shardgym.records import short_repr
from shardgym.tasks.task import ShardingTask

#: Seconds that the making of a solver may take; weights are loaded and code is compiled later, as it warms up.
_MAKE_S = 300.0
#: Fields of a result that a solver's answer may have.
_ANSWERED = ("status", "reason", "weights_digest", "training_time_s")
#: Takes a heading and a traceback.
ErrorLog = Callable[[str, str], None]

logger = logging.getLogger(__name__)


class RunningSolver:
    """A solver that is asked for plans. Its process is replaced when it dies.

    Args:
        spec: what the solver is made from; it is made where it works.
        oracle: what it may query.
        timeout_s: seconds that a plan may take, warming up included.
        isolate: whether it works in a process of its own. Otherwise what ends it ends the run, and nothing stops it.

    Attributes:
        spec: what the solver is made from.
        facts: fields of its results: all arguments of its class, and the digest of the file that the class is in.
        timed_out: whether it was stopped in the last call because that took too long.

    Raises:
        InputError: this system cannot isolate solvers, or this oracle cannot be asked from another process.
    """

    def __init__(
        self,
        spec: SolverSpec,
        oracle: CostModel,
        *,
        timeout_s: float,
        isolate: bool = True,
    ) -> None:
        if isolate and not CAN_FORK:
            raise InputError("isolate: this system has no fork, so solvers work in this process: leave it out")
        if isolate and not oracle.deterministic:
            raise InputError(
                f"isolate: oracle '{oracle.name}' measures in processes of this one, so solvers work here: leave it out"
            )
        self.spec = spec
        self.facts: dict[str, Any] = {}
        self.timed_out = False
        self._oracle = oracle
        self._timeout_s = timeout_s
        self._isolate = isolate
        self._child: Child | None = None
        self._made = False
        self._scratch: str | None = None
        self._here: Handler | None = None

    def start(self) -> None:
        """Start the process, which makes the solver while this one goes on; without a process, make it here.

        Raises:
            InputError, MissingDependencyError: it cannot be made here.
        """
        if not self._isolate:
            caught = (Exception, SystemExit)
            self._here, self.facts = _make(self.spec, self._oracle, caught)
            self._made = True
            return
        self._scratch = tempfile.mkdtemp(prefix="shardgym-")
        try:
            self._child = Child(__name__, (self.spec, self._oracle, self._scratch))
        except InputError as error:
            self.close()
            raise InputError(
                f"solver '{self.spec.title}' or its oracle {error}: give a name or module:Class, or let solvers "
                "work in this process (isolate=False, --no-isolate)"
            ) from None
        self._made = False

    def wait_until_made(self) -> None:
        """Wait until the solver is made.

        Raises:
            InputError: it cannot be made; its process has ended.
        """
        if self._made or self._child is None:
            return
        try:
            kind, facts = self._child.receive(_MAKE_S)
        except ChildError as error:
            raise InputError(f"solver '{self.spec.title}' cannot be made: {error}") from None
        if kind != "ok" or not isinstance(facts, dict):
            self.close()
            raise InputError(str(facts))
        self.facts = facts
        self._made = True

    def solve(self, task: ShardingTask, asked: Result, log: ErrorLog | None = None) -> Result:
        """Let the solver solve a task. Its end, and its taking too long, become a failure with a reason.

        Args:
            task: the task.
            asked: a result without a plan: of this task and solver, with seed and time limit.
            log: takes tracebacks.

        Returns:
            `asked` with what came of it. A feasible plan is "unmeasured": no judge has scored it.
        """
        subject = task.name or f"task {task.digest[:12]}"
        started = utc_now()
        clock = time.perf_counter()
        cpu_clock = 0.0
        self.timed_out = False
        try:
            self._start_again_if_dead()
            deadline = time.monotonic() + self._timeout_s
            cpu_clock = self._cpu_seconds() or 0.0
            clock = time.perf_counter()
            answer = self._ask(("prepare", task.to_json()), deadline)
            started = utc_now()
            cpu_clock = self._cpu_seconds() or 0.0
            clock = time.perf_counter()
            answer = answer or self._ask(("solve", asked.seed, asked.time_limit_s), deadline)
            seconds = time.perf_counter() - clock
            cpu_seconds = self._cpu_seconds()
        except (InputError, ChildError) as error:
            seconds = time.perf_counter() - clock
            cpu_seconds = self._cpu_seconds()
            self.timed_out = self._child is not None and self._child.timed_out
            self.close()
            reason = one_line(error, with_type=False)
            answer = {"status": "error", "reason": reason}
            logger.warning("%s on %s, seed %d: %s; the run goes on", self.spec.title, subject, asked.seed, reason)
        if log is not None and isinstance(answer.get("trace"), str):
            log(f"{self.spec.title}, task {task.name or task.digest[:12]}, seed {asked.seed}", answer["trace"])
        taken = None if cpu_seconds is None else max(0.0, cpu_seconds - cpu_clock)
        asked = dataclasses.replace(asked, started=started, solve_time_s=seconds, cpu_time_s=taken)
        return _checked(task, asked, self.facts, answer)

    def close(self) -> None:
        """End the process at once, and what it started in its process group; remove its temporary files."""
        self._here = None
        self._made = False
        if self._child is not None:
            self._child.kill()
            self._child = None
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def _start_again_if_dead(self) -> None:
        """See to a living process: one that ended after its last answer is not to be blamed on this task."""
        if self._child is not None and self._child.dead:
            self.close()
        if self._child is None and self._here is None:
            self.start()
        self.wait_until_made()

    def _ask(self, message: tuple[Any, ...], deadline: float) -> dict[str, Any]:
        if self._here is not None:
            return dict(self._here(message))
        assert self._child is not None
        self._child.send(message)
        kind, value = self._child.receive(self._timeout_s, deadline)
        if kind != "ok" or not isinstance(value, dict):
            raise InputError(f"its process answered '{kind}': {value}")
        return value

    def _cpu_seconds(self) -> float | None:
        if self._child is None:
            return None if self._isolate else time.process_time()
        return self._child.cpu_seconds()


def _checked(task: ShardingTask, asked: Result, facts: dict[str, Any], answer: dict[str, Any]) -> Result:
    """Return a result with an answer, which is checked here, where no solver can change how."""
    fields = {name: answer[name] for name in _ANSWERED if name in answer}
    plan: ShardingPlan | None = None
    if answer.get("plan") is not None:
        try:
            plan = ShardingPlan.from_json(answer["plan"])
            plan.validate(task)
            fields |= {"status": "unmeasured", "reason": "no judge has scored it"}
        except InfeasiblePlanError as error:
            fields |= {"status": "infeasible", "reason": one_line(error, with_type=False)}
        except InputError as error:
            why = one_line(error, with_type=False)
            fields |= {"status": "error", "reason": why if plan else f"the solver returned a broken plan: {why}"}
            plan = None
    if plan is None and fields.get("status") not in ("infeasible", "error"):
        fields |= {"status": "error", "reason": "the solver returned nothing"}
    try:
        return dataclasses.replace(asked, plan=plan, **facts, **fields)
    except (InputError, TypeError) as error:
        reason = f"its answer cannot be recorded: {one_line(error, with_type=False)}"
        return dataclasses.replace(asked, status="error", reason=reason)


# --- where the solver is ----------------------------------------------------------------------------------------------


def start(settings: tuple[SolverSpec, CostModel, str]) -> tuple[Handler, dict[str, Any]]:
    """Make the solver in a process of its own; raises `InputError` for whatever it raises."""
    spec, oracle, tempfile.tempdir = settings
    os.environ["TMPDIR"] = str(tempfile.tempdir)
    try:
        return _make(spec, oracle, (BaseException,))
    except ShardGymError:
        raise
    except BaseException as error:
        raise InputError(f"solver '{spec.title}' cannot be made: {one_line(error)}") from None


def _make(
    spec: SolverSpec, oracle: CostModel, caught: tuple[type[BaseException], ...]
) -> tuple[Handler, dict[str, Any]]:
    """Make a solver; return what asks it, and facts about it."""
    solver = spec.make()
    check_ready(solver, oracle)
    made_by = type(solver)
    facts = {"resolved_settings": resolved_settings(made_by, spec.settings), "source_digest": source_digest(made_by)}
    return _Solving(solver, oracle, caught), facts


class _Solving:
    """Asks a solver, and makes plain data of whatever it does.

    Args:
        solver: is asked. It warms up before its first task; where that fails, it tries again before the next one.
        oracle: what it may query.
        caught: exceptions that become failures.
    """

    def __init__(self, solver: Solver, oracle: CostModel, caught: tuple[type[BaseException], ...]) -> None:
        self._solver = solver
        self._oracle = oracle
        self._caught = caught
        self._is_warm = False
        self._task: ShardingTask | None = None
        self._task_json = ""

    def __call__(self, message: Sequence[Any]) -> dict[str, Any]:
        """Return fields of a result, the traceback of an error, or nothing when all is prepared."""
        name, *arguments = message
        with contextlib.chdir(os.curdir):  # wherever the solver goes, the current folder stays
            return self._prepare(*arguments) if name == "prepare" else self._solve(*arguments)

    def _prepare(self, task_json: str) -> dict[str, Any]:
        self._task_json = task_json
        self._task = ShardingTask.from_json(task_json)
        if self._is_warm:
            return {}
        _, failure = self._call(lambda task: warm_up(self._solver, task, self._oracle))
        self._is_warm = not failure
        return failure

    def _solve(self, seed: int, time_limit_s: float | None) -> dict[str, Any]:
        returned, found = self._call(
            lambda task: call_solver(self._solver, task, self._oracle, seed, time_limit_s=time_limit_s)
        )
        try:
            if not found:
                found["plan"] = _plan_json(returned)
            found |= _weights_of(self._solver)
        except Exception as error:  # a property may raise anything
            reason = one_line(error, with_type=not isinstance(error, InputError))
            found |= {"status": "error", "reason": reason, "plan": None}
        try:
            is_changed = self._task is None or self._task.to_json() != self._task_json
        except (ValueError, TypeError, AttributeError):  # changed into something that is no record any more
            is_changed = True
        if is_changed:
            found |= {"status": "error", "reason": "the solver changed the task", "plan": None}
        return found

    def _call(self, function: Callable[[ShardingTask], Any]) -> tuple[Any, dict[str, Any]]:
        """Return what a call returned, or why it failed."""
        assert self._task is not None
        try:
            return function(self._task), {}
        except NO_PLAN as error:
            return None, {"status": "infeasible", "reason": one_line(error, with_type=False)}
        except self._caught as error:
            return None, {"status": "error", "reason": one_line(error), "trace": traceback.format_exc()}


def _plan_json(returned: object) -> str:
    """Return the JSON of what a solver returned; raises `InputError` when it is no plan."""
    if not isinstance(returned, ShardingPlan):
        raise InputError(f"the solver returned {type(returned).__name__}, not a ShardingPlan")
    try:
        return str(returned.to_json())
    except Exception as error:  # a subclass with methods of its own, or fields that were changed by force
        raise InputError(f"the solver returned a broken plan: {one_line(error)}") from None


def _weights_of(solver: Solver) -> dict[str, Any]:
    """Return the digest of a solver's weights and the seconds they took to train; raises `InputError` for nonsense."""
    digest = getattr(solver, "weights_digest", None) or ""
    if not isinstance(digest, str) or not re.fullmatch(r"([0-9a-f]{64})?", digest):
        raise InputError(f"weights_digest of the solver: expected a SHA-256 or '', got {short_repr(digest)}")
    seconds = getattr(solver, "training_time_s", None)
    if seconds is not None and not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
        raise InputError(f"training_time_s of the solver: expected seconds or None, got {short_repr(seconds)}")
    return {"weights_digest": digest, "training_time_s": seconds}
