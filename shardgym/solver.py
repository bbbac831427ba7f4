"""Solver: the interface of everything that makes plans, and how solvers are found."""

from __future__ import annotations

import inspect
from typing import Any, Protocol, runtime_checkable

from shardgym.costs.base import CostModel
from shardgym.errors import InputError
from shardgym.plan import ShardingPlan
from shardgym.registry import construct, find_class, registered
from shardgym.task import ShardingTask

GROUP = "shardgym.solvers"


class Observer(Protocol):
    """Called by a solver with its best plan so far and what its cost model says of it."""

    def __call__(self, plan: ShardingPlan, cost_ms: float) -> None:
        """Take note of a new best plan."""


@runtime_checkable
class Solver(Protocol):
    """Makes a plan for a task. A class with this method is a solver; nothing has to be inherited.

    Options that a solver does not take (`time_limit_s`, `initial_plan`, `observer`) may be left out of its signature.
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
        """
        ...


def solver_names() -> list[str]:
    """Names of the registered solvers."""
    return list(registered(GROUP))


def make_solver(name: str, **settings: Any) -> Solver:
    """Make a solver.

    Args:
        name: a registered name, or `module:Class` for one's own.
        **settings: passed to the solver's class.

    Raises:
        UnknownNameError: no such solver; the closest names are given.
        InputError: the class cannot be imported, has no `solve`, or does not take these settings.
    """
    solver: Solver = construct("solver", name, find_class("solver", GROUP, name), settings)
    if not callable(getattr(solver, "solve", None)):
        raise InputError(f"solver '{name}' has no method solve(task, cost, seed)")
    return solver


def call_solver(solver: Solver, task: ShardingTask, cost: CostModel, seed: int, **options: Any) -> ShardingPlan:
    """Call `solver.solve` with those of `options` that its signature takes and that are not None."""
    taken = inspect.signature(solver.solve).parameters
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())
    given = {k: v for k, v in options.items() if v is not None and (anything or k in taken)}
    return solver.solve(task, cost, seed=seed, **given)
