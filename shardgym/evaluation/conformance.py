"""What every solver must do, checked on small tasks: `check_solver`.

Each task has something that trips a solver. A solver is asked twice with the same seed, once from a fresh start, and
once with another seed; every call is watched, and held against every rule.
"""

import contextlib
import copy
import ctypes
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from shardgym.costs.base import CostModel, make_cost
from shardgym.errors import NO_PLAN, InputError, ShardGymError, one_line
from shardgym.evaluation.solver import Solver, call_solver, make_solver, takes, warm_up
from shardgym.plans.feasibility import cover_problems, memory_problems
from shardgym.plans.plan import ShardingPlan
from shardgym.registry import construct
from shardgym.tables.table import EmbeddingTable, ZipfIds
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology

__all__ = ["Check", "ConformanceReport", "check_solver"]

#: Bytes of one table of `_equal_tables` in FP32 without optimiser state.
_UNIT = 64_000
_STDOUT = 1
_RESULTS = {True: "ok", False: "FAILED", None: "not run"}


class Case(NamedTuple):
    """A task, and whether it has a plan."""

    name: str
    task: ShardingTask
    feasible: bool = True  #: then placing whole tables in any order on devices with room succeeds


@dataclass
class SolverCall:
    """One watched call."""

    case: Case
    kind: str  #: "first", "again", "fresh", "other seed", "time limit" or "no time limit"
    first: ShardingPlan | None  #: of the first call for this task
    returned: object = None
    error: BaseException | None = None
    seconds: float = 0.0
    hung: bool = False
    printed: str = ""
    changed_generators: tuple[str, ...] = ()  #: global ones that it drew from or seeded
    task_changed: bool = False

    @property
    def plan(self) -> ShardingPlan | None:
        """What was returned, if it is a plan."""
        return self.returned if isinstance(self.returned, ShardingPlan) else None

    @property
    def is_due(self) -> bool:
        """Whether there is a plan, and the call with the usual seed came to an end."""
        return self.case.feasible and not self.hung and self.kind != "other seed"

    @property
    def outcome(self) -> str:
        """What came back, in words."""
        if self.error is not None:
            return f"raised {one_line(self.error)[:200]}{_place(self.error)}"
        return "returned a plan" if self.plan else f"returned {type(self.returned).__name__}, not a ShardingPlan"


@dataclass(frozen=True)
class Check:
    """The outcome of one rule."""

    name: str
    ok: bool | None  #: whether it held; None when it could not be told
    detail: str  #: what was looked at, or the first thing that went wrong


