"""Local search: moves, swaps and splits of shards, until none makes the plan cheaper."""

from __future__ import annotations

import contextlib
import sys
from typing import Literal

import numpy as np

from baselines.column_greedy import place_with_cuts
from baselines.neighbours import Changes, Neighbourhood, joined
from baselines.queries import Queries, check_queries
from shardgym.arguments import check_instance
from shardgym.arrays import Ints
from shardgym.costs.base import CostModel
from shardgym.errors import InputError
from shardgym.incumbent import Budget, Incumbent, OutOfTime
from shardgym.plan import ShardingPlan, check_possible
from shardgym.solver import Observer, check_solve_arguments
from shardgym.task import ShardingTask

#: Changes that are priced together where the first improvement is taken.
_PRICED_TOGETHER = 64
#: The same where plans are measured.
_MEASURED_TOGETHER = 8
#: A change has to bring more than this share of the cost.
_LEAST_GAIN = 1e-9


class LocalSearch:
    """Descent from the plan of `lpt`: a shard moves, two shards swap, or half of a shard's columns moves.

    Changes that take something from one device are tried together, device by device, the one that computes longest
    first. The search ends where no change of any device makes the plan cheaper, or where no query is left. It works
    with every cost; where that is additive, a change is priced from the two devices that it concerns. Where whole
    tables do not fit, the largest are halved first. `neuroshard_plus` starts from better plans, cuts anywhere, and
    leaves local optima.

    Args:
        improvement: "first" takes the best of 64 changes drawn at random as soon as it makes the plan cheaper, of 8
            where the cost is measured; "best" takes the best of all changes of a device.
        splits: whether shards may be halved.
        queries: plans that the oracle prices, as in `random_search`. When None: any number with a time limit, else 50
            for each table, or 32 where the cost is measured. With few of them the search ends before a local optimum.

    Raises:
        InputError: a setting is out of range or of another type.
    """

    def __init__(
        self, improvement: Literal["first", "best"] = "first", *, splits: bool = True, queries: int | None = None
    ) -> None:
        if improvement not in ("first", "best"):
            raise InputError(f"improvement of local search must be 'first' or 'best', got {improvement!r}")
        check_instance("splits", splits, bool)
        self.improvement = improvement
        self.splits = splits
        self.queries = check_queries(queries)

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
        """Return the local optimum that a descent ends in, from `initial_plan` if there is one.

        Raises:
            NoFeasiblePlanError: shards fit nowhere however they are halved.
            InfeasiblePlanError: `initial_plan` is infeasible.
            InputError: `initial_plan` is for another task, or `cost` cannot price tasks of this kind; or an argument is
                of another kind.
            MeasurementError: `cost` has no time for single shards.
        """
        check_solve_arguments(task, cost, seed, time_limit_s=time_limit_s, initial_plan=initial_plan, observer=observer)
        check_possible(task)
        budget = Budget(time_limit_s)
        queries = Queries(self.queries, task, cost, time_limit_s)
        rng = np.random.default_rng(seed)
        incumbent = Incumbent(task, cost, observer)
        if initial_plan is None:
            initial_plan = place_with_cuts(task, cost)[1]
            queries.take(1)
        initial_plan.validate(task)
        queries.take(1)
        incumbent.offer(initial_plan)
        placement = Neighbourhood(task, cost, initial_plan)
        together = sys.maxsize
        if self.improvement == "first":
            together = _PRICED_TOGETHER if cost.deterministic else _MEASURED_TOGETHER
        with contextlib.suppress(OutOfTime):
            while self._improve(placement, together, incumbent, queries, budget, rng):
                pass
        return incumbent.plan()

    def _improve(
        self, placement: Neighbourhood, together: int, incumbent: Incumbent, queries: Queries, budget: Budget,
        rng: np.random.Generator,
    ) -> bool:  # fmt: skip
        """Make one change that makes the plan cheaper; False where there is none, or no query is left."""
        for device in (-placement.compute_ms).argsort(kind="stable").tolist():
            changes = self._changes_of(placement, device)
            changes = changes.take(rng.permutation(np.flatnonzero(placement.are_allowed(changes))))
            for first in range(0, len(changes.given), together):
                budget.check()
                some = changes.take(slice(first, first + together))
                some = some.take(slice(queries.take(len(some.given))))
                if not len(some.given):
                    return False
                costs = placement.costs_ms(some)
                best = int(costs.argmin())
                if costs[best] < incumbent.cost_ms * (1 - _LEAST_GAIN):
                    placement.make(some, best)
                    incumbent.update(placement.plan_maker(), float(costs[best]))
                    return True
        return False

    def _changes_of(self, placement: Neighbourhood, device: int) -> Changes:
        """Return all changes that take something from a device; some may not be allowed."""
        here = np.flatnonzero(placement.devices == device)
        elsewhere = np.flatnonzero(placement.devices != device)
        others = np.delete(np.arange(len(placement.compute_ms)), device)
        moves = _pairs(here, others)
        swaps = _pairs(here, elsewhere)
        none = np.full(len(moves[0]), -1)
        whole = np.zeros(len(moves[0]), dtype=np.bool_)
        changes = [
            Changes(*moves, none, whole),
            Changes(swaps[0], placement.devices[swaps[1]], swaps[1], np.zeros(len(swaps[0]), dtype=np.bool_)),
        ]
        if self.splits:
            changes.append(Changes(*moves, none, ~whole))
        return joined(changes)


def _pairs(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Return all pairs of members of two arrays, as two arrays."""
    return np.repeat(first, len(second)), np.tile(second, len(first))
