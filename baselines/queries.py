"""Searches that ask the oracle a number of queries: one notion of a query, so that they can be compared."""

from __future__ import annotations

import abc
import contextlib
import math
from dataclasses import dataclass

import numpy as np

from baselines.column_greedy import place_with_cuts, whole_tables
from shardgym.arguments import check_int
from shardgym.costs.base import CostModel
from shardgym.evaluation.incumbent import Budget, Incumbent, OutOfTime
from shardgym.evaluation.solver import Observer, check_solve_arguments
from shardgym.plans.feasibility import check_possible
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ShardingTask

#: Plans that a search without a time limit asks about, for each table of the task.
_QUERIES_PER_TABLE = 50
#: The same where plans are measured, whatever the task: each takes about a second.
_MEASURED_QUERIES = 32


class Queries:
    """What is left of a number of queries.

    A query is one complete plan whose cost the oracle says: evaluated alone or with others, or added up from what
    changed. Prices of single shards are one query for all shards that are priced together.

    Args:
        limit: given by the user; when None, any number with a time limit, else 50 for each table, or 32 where the cost
            is measured.
        task: the task.
        cost: the oracle.
        time_limit_s: of the search.

    Attributes:
        limit: queries in all; infinite for any number.
        asked: queries so far.
    """

    def __init__(self, limit: int | None, task: ShardingTask, cost: CostModel, time_limit_s: float | None) -> None:
        self.limit: float
        if limit is not None:
            self.limit = limit
        elif time_limit_s is not None:
            self.limit = math.inf
        else:
            self.limit = _QUERIES_PER_TABLE * task.num_tables if cost.deterministic else _MEASURED_QUERIES
        self.asked = 0

    @property
    def left(self) -> float:
        """Queries that may still be asked."""
        return self.limit - self.asked

    def take(self, wanted: int) -> int:
        """Take up to `wanted` queries, and return how many there were."""
        taken = int(min(wanted, self.left))
        self.asked += taken
        return taken


@dataclass(frozen=True)
class SearchRun:
    """One call of `QuerySearch.solve`: what is asked of it, what it may still ask, and the best plan so far."""

    task: ShardingTask
    cost: CostModel
    rng: np.random.Generator
    budget: Budget
    queries: Queries
    incumbent: Incumbent


class QuerySearch(abc.ABC):
    """A search that asks a number of queries and returns its incumbent.

    Args:
        queries: plans that the oracle prices; see `Queries` for None.

    Raises:
        InputError: `queries` is neither None nor a whole number from 1 on.
    """

    def __init__(self, queries: int | None = None) -> None:
        self.queries = None if queries is None else check_int("queries", queries, 1)

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
        """Return the cheapest plan found, starting from `initial_plan` if there is one.

        Raises:
            NoFeasiblePlanError: no plan was found that respects memory.
            InfeasiblePlanError: `initial_plan` is infeasible.
            InputError: `initial_plan` is for another task, or `cost` cannot price tasks of this kind; or an argument is
                of another kind.
            MeasurementError: `cost` has no time for single shards.
        """
        check_solve_arguments(task, cost, seed, time_limit_s=time_limit_s, initial_plan=initial_plan, observer=observer)
        check_possible(task)
        run = SearchRun(
            task,
            cost,
            np.random.default_rng(seed),
            Budget(time_limit_s),
            Queries(self.queries, task, cost, time_limit_s),
            Incumbent(task, cost, observer),
        )
        start = self.first_plan(run) if initial_plan is None else initial_plan
        if start is not None:
            start.validate(task)
            run.queries.take(1)
            run.incumbent.offer(start)
        with contextlib.suppress(OutOfTime):
            self.search(run, start)
        return run.incumbent.plan()

    def first_plan(self, run: SearchRun) -> ShardingPlan | None:
        """Return the plan to start from: that of `lpt_whole`, with the largest shards halved where tables do not fit.

        Raises:
            NoFeasiblePlanError: shards fit nowhere however they are halved.
        """
        plan = place_with_cuts(run.task, run.cost, whole_tables(run.task, run.cost))[1]
        run.queries.take(1)
        return plan

    @abc.abstractmethod
    def search(self, run: SearchRun, start: ShardingPlan | None) -> None:
        """Update the incumbent, which is `start` where there is one, as long as there are queries.

        Raises:
            OutOfTime: the budget is spent.
        """