@dataclass(frozen=True)
class ConformanceReport:
    """All checks of one solver."""

    solver: str
    oracle: str  #: name of the cost model that it could query
    rows: tuple[Check, ...]  #: in the order of `RULES`, and the time limit

    @property
    def ok(self) -> bool:
        """Whether every check was run and held."""
        return all(row.ok for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready lists and dictionaries."""
        checks = [asdict(row) for row in self.rows]
        return {"solver": self.solver, "oracle": self.oracle, "ok": self.ok, "checks": checks}

    def table(self) -> str:
        """Return the report as a plain-text table, one line per check, and the oracle."""
        rows = [(row.name, _RESULTS[row.ok], row.detail) for row in self.rows]
        table = tabulate(rows, headers=("check", "result", "detail"), disable_numparse=True)
        return f"{table}\noracle, the cost that the solver could query: {self.oracle}"


# --- rules: the calls that each one checks, and what is wrong with a call, "" if nothing is ---


def _lacks_plan(call: SolverCall) -> str:
    # An exact solver may refuse the long task.
    is_refused = call.kind.endswith("time limit") and isinstance(call.error, InputError)
    there_is_one = "; whole tables fit here in any order" if isinstance(call.error, NO_PLAN) else ""
    return "" if call.plan or is_refused else call.outcome + there_is_one


def _wrong_cover(call: SolverCall, plan: ShardingPlan | None) -> str:
    task = call.case.task
    if plan is None:
        return call.outcome
    if plan.task_hash != task.digest:
        return f"the plan is for task {plan.task_hash[:12]}, not for {task.digest[:12]}"
    return next(iter(cover_problems(task, plan.shards, plan.group_size)), "")


def _overfull(call: SolverCall, plan: ShardingPlan | None) -> str:
    return "" if plan is None else next(memory_problems(call.case.task, plan.shards), "")


def _invalid(call: SolverCall, plan: ShardingPlan | None) -> str:
    return _wrong_cover(call, plan) or _overfull(call, plan)


def _unreported(call: SolverCall) -> str:
    expected = "no plan is feasible: expected NoFeasiblePlanError or InfeasiblePlanError"
    return "" if isinstance(call.error, NO_PLAN) else f"{call.outcome}; {expected}"


def _any(_call: SolverCall) -> bool:
    return True


RULES: dict[str, tuple[Callable[[SolverCall], bool], Callable[[SolverCall], str]]] = {
    "returns_plan": (lambda call: call.is_due, _lacks_plan),
    "plan_is_valid": (lambda call: call.is_due and call.plan is not None, lambda call: _wrong_cover(call, call.plan)),
    "memory_respected": (lambda call: call.is_due and call.plan is not None, lambda call: _overfull(call, call.plan)),
    "same_seed_same_plan": (
        lambda call: call.kind in ("again", "fresh") and None not in (call.plan, call.first),
        lambda call: "" if call.plan == call.first else f"another plan when asked {call.kind}",
    ),
    "other_seeds_valid": (
        lambda call: call.kind == "other seed" and not call.hung and not _invalid(call, call.first),
        lambda call: _invalid(call, call.plan),
    ),
    "task_unchanged": (_any, lambda call: "the task was changed" if call.task_changed else ""),
    "infeasible_reported": (lambda call: not call.case.feasible and not call.hung, _unreported),
    "silent": (_any, lambda call: f"printed {call.printed[:60]!r}" if call.printed else ""),
    "global_random_untouched": (
        _any,
        lambda call: " and ".join(f"changed the state of {name}" for name in call.changed_generators),
    ),
}


def check_solver(
    solver: str | type[Solver] | Solver,
    oracle: CostModel | None = None,
    *,
    settings: dict[str, Any] | None = None,
    time_limit_s: float = 1.0,
    grace_s: float = 5.0,
    hang_s: float = 60.0,
    progress: bool = False,
) -> ConformanceReport:
    """Check that a solver keeps the rules of `shardgym.evaluation.solver.Solver`.

    The solver runs in a thread of this process. One that hangs is told to stop, and no further calls are made.

    Args:
        solver: a registered name, `module:Class`, a class, or an object (which is copied for fresh starts).
        oracle: deterministic cost model that the solver may query; the default is "roofline".
        settings: keyword arguments for the solver's class.
        time_limit_s: limit given to solvers that take one.
        grace_s: seconds that such a solver may take on top.
        hang_s: seconds after which any other call counts as hung.
        progress: show on standard error how many calls were made.

    Raises:
        InputError: `oracle` is not deterministic or is for scoring only, or the solver cannot be made.
        UnknownNameError: no such solver.
    """
    oracle = oracle if oracle is not None else make_cost("roofline")
    if not oracle.deterministic:
        raise InputError(f"oracle '{oracle.name}' is not deterministic: give one that is, such as roofline")
    if oracle.scores_only:
        raise InputError(f"oracle '{oracle.name}' has role 'judge', which is for scoring: expected an oracle")
    calls: list[SolverCall] = []
    made = _make_calls(_factory(solver, settings or {}), oracle, time_limit_s, max(hang_s, time_limit_s + grace_s))
    for call in tqdm(made, desc="checking", unit="call", leave=False, disable=None if progress else True):
        calls.append(call)
        if call.hung:
            break
    checks = [_checked(name, calls) for name in RULES]
    cls = solver if isinstance(solver, type) else type(solver)
    name = solver if isinstance(solver, str) else f"{cls.__module__}:{cls.__qualname__}"
    return ConformanceReport(name, oracle.name, (*checks, _check_time(calls[-1], time_limit_s, grace_s)))


def _factory(solver: str | type[Solver] | Solver, settings: dict[str, Any]) -> Callable[[], Solver]:
    """Return a function that makes a solver as if for the first time."""
    if settings and not isinstance(solver, str | type):
        raise InputError("settings need a solver's name or class, got a solver object")

    def make() -> Solver:
        try:
            if isinstance(solver, str):
                return make_solver(solver, **settings)
            if isinstance(solver, type):
                return cast("Solver", construct("solver", solver.__name__, solver, settings))
            return copy.deepcopy(solver)
        except ShardGymError:
            raise
        except Exception as error:
            raise InputError(f"the solver cannot be made: {one_line(error)}{_place(error)}") from error

    return make


def _place(error: BaseException) -> str:
    """Return file and line that raised an error, in brackets."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _make_calls(
    make: Callable[[], Solver], cost: CostModel, time_limit_s: float, hang_s: float
) -> Iterator[SolverCall]:
    """Make all calls, one after another; every solver warms up before its first."""
    used = make()
    warm: list[Solver] = []
    first: ShardingPlan | None = None

    def call(case: Case, kind: str, solver: Solver, seed: int = 0, **options: Any) -> SolverCall:
        def solve(task: ShardingTask) -> ShardingPlan:
            if all(solver is not known for known in warm):
                warm_up(solver, task, cost)
                warm.append(solver)
            return call_solver(solver, task, cost, seed, **options)

        return _watched(SolverCall(case, kind, first), solve, hang_s)

    for case in cases():
        first = None
        made = call(case, "first", used)
        yield made
        if case.feasible:
            first = made.plan
            yield call(case, "again", used)
            yield call(case, "fresh", make())
            yield call(case, "other seed", used, 1)
    kind = "time limit" if takes(used.solve, "time_limit_s") else "no time limit"
    # A thorough search takes long here.
    long = Case("60 tables on 4 devices", _task(_varied_tables(60), [2**30] * 4))
    yield call(long, kind, used, time_limit_s=time_limit_s)


