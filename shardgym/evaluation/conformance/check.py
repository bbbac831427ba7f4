"""check_solver: call a solver in every way that matters, and check what came of it rule by rule."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tabulate import tabulate
from tqdm import tqdm

from shardgym.costs.base import CostModel, make_cost
from shardgym.errors import NO_PLAN, InputError
from shardgym.evaluation.conformance.calls import (
    Case,
    SolverCall,
    feasible_cases,
    infeasible_cases,
    long_case,
    watch_call,
)
from shardgym.evaluation.solver import Solver, call_solver, make_solver, takes, warm_up
from shardgym.plans.feasibility import cover_problems, memory_problems
from shardgym.plans.plan import ShardingPlan
from shardgym.registry import construct
from shardgym.tasks.task import ShardingTask

_SEED = 0
_OTHER_SEED = 1

#: Kinds of calls with the same seed; on the long task there is one.
_ON_LONG_TASK = ("time limit", "no time limit")
_SAME_SEED = ("first", "again", "fresh", *_ON_LONG_TASK)

_RESULTS = {True: "ok", False: "FAILED", None: "not run"}


@dataclass(frozen=True)
class Check:
    """The outcome of one rule.

    Attributes:
        name: what was checked.
        ok: whether it held; None when it could not be told.
        detail: what was looked at, or the first thing that went wrong.
    """

    name: str
    ok: bool | None
    detail: str


@dataclass(frozen=True)
class ConformanceReport:
    """All checks of one solver.

    Attributes:
        solver: name of the solver.
        cost: name of the cost model it could query.
        rows: the checks, in the order of `RULES`, and the time limit.
    """

    solver: str
    cost: str
    rows: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether every check was run and held."""
        return all(row.ok for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready lists and dictionaries."""
        return {"solver": self.solver, "cost": self.cost, "ok": self.ok, "checks": [asdict(row) for row in self.rows]}

    def table(self) -> str:
        """Return the report as a plain-text table, one line per check."""
        rows = [(row.name, _RESULTS[row.ok], row.detail) for row in self.rows]
        return tabulate(rows, headers=("check", "result", "detail"), disable_numparse=True)


def check_solver(
    solver: str | type[Solver] | Solver,
    cost: CostModel | None = None,
    *,
    settings: dict[str, Any] | None = None,
    time_limit_s: float = 1.0,
    grace_s: float = 5.0,
    hang_s: float = 60.0,
    progress: bool = False,
) -> ConformanceReport:
    """Check that a solver keeps the rules of `shardgym.evaluation.solver.Solver`.

    The solver runs in a thread of this process. One that hangs is told to stop
    and no further calls are made.

    Args:
        solver: a registered name, `module:Class`, a class, or an object (which is copied for fresh starts).
        cost: deterministic cost model that the solver may query; the default is "roofline".
        settings: keyword arguments for the solver's class.
        time_limit_s: limit given to solvers that take one.
        grace_s: seconds that such a solver may take on top.
        hang_s: seconds after which any other call counts as hung.
        progress: show on standard error how many calls were made.

    Raises:
        InputError: `cost` is not deterministic or is for scoring only, or the solver cannot be made.
        UnknownNameError: no such solver.
    """
    cost = cost if cost is not None else make_cost("roofline")
    if not cost.deterministic:
        raise InputError(f"cost '{cost.name}' is not deterministic: checks need one that is, such as roofline")
    if cost.scores_only:
        raise InputError(f"cost '{cost.name}' has role 'judge', which is for scoring: give one that solvers may query")
    make = _solver_factory(solver, settings or {})
    calls: list[SolverCall] = []
    made = _make_calls(make, cost, time_limit_s, max(hang_s, time_limit_s + grace_s))
    for call in tqdm(made, desc="checking", unit="call", leave=False, disable=None if progress else True):
        calls.append(call)
        if call.hung:
            break
    checks = [_apply_rule(rule, calls) for rule in RULES]
    if isinstance(solver, str):
        name = solver
    else:
        cls = solver if isinstance(solver, type) else type(solver)
        name = f"{cls.__module__}:{cls.__qualname__}"
    return ConformanceReport(name, cost.name, (*checks, _check_time(calls[-1], time_limit_s, grace_s)))


def _solver_factory(solver: str | type[Solver] | Solver, settings: dict[str, Any]) -> Callable[[], Solver]:
    """Return a function that makes a solver as if for the first time."""
    if isinstance(solver, str):
        return lambda: make_solver(solver, **settings)
    if isinstance(solver, type):
        return lambda: construct("solver", solver.__name__, solver, settings)
    if settings:
        raise InputError("settings are for a solver's name or class, a ready-made solver was given")
    return lambda: copy.deepcopy(solver)


def _make_calls(
    make: Callable[[], Solver], cost: CostModel, time_limit_s: float, hang_s: float
) -> Iterator[SolverCall]:
    """Make all calls, one after another."""
    used = make()
    # By identity. The solvers are kept, so that none gets the identity of one that is gone.
    warm: dict[int, Solver] = {}

    def call(case: Case, kind: str, solver: Solver, seed: int = _SEED, **options: Any) -> SolverCall:
        def solve(task: ShardingTask) -> ShardingPlan:
            if id(solver) not in warm:
                warm_up(solver, task, cost)
                warm[id(solver)] = solver
            return call_solver(solver, task, cost, seed, **options)

        return watch_call(case, kind, solve, hang_s)

    for case in feasible_cases():
        yield call(case, "first", used)
        yield call(case, "again", used)
        yield call(case, "fresh", make())
        yield call(case, "other seed", used, _OTHER_SEED)
    for case in infeasible_cases():
        yield call(case, "first", used)
    if takes(used.solve, "time_limit_s"):
        yield call(long_case(), "time limit", used, time_limit_s=time_limit_s)
    else:
        yield call(long_case(), "no time limit", used)


# --- rules ------------------------------------------------------------------------------------------------------------
#
# A rule is given all calls on one task. It yields None for every call that keeps it, and a sentence for one that does
# not. Its name is the name of the check, its docstring says what is promised.

Rule = Callable[[Sequence[SolverCall]], Iterable[str | None]]


def returns_plan(calls: Sequence[SolverCall]) -> Iterator[str | None]:
    """A `ShardingPlan` comes back for every feasible task; an exact one may refuse the long one by `InputError`."""
    for call in _on_feasible_task(calls, _SAME_SEED):
        is_refused = call.kind in _ON_LONG_TASK and isinstance(call.error, InputError)
        there_is_one = "; whole tables in any order fit here" if isinstance(call.error, NO_PLAN) else ""
        yield None if isinstance(call.returned, ShardingPlan) or is_refused else _describe_outcome(call) + there_is_one


def plan_is_valid(calls: Sequence[SolverCall]) -> Iterator[str | None]:
    """The plan is for its task and holds every cell of every table once, in widths that FBGEMM takes."""
    for call, plan in _with_plan(calls, _SAME_SEED):
        yield next(iter(_cover_problems(call, plan)), None)


def memory_respected(calls: Sequence[SolverCall]) -> Iterator[str | None]:
    """No device holds more bytes than it has, optimiser state included."""
    for call, plan in _with_plan(calls, _SAME_SEED):
        yield next(memory_problems(call.case.task, plan.shards), None)


def same_seed_same_plan(calls: Sequence[SolverCall]) -> Iterator[str | None]:
    """The same seed gives the same plan, from the same object again and from a fresh one."""
    first = next((plan for _, plan in _with_plan(calls, ("first",))), None)
    if first is not None:
        for call, plan in _with_plan(calls, ("again", "fresh")):
            where = "when asked again" if call.kind == "again" else "from a fresh solver"
            yield None if plan == first else f"another plan {where}"


def other_seeds_valid(calls: Sequence[SolverCall]) -> Iterator[str | None]:
    """Where one seed gives a feasible plan, so do others."""

    def problems(call: SolverCall, plan: ShardingPlan) -> list[str]:
        return [*_cover_problems(call, plan), *memory_problems(call.case.task, plan.shards)]

    if any(not problems(call, plan) for call, plan in _with_plan(calls, ("first",))):
        for call in _on_feasible_task(calls, ("other seed",)):
            if isinstance(call.returned, ShardingPlan):
                yield next(iter(problems(call, call.returned)), None)
            else:
                yield _describe_outcome(call)


def task_unchanged(calls: Sequence[SolverCall]) -> Iterator[str | None]:
    """The task is as it was, field by field and in its digest."""
    for call in calls:
        yield "the task was changed" if call.task_changed else None


def infeasible_reported(calls: Sequence[SolverCall]) -> Iterator[str | None]:
    """A task that no plan is feasible for ends in `NoFeasiblePlanError` or `InfeasiblePlanError`."""
    expected = "no plan is feasible: expected NoFeasiblePlanError, or what plan.validate(task) raises"
    for call in calls:
        if not call.case.feasible and not call.hung:
            yield None if isinstance(call.error, NO_PLAN) else f"{_describe_outcome(call)}; {expected}"


def silent(calls: Sequence[SolverCall]) -> Iterator[str | None]:
    """Nothing is written to stdout."""
    for call in calls:
        yield f"printed {call.printed[:60]!r}" if call.printed else None


def global_random_untouched(calls: Sequence[SolverCall]) -> Iterator[str | None]:
    """The global generators of `random` and `numpy.random` are neither seeded nor drawn from."""
    for call in calls:
        changed = " and ".join(call.changed_generators)
        yield f"changed the state of {changed}" if changed else None


RULES: tuple[Rule, ...] = (
    returns_plan,
    plan_is_valid,
    memory_respected,
    same_seed_same_plan,
    other_seeds_valid,
    task_unchanged,
    infeasible_reported,
    silent,
    global_random_untouched,
)


def _apply_rule(rule: Rule, calls: Sequence[SolverCall]) -> Check:
    """Check one rule over all calls. It counts as not run when no call says anything about it."""
    name = getattr(rule, "__name__", "check")
    by_task: dict[str, list[SolverCall]] = {}
    for call in calls:
        by_task.setdefault(call.case.name, []).append(call)
    verdicts = [(task, verdict) for task, group in by_task.items() for verdict in rule(group)]
    broken = [f"'{task}': {verdict}" for task, verdict in verdicts if verdict is not None]
    if broken:
        return Check(name, False, broken[0])
    if not verdicts:
        return Check(name, None, "no call to judge by")
    if any(call.hung for call in calls):
        return Check(name, None, "the solver hung before all calls were made")
    return Check(name, True, f"{len(verdicts)} calls")


def _check_time(last: SolverCall, time_limit_s: float, grace_s: float) -> Check:
    """Check that no call hung, and the time of the last one, which is on the long task."""
    name = "time_limit_kept"
    if last.hung:
        return Check(name, False, f"'{last.case.name}': no answer after {last.seconds:.0f} s")
    if last.kind != "time limit":
        return Check(name, True, f"takes no time limit; '{last.case.name}' took {last.seconds:.1f} s")
    detail = f"'{last.case.name}': {last.seconds:.1f} s with a limit of {time_limit_s:g} s"
    return Check(name, last.seconds <= time_limit_s + grace_s, detail)


def _on_feasible_task(calls: Sequence[SolverCall], kinds: Sequence[str]) -> Iterator[SolverCall]:
    return (call for call in calls if call.case.feasible and call.kind in kinds and not call.hung)


def _with_plan(calls: Sequence[SolverCall], kinds: Sequence[str]) -> Iterator[tuple[SolverCall, ShardingPlan]]:
    for call in _on_feasible_task(calls, kinds):
        if isinstance(call.returned, ShardingPlan):
            yield call, call.returned


def _cover_problems(call: SolverCall, plan: ShardingPlan) -> list[str]:
    """Return what is wrong with a plan, but for memory."""
    task = call.case.task
    if plan.task_hash != task.digest:
        return [f"the plan is for task {plan.task_hash[:12]}, not for {task.digest[:12]}"]
    return cover_problems(task, plan.shards, plan.group_size)


def _describe_outcome(call: SolverCall) -> str:
    if call.error is not None:
        return f"raised {type(call.error).__name__}: {call.error}".split("\n")[0][:200]
    if isinstance(call.returned, ShardingPlan):
        return "returned a plan"
    return f"returned {type(call.returned).__name__}"
