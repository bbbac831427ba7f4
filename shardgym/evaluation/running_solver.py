"""RunningSolver: a solver at work, in a process of its own or in this one, and its answers.

In a process of its own, a solver that crashes or hangs loses only one plan. Solver and oracle are pickled for it. An
oracle that measures has processes and devices of its own, so solvers that query it run in this process.

This process takes the time, from the call to the answer; processor time comes from the system.
"""

import logging
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from shardgym.costs.base import CostModel
from shardgym.errors import NO_PLAN, InfeasiblePlanError, InputError, ShardGymError, one_line
from shardgym.evaluation.result import Status
from shardgym.evaluation.solver import call_solver, check_ready, warm_up
from shardgym.evaluation.solver_spec import SolverSpec, resolved_settings, source_digest
from shardgym.machine import utc_now
from shardgym.plans.plan import ShardingPlan
from shardgym.processes import CAN_FORK, Child, ChildError, Handler
from shardgym.tasks.task import ShardingTask

#: Seconds that the making of a solver may take; weights are loaded and code is compiled later, as it warms up.
_MAKE_S = 300.0

logger = logging.getLogger(__name__)


class Answer(NamedTuple):
    """A solver's answer for one task."""

    started: str
    solve_time_s: float
    cpu_time_s: float | None  #: of all its threads; None where that is not known
    status: Status  #: "unmeasured" where there is a feasible plan
    reason: str
    plan: ShardingPlan | None = None  #: also one that is not feasible
    trace: str = ""  #: traceback of an error
    weights_digest: Any = ""
    training_time_s: Any = None


class RunningSolver:
    """A solver that makes plans. If its process dies, a new one replaces it.

    Args:
        spec: how to make the solver, in the process in which it runs.
        oracle: the cost model that it may query.
        timeout_s: seconds that a plan may take, warming up included.
        isolate: whether it runs in a process of its own. Otherwise its crash ends the run, and there is no timeout.
            None: True if the system has fork and the oracle does not measure.

    Raises:
        InputError: this system cannot isolate solvers, or this oracle cannot be asked from another process.
    """

    def __init__(self, spec: SolverSpec, oracle: CostModel, *, timeout_s: float, isolate: bool | None = None) -> None:
        if isolate and not (CAN_FORK and oracle.deterministic):
            why = f"oracle '{oracle.name}' measures" if CAN_FORK else "this system has no fork"
            raise InputError(f"isolate: {why}, so solvers run in this process: leave it out")
        self.spec = spec
        #: Fields of its results: all arguments of its class, and digests of the file that the class is in and of its
        #: weights, "" unless it loads them when it is made. What an answer says comes first.
        self.facts: dict[str, Any] = {}
        self._oracle = oracle
        self._timeout_s = timeout_s
        self._isolate = CAN_FORK and oracle.deterministic if isolate is None else isolate
        self._child: Child | None = None
        self._made = False
        self._scratch: str | None = None
        self._here: Handler | None = None

    def start(self) -> None:
        """Start the process, which makes the solver while this one goes on; without a process, make it here."""
        if not self._isolate:
            self._here, self.facts = _make(self.spec, self._oracle, (Exception, SystemExit))
            return
        self._scratch = tempfile.mkdtemp(prefix="shardgym-")
        try:
            self._child = Child(__name__, (self.spec, self._oracle, self._scratch))
        except InputError as error:
            self.close()
            raise InputError(
                f"solver '{self.spec.title}' or its oracle {error}: give a name or module:Class, or run solvers in "
                "this process (isolate=False, --no-isolate)"
            ) from None

    def wait_until_made(self) -> None:
        """Wait until the solver is made; raises `InputError` where it cannot be made."""
        if self._made or self._child is None:
            return
        try:
            kind, facts = self._child.receive(_MAKE_S)
        except ChildError as error:
            raise InputError(f"solver '{self.spec.title}' cannot be made: {error}") from None
        if kind != "ok":
            self.close()
            raise InputError(str(facts))
        self.facts = facts
        if self.spec.given is not None:  # the process may have it by its value, without its file
            given = self.spec.given
            self.facts["source_digest"] = source_digest(given if isinstance(given, type) else type(given))
        self._made = True

    def solve(self, task: ShardingTask, seed: int, time_limit_s: float | None = None) -> Answer:
        """Let the solver solve a task. A crash or a timeout becomes an error with a reason."""
        started = utc_now()
        clock = time.perf_counter()
        cpu_clock = 0.0
        try:
            if self._child is not None and self._child.dead:  # after its last answer: this task is not to blame
                self.close()
            if self._child is None and self._here is None:
                self.start()
            self.wait_until_made()
            deadline = time.monotonic() + self._timeout_s
            clock = time.perf_counter()
            cpu_clock = self._cpu_seconds() or 0.0
            found = self._ask(("prepare", task.to_json()), deadline)
            started = utc_now()
            clock = time.perf_counter()
            cpu_clock = self._cpu_seconds() or 0.0
            found = found or self._ask(("solve", seed, time_limit_s), deadline)
            seconds = time.perf_counter() - clock
            cpu_seconds = self._cpu_seconds()
        except (InputError, ChildError) as error:
            seconds = time.perf_counter() - clock
            cpu_seconds = self._cpu_seconds()
            self.close()
            found = {"status": "error", "reason": one_line(error, with_type=False)}
            subject = task.name or f"task {task.digest[:12]}"
            logger.warning("%s on %s, seed %d: %s; the run continues", self.spec.title, subject, seed, found["reason"])
        taken = None if cpu_seconds is None else max(0.0, cpu_seconds - cpu_clock)
        return Answer(started, seconds, taken, **_checked(task, found))

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

    def _ask(self, message: tuple[Any, ...], deadline: float) -> dict[str, Any]:
        if self._here is not None:
            return dict(self._here(message))
        assert self._child is not None
        self._child.send(message)
        kind, value = self._child.receive(self._timeout_s, deadline)
        if kind != "ok":
            raise InputError(f"its process answered '{kind}': {value}")
        return dict(value)

    def _cpu_seconds(self) -> float | None:
        if self._child is None:
            return None if self._isolate else time.process_time()
        return self._child.cpu_seconds()