def _watched(call: SolverCall, solve: Callable[[ShardingTask], object], limit_s: float) -> SolverCall:
    """Call `solve` with a copy of the case's task, in a thread of its own, which is told to stop after `limit_s`."""
    task = ShardingTask.from_json(call.case.task.to_json())
    generators = _generator_states()

    def run() -> None:
        try:
            call.returned = solve(task)
        except BaseException as error:
            call.error = error

    with _captured_stdout(call):
        start = time.perf_counter()
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(limit_s)
        call.seconds = time.perf_counter() - start
        call.hung = thread.is_alive()
        if call.hung:
            # Raised at the thread's next Python instruction. A call that never comes back to Python stays.
            assert thread.ident is not None
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    call.changed_generators = tuple(name for name, state in _generator_states().items() if state != generators[name])
    call.task_changed = task != call.case.task or task.digest != call.case.task.digest
    return call


@contextlib.contextmanager
def _captured_stdout(call: SolverCall) -> Iterator[None]:
    """Keep the beginning of what is written to stdout, by Python or beneath it."""
    sys.stdout.flush()
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        kept = os.dup(_STDOUT)
        os.dup2(file.fileno(), _STDOUT)
        try:
            with contextlib.redirect_stdout(file):
                yield
        finally:
            os.dup2(kept, _STDOUT)
            os.close(kept)
        file.flush()
        file.seek(0)
        call.printed = file.read(200)


def _generator_states() -> dict[str, str]:
    return {"random": repr(random.getstate()), "numpy.random": repr(np.random.get_state(legacy=False))}


