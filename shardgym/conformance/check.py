"""check_solver: call a solver in every way that matters and judge what came of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from shardgym.conformance.cases import Case, feasible_cases, infeasible_cases, long_case
from shardgym.conformance.checks import JUDGES, judge
from shardgym.conformance.report import Check, ConformanceReport
from shardgym.conformance.trial import Trial, watch
from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.judge_guard import judges_closed
from shardgym.errors import InputError
from shardgym.plan import ShardingPlan
from shardgym.registry import construct
from shardgym.solver import Solver, call_solver, make_solver, takes, warm_up
from shardgym.task import ShardingTask

_SEED, _OTHER_SEED = 0, 1


def check_solver(
    solver: str | type[Solver] | Solver,
    cost: CostModel | None = None,
    *,
    settings: dict[str, Any] | None = None,
    time_limit_s: float = 1.0,
    grace_s: float = 5.0,
    hang_s: float = 60.0,
) -> ConformanceReport:
    """Check that a solver keeps the promises of `shardgym.solver.Solver`.

    The solver runs in a thread of this process; judges are closed to it, as in a run. One that hangs is told to stop
    and no further calls are made.

    Args:
        solver: a registered name, `module:Class`, a class, or an object (which is copied for fresh starts).
        cost: deterministic cost model that the solver may query; the default is "roofline".
        settings: keyword arguments for the solver's class.
        time_limit_s: limit given to solvers that take one.
        grace_s: seconds that such a solver may take on top.
        hang_s: seconds after which any other call counts as hung.

    Raises:
        InputError: `cost` is not deterministic or is for scoring only, or the solver cannot be made.
        UnknownNameError: no such solver.
    """
    cost = cost if cost is not None else make_cost("roofline")
    if not cost.deterministic:
        raise InputError(f"cost '{cost.name}' is not deterministic: checks need one that is, such as roofline")
    if cost.scores_only:
        raise InputError(f"cost '{cost.name}' has role 'judge', which is for scoring: give one that solvers may query")
    trials: list[Trial] = []
    with judges_closed():
        for trial in _trials(_maker(solver, settings or {}), cost, time_limit_s, max(hang_s, time_limit_s + grace_s)):
            trials.append(trial)
            if trial.hung:
                break
    rows = [judge(promise, trials) for promise in JUDGES]
    return ConformanceReport(_name(solver), cost.name, (*rows, _time_limit(trials, time_limit_s, grace_s)))


def _trials(make: Callable[[], Solver], cost: CostModel, time_limit_s: float, hang_s: float) -> Iterator[Trial]:
    """Make all calls, one after another."""
    used = make()
    warm: dict[int, Solver] = {}  # by identity; the objects stay, so that none gets the identity of another

    def solve(solver: Solver, task: ShardingTask, seed: int, options: dict[str, Any]) -> ShardingPlan:
        if id(solver) not in warm:
            warm_up(solver, task, cost)
            warm[id(solver)] = solver
        return call_solver(solver, task, cost, seed, **options)

    def call(case: Case, kind: str, solver: Solver, seed: int, **options: Any) -> Trial:
        return watch(case, kind, lambda task: solve(solver, task, seed, options), hang_s)

    for case in feasible_cases():
        yield call(case, "first", used, _SEED)
        yield call(case, "again", used, _SEED)
        yield call(case, "fresh", make(), _SEED)
        yield call(case, "other seed", used, _OTHER_SEED)
    for case in infeasible_cases():
        yield call(case, "first", used, _SEED)
    if takes(used, "time_limit_s"):
        yield call(long_case(), "time limit", used, _SEED, time_limit_s=time_limit_s)
    else:
        yield call(long_case(), "no time limit", used, _SEED)


def _time_limit(trials: list[Trial], time_limit_s: float, grace_s: float) -> Check:
    """Judge the time of the long case, and that no call hung."""
    last = trials[-1]
    if last.hung:
        return Check("time_limit_kept", False, f"'{last.case.name}': no answer after {last.seconds:.0f} s")
    if last.kind != "time limit":
        return Check("time_limit_kept", True, f"takes no time limit; '{last.case.name}' took {last.seconds:.1f} s")
    detail = f"'{last.case.name}': {last.seconds:.1f} s with a limit of {time_limit_s:g} s"
    return Check("time_limit_kept", last.seconds <= time_limit_s + grace_s, detail)


def _maker(solver: str | type[Solver] | Solver, settings: dict[str, Any]) -> Callable[[], Solver]:
    """Return a function that makes a solver as if for the first time."""
    if isinstance(solver, str):
        return lambda: make_solver(solver, **settings)
    if isinstance(solver, type):
        return lambda: construct("solver", solver.__name__, solver, settings)
    if settings:
        raise InputError("settings are for a solver's name or class, a ready-made solver was given")
    return lambda: copy.deepcopy(solver)


def _name(solver: str | type[Solver] | Solver) -> str:
    if isinstance(solver, str):
        return solver
    cls = solver if isinstance(solver, type) else type(solver)
    return f"{cls.__module__}:{cls.__qualname__}"