@contextmanager
def running_solvers(
    specs: Sequence[SolverSpec], oracle: CostModel, timeout_s: float, isolate: bool | None
) -> Iterator[list[RunningSolver]]:
    """Make every solver before anything is solved, so that a wrong setting costs no time, and end them afterwards."""
    if isolate is None and not CAN_FORK:
        logger.warning("this system has no fork: a crash of a solver ends the run, and there is no timeout")
    with ExitStack() as stack:
        running = [RunningSolver(spec, oracle, timeout_s=timeout_s, isolate=isolate) for spec in specs]
        for solver in running:
            stack.callback(solver.close)
            solver.start()
        for solver in running:
            solver.wait_until_made()
        yield running


def _checked(task: ShardingTask, found: dict[str, Any]) -> dict[str, Any]:
    """Return fields of an answer with its plan, which is checked in this process, out of the solver's reach."""
    if "status" in found:
        return found
    try:
        plan = ShardingPlan.from_json(found["plan"])
        found |= {"plan": plan, "status": "unmeasured", "reason": "no judge has scored it"}
        plan.validate(task)
    except InfeasiblePlanError as error:
        found |= {"status": "infeasible", "reason": one_line(error, with_type=False)}
    except InputError as error:
        found |= {"status": "error", "reason": one_line(error, with_type=False), "plan": None}
    return found


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
    """Make a solver; return a function that calls it and answers with plain data, and facts about it."""
    solver = spec.make()
    check_ready(solver, oracle)
    made_by = type(solver)
    facts = {
        "resolved_settings": resolved_settings(made_by, spec.settings),
        "source_digest": source_digest(made_by),
        "weights_digest": getattr(solver, "weights_digest", None) or "",
    }
    is_warm = False
    task: ShardingTask

    def prepare(task_json: str) -> dict[str, Any]:
        nonlocal is_warm, task
        task = ShardingTask.from_json(task_json)
        if not is_warm:  # where that failed, it tries again before the next task
            warm_up(solver, task, oracle)
            is_warm = True
        return {}

    def solve(seed: int, time_limit_s: float | None) -> dict[str, Any]:
        plan = call_solver(solver, task, oracle, seed, time_limit_s=time_limit_s)
        if not isinstance(plan, ShardingPlan):
            reason = f"the solver returned {type(plan).__name__}, not a ShardingPlan"
            return {"status": "error", "reason": reason}
        return {"plan": plan.to_json()}

    calls: dict[str, Callable[..., dict[str, Any]]] = {"prepare": prepare, "solve": solve}

    def answer(message: Sequence[Any]) -> dict[str, Any]:
        name, *arguments = message
        try:
            found = calls[name](*arguments)
        except NO_PLAN as error:
            found = {"status": "infeasible", "reason": one_line(error, with_type=False)}
        except caught as error:
            found = {"status": "error", "reason": one_line(error), "trace": traceback.format_exc()}
        if found:
            found["weights_digest"] = getattr(solver, "weights_digest", None) or ""
            found["training_time_s"] = getattr(solver, "training_time_s", None)
        return found

    return answer, facts