def _checked(name: str, calls: Sequence[SolverCall]) -> Check:
    """Check all calls against one rule; the rule counts as not run if it applies to no call."""
    is_judged, problem = RULES[name]
    verdicts = [(call.case.name, problem(call)) for call in calls if is_judged(call)]
    broken = [f"'{task}': {verdict}" for task, verdict in verdicts if verdict]
    if broken:
        return Check(name, False, broken[0])
    if not verdicts or any(call.hung for call in calls):
        return Check(name, None, "the solver hung before all calls were made" if verdicts else "no call to check")
    return Check(name, True, f"{len(verdicts)} calls")


def _check_time(last: SolverCall, time_limit_s: float, grace_s: float) -> Check:
    """Check that no call hung, and the time of the last one, which is on the long task."""
    if last.hung:
        return Check("time_limit_kept", False, f"'{last.case.name}': no answer after {last.seconds:.0f} s")
    took = f"'{last.case.name}': {last.seconds:.1f} s"
    if last.kind == "no time limit":
        return Check("time_limit_kept", True, f"{took}; solve takes no argument time_limit_s")
    detail = f"{took} with a limit of {time_limit_s:g} s and {grace_s:g} s of grace"
    return Check("time_limit_kept", last.seconds <= time_limit_s + grace_s, detail)


def cases() -> list[Case]:
    """Return the tasks; those without a feasible plan come last."""
    # FP16 weights and FP32 Adam state: 2 + 8 bytes per value instead of 4.
    adam = _task(_equal_tables(4), [2 * _UNIT // 4 * 10] * 2, precision="fp16", optimizer="adam")
    tiny = [
        EmbeddingTable("unused", 1000, 8, 0.0, reuse_histogram=(0.0,) * 17),
        EmbeddingTable("one row", 1, 4, 3.0),
        EmbeddingTable("usual", 1000, 16, 2.5),
    ]
    return [
        Case("room to spare", _task(_varied_tables(6), [2**30] * 2)),
        Case("memory filled exactly", _task(_equal_tables(8), [2 * _UNIT] * 4)),
        Case("uneven memory filled exactly", _task(_equal_tables(8), [_UNIT, 2 * _UNIT, 5 * _UNIT])),
        Case("one device", _task(_equal_tables(3), [3 * _UNIT])),
        Case("one table", _task(_equal_tables(1), [_UNIT] * 4)),
        Case("unused and tiny tables", _task(tiny, [2**20] * 2)),
        Case("optimiser state fills memory", adam),
        Case("state per row", _task(_varied_tables(6), [2**30] * 3, optimizer="rowwise_adagrad")),
        Case("one byte too few", _task(_equal_tables(4), [2 * _UNIT, 2 * _UNIT - 1]), feasible=False),
        Case("far too large", _task(_equal_tables(6), [_UNIT, _UNIT]), feasible=False),
        Case("width of 6", _task([EmbeddingTable("odd", 100, 6, 1.0)], [2**20] * 2), feasible=False),
    ]


def _task(tables: Sequence[EmbeddingTable], memory_bytes: Sequence[int], **options: Any) -> ShardingTask:
    topology = Topology(num_devices=len(memory_bytes), memory_bytes=tuple(memory_bytes))
    return ShardingTask(tables=tuple(tables), topology=topology, batch_size=256, **options)


def _equal_tables(count: int) -> list[EmbeddingTable]:
    """Return tables of equal bytes in two shapes with very different loads, so that balance and memory pull apart."""
    shapes = [(1000, 16), (2000, 8)]
    return [EmbeddingTable(f"t{i}", *shapes[i % 2], 50.0 if i == 0 else 1.0) for i in range(count)]


def _varied_tables(count: int) -> list[EmbeddingTable]:
    return [
        EmbeddingTable(f"t{i}", 100 * (1 + i * i), 4 * 2 ** (i % 4), 1.0 + 3.7 * (i % 5), ids=ZipfIds(1.05))
        for i in range(count)
    ]
