"""Searches with a budget of oracle queries, counted alike so that searches can be compared."""

from __future__ import annotations

import abc
import contextlib
import math
from dataclasses import dataclass

from baselines.lpt import place_with_cuts, whole_tables
from neuroshard.shard_table import is_by_columns
from shardgym.costs.base import CostModel
from shardgym.errors import NoFeasiblePlanError, check_int
from shardgym.evaluation.solver import Budget, Incumbent, Observer, OutOfTime, check_solve_arguments
from shardgym.plans.feasibility import check_possible
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ShardingTask

#: Plans that a search without a time limit asks about, for each table of the task.
_QUERIES_PER_TABLE = 50
#: The same where plans are measured, whatever the task: each takes about a second.
_MEASURED_QUERIES = 32


class Queries:
    """A budget of queries.

    A query is one complete plan that the oracle prices, evaluated alone or with others, or updated from a change. All
    single shards that are priced together are one query.

    Args:
        limit: maximum number of queries. When None: unlimited with a time limit, else 50 per table, or 32 with a
            measured cost.
        run: the search.
    """

    def __init__(self, limit: int | None, run: SearchRun) -> None:
        self.limit: float
        if limit is not None:
            self.limit = limit
        elif run.budget.limited:
            self.limit = math.inf
        else:
            self.limit = _QUERIES_PER_TABLE * run.task.num_tables if run.cost.deterministic else _MEASURED_QUERIES
        self.asked = 0

    @property
    def left(self) -> float:
        """Remaining queries."""
        return self.limit - self.asked

    def take(self, wanted: int) -> int:
        """Take up to `wanted` queries, and return how many were taken."""
        taken = int(min(wanted, self.left))
        self.asked += taken
        return taken


@dataclass(frozen=True)
class SearchRun:
    """One call of `IncumbentSearch.solve`: its arguments, and the best plan so far."""

    task: ShardingTask
    cost: CostModel
    seed: int
    budget: Budget
    incumbent: Incumbent


class IncumbentSearch(abc.ABC):
    """A search that may start from a plan, respects a time limit, and returns the best plan found."""

    def check_ready(self, cost: CostModel) -> None:  # noqa: B027
        """Raise `InputError` if the search cannot use this kind of cost."""

    def warm_up(self, task: ShardingTask, cost: CostModel) -> None:  # noqa: B027
        """Do work that the time limit does not count."""

    def check_task(self, task: ShardingTask, cost: CostModel) -> None:  # noqa: ARG002
        """Raise `NoFeasiblePlanError` if clearly no plan can be feasible."""
        check_possible(task)

    @abc.abstractmethod
    def search(self, run: SearchRun, start: ShardingPlan | None) -> None:
        """Update the incumbent, initially `start` if there is one; raises `OutOfTime` when the budget is spent."""

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
        """Return the cheapest plan found, which costs no more than `initial_plan`; see `Solver`."""
        check_solve_arguments(task, cost, seed, time_limit_s=time_limit_s, initial_plan=initial_plan)
        self.check_ready(cost)
        self.check_task(task, cost)
        if time_limit_s is not None:
            self.warm_up(task, cost)
        run = SearchRun(task, cost, int(seed), Budget(time_limit_s), Incumbent(task, cost, observer))
        if initial_plan is not None:
            initial_plan.validate(task)
            run.incumbent.offer(initial_plan)
        with contextlib.suppress(OutOfTime):
            self.search(run, initial_plan)
        return run.incumbent.plan()


class QuerySearch(IncumbentSearch):
    """A search with a budget of queries.

    Args:
        queries: maximum number of plans that the oracle prices; see `Queries` for None.
    """

    def __init__(self, queries: int | None = None) -> None:
        self.queries = None if queries is None else check_int("queries", queries, 1)

    def search(self, run: SearchRun, start: ShardingPlan | None) -> None:
        """Find a first plan, then search with the remaining queries.

        The search changes one holder of a shard at a time. It starts from a first plan of its own if the given one has
        replicas, tables cut by rows, rows in the memory of hosts, or groups.
        """
        left = Queries(self.queries, run)
        if start is not None:
            left.take(1)
        if start is None or not _cuts_columns_alone(run.task, start):
            try:
                start = self.first_plan(run, left)
            except NoFeasiblePlanError:
                if run.incumbent.cost_ms == math.inf:
                    raise
                return
            if start is not None:
                run.incumbent.offer(start)
                left.take(1)
        self.ask(run, left, start)

    def first_plan(self, run: SearchRun, queries: Queries) -> ShardingPlan | None:
        """Return the plan to start from: that of `lpt_whole`, the largest shards halved where tables do not fit."""
        plan = place_with_cuts(run.task, run.cost, whole_tables(run.task, run.cost))[1]
        queries.take(1)
        return plan

    @abc.abstractmethod
    def ask(self, run: SearchRun, queries: Queries, start: ShardingPlan | None) -> None:
        """Update the incumbent as long as there are queries, see `search`; `start` cuts tables by columns at most."""


def _cuts_columns_alone(task: ShardingTask, plan: ShardingPlan) -> bool:
    """Say whether a plan has one holder for all rows of each shard, and no groups."""
    return plan.group_size is None and all(is_by_columns(shard, task.table(shard.table)) for shard in plan.shards)
