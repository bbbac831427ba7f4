"""Solver: the interface of everything that makes plans, how solvers are made and called, and what searches keep."""

import dataclasses
import inspect
import math
import numbers
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from shardgym.costs.base import CostModel
from shardgym.costs.plan_cost import PlanCost
from shardgym.costs.ties import quantized
from shardgym.errors import InputError, NoFeasiblePlanError, check_instance, check_int, short_repr
from shardgym.plans.plan import ShardingPlan
from shardgym.registry import construct, find_class, registered
from shardgym.tasks.task import ShardingTask

GROUP = "shardgym.solvers"


class Observer(Protocol):
    """A function that a solver calls with every new best plan and its cost."""

    def __call__(self, plan: ShardingPlan, cost_ms: float) -> None:
        """Receive a new best plan; `cost_ms` is what the solver's cost model predicts or measures."""


@runtime_checkable
class Solver(Protocol):
    """A class with this method is a solver; nothing has to be inherited.

    `solve` may leave out options after `seed` that it does not take. Optional members:

    - `warm_up(task, cost)` compiles or loads before the clock starts, see `warm_up`.
    - `check_ready(cost)` raises `InputError` if the solver cannot solve anything, see `check_ready`.
    - `weights_digest`, of a learned solver: SHA-256 of the weights that it solved with, or None. Records hold it.
    - `training_time_s`, of a learned solver: seconds that training took. Records hold it.
    - `lower_bound_ms`, of a solver that proves bounds: a lower bound, for the last task, on the oracle's cost of every
      plan of the kinds that it considers; None if there is none.
    """

    def solve(
        self,
        task: ShardingTask,
        cost: CostModel,
        seed: int = 0,
        *,
        time_limit_s: float | None = None,
        initial_plan: ShardingPlan | None = None,
        observer: Observer | None = None,
    ) -> ShardingPlan:
        """Return a feasible plan.

        Args:
            task: what to place; must not be changed.
            cost: the oracle, to be queried as often as the solver likes.
            seed: the same seed gives the same plan when `cost` is deterministic.
            time_limit_s: seconds after which the best plan so far is to be returned.
            initial_plan: a feasible plan to start from.
            observer: called with every improvement.

        Raises:
            NoFeasiblePlanError: no feasible plan was found; `InfeasiblePlanError`, which `plan.validate` raises, means
                the same.
            InputError: an argument is of another kind, or `cost` cannot price tasks of this kind.
            MeasurementError: the solver prices single tables, and `cost` cannot.
        """
        ...


def solver_names() -> list[str]:
    """Return the names of the registered solvers."""
    return list(registered(GROUP))


def make_solver(name: str, **settings: Any) -> Solver:
    """Make a solver.

    Args:
        name: a registered name, or `module:Class` for one's own.
        **settings: passed to the solver's class.

    Raises:
        UnknownNameError: no such solver; the closest names are in the message.
        InputError: the class cannot be imported, has no `solve`, or does not take these settings.
        MissingDependencyError: the solver needs an extra that is not installed.
    """
    solver: Solver = construct("solver", name, find_class("solver", GROUP, name), settings)
    if not callable(getattr(solver, "solve", None)):
        raise InputError(f"solver '{name}' has no method solve(task, cost, seed)")
    return solver


def weights_that_ship() -> dict[str, list[str]]:
    """Return, by registered solver, the suites that weights of it ship for; nothing is imported.

    Weights lie in the package that registers the solver: PACKAGE/weights/SOLVER/SUITE/seed-K/card.json. Solvers without
    any are left out.
    """
    found = {}
    for name, target in registered(GROUP).items():
        package = target.partition(":")[0].partition(".")[0]
        # A mere folder of the same name in front of it would hide an editable installation.
        specs = (finder.find_spec(package, None) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None and spec.origin is not None), None)
        folders = (spec.submodule_search_locations if spec is not None else None) or ()
        cards = [card for folder in folders for card in Path(folder, "weights", name).glob("*/seed-*/card.json")]
        if cards:
            found[name] = sorted({card.parents[1].name for card in cards})
    return found


def check_ready(solver: Solver, cost: CostModel) -> None:
    """Call `solver.check_ready(cost)`, where there is one: it raises `InputError` when the solver can solve nothing.

    So a run without the weights that a solver needs, or with an oracle that it cannot use, ends before it starts, and
    not with an error for every task.
    """
    method = getattr(solver, "check_ready", None)
    if callable(method):
        method(cost)


def warm_up(solver: Solver, task: ShardingTask, cost: CostModel) -> None:
    """Call `solver.warm_up(task, cost)`, where there is one, so that compiling and loading do not count as solving.

    The task holds the first table alone, so that nothing can be solved ahead. A run warms a solver up once, before its
    first task. When that raises, the task is recorded as an error, and the next task tries again.
    """
    method = getattr(solver, "warm_up", None)
    if callable(method):
        method(dataclasses.replace(task, tables=task.tables[:1], name=""), cost)


def call_solver(solver: Solver, task: ShardingTask, cost: CostModel, seed: int, **options: Any) -> ShardingPlan:
    """Call `solver.solve` with those of `options` that are not None and that its signature accepts."""
    accepted = {name: value for name, value in options.items() if value is not None and takes(solver.solve, name)}
    return solver.solve(task, cost, seed=seed, **accepted)


def takes(method: Callable[..., Any], option: str) -> bool:
    """Return whether `solve` or `fit` of a solver takes an option, by name or as `**options`."""
    parameters = inspect.signature(method).parameters
    return option in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def check_solve_arguments(
    task: Any, cost: Any, seed: Any, *, time_limit_s: Any = None, initial_plan: Any = None
) -> None:
    """Check the types of the arguments of `Solver.solve`; for solvers to call before they start.

    `initial_plan.validate(task)` checks whether a plan is for the task.

    Raises:
        InputError: an argument has another type.
    """
    check_instance("task", task, ShardingTask)
    check_instance("cost", cost, CostModel)
    check_int("seed", seed)
    if time_limit_s is not None:
        # A negative number is accepted: the deadline of a caller may have passed.
        is_number = isinstance(time_limit_s, numbers.Real) and not isinstance(time_limit_s, bool)
        if not is_number or math.isnan(time_limit_s):
            raise InputError(f"time_limit_s: expected a number of seconds, got {short_repr(time_limit_s)}")
    if initial_plan is not None:
        check_instance("initial_plan", initial_plan, ShardingPlan)


class OutOfTime(Exception):
    """The time limit is reached; the search ends with the incumbent."""


class Budget:
    """Time from now on.

    Args:
        seconds: limit; None for none.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.limited = seconds is not None  #: whether there is a limit
        self._seconds = seconds
        self._end = float("inf") if seconds is None else time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left, infinite without a limit."""
        return max(self._end - time.monotonic(), 0.0)

    @property
    def spent(self) -> float:
        """Share of the time that has passed, at most 1; 0 without a limit."""
        if self._seconds is None:
            return 0.0
        left = self._end - time.monotonic()
        return 1.0 if left <= 0 else 1.0 - left / self._seconds

    def check(self) -> None:
        """Raise `OutOfTime` when it is spent."""
        if time.monotonic() >= self._end:
            raise OutOfTime


class Incumbent:
    """The best plan so far; of equally good ones, see `shardgym.costs.ties`, the first.

    The cost evaluates offered plans, and the observer is called with every improvement.
    """

    def __init__(self, task: ShardingTask, cost: CostModel, observer: Observer | None) -> None:
        self._task = task
        self._cost = cost
        self._observer = observer
        self._make: Callable[[], ShardingPlan] | None = None
        self.cost_ms = float("inf")  #: of the plan, quantized; infinite as long as there is none

    def offer(self, *plans: ShardingPlan) -> list[PlanCost]:
        """Evaluate plans together and keep the best if it is better; return their costs."""
        costs = self._cost.evaluate(self._task, plans)
        for plan, cost in zip(plans, costs, strict=True):
            self.update(lambda plan=plan: plan, cost.total_ms)  # type: ignore[misc]
        return costs

    def update(self, make: Callable[[], ShardingPlan], cost_ms: float) -> None:
        """Keep a plan of known cost if it is better; `make` returns it, and may be called more than once."""
        compared_ms = float(quantized(cost_ms))
        if compared_ms < self.cost_ms:
            self._make = make
            self.cost_ms = compared_ms
            if self._observer is not None:
                self._observer(make(), cost_ms)

    def plan(self) -> ShardingPlan:
        """Return the best plan.

        Raises:
            NoFeasiblePlanError: there is none.
        """
        if self._make is None:
            raise NoFeasiblePlanError(f"cost '{self._cost.name}' could price none of the plans that were tried")
        return self._make()
