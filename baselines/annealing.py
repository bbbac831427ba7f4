"""Simulated annealing over the devices of shards."""

from __future__ import annotations

import contextlib
import math

import numpy as np

from baselines.column_greedy import place_with_cuts
from baselines.neighbours import Changes, Neighbourhood
from baselines.queries import Queries, check_queries
from shardgym.arguments import check_int
from shardgym.costs.base import CostModel
from shardgym.errors import InputError
from shardgym.incumbent import Budget, Incumbent, OutOfTime
from shardgym.plan import ShardingPlan, check_possible
from shardgym.solver import Observer, check_solve_arguments
from shardgym.task import ShardingTask

#: Draws in succession without an allowed change after which the search ends.
_DRAWS_IN_VAIN = 100


class Annealing:
    """Random moves and swaps of shards; one that makes the plan costlier is accepted with falling probability.

    Kirkpatrick, Gelatt and Vecchi (1983), "Optimization by simulated annealing": a change that costs d ms more is
    accepted with probability exp(-d / temperature), and the temperature falls geometrically. It is given as a share
    of the first plan's cost. Changes are drawn and priced a few at a time, and the first accepted one is made. Search
    begins with the plan of `lpt`; where whole tables do not fit, the largest are halved first. Nothing else is cut.

    Args:
        queries: plans that the oracle prices, as in `random_search`. When None: any number with a time limit, else 50
            for each table, or 32 where the cost is measured. Single tables for `lpt` and the first plan count as two.
        start_temperature: as a share of the first plan's cost.
        end_temperature: likewise.
        swaps: share of changes that swap two shards; the others move one.
        together: changes that are priced together.

    Raises:
        InputError: a setting is out of range or of another type.
    """

    def __init__(
        self,
        queries: int | None = None,
        start_temperature: float = 0.005,
        end_temperature: float = 0.0001,
        swaps: float = 0.5,
        together: int = 8,
    ) -> None:
        self.queries = check_queries(queries)
        for name, value in (("start_temperature", start_temperature), ("end_temperature", end_temperature)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise InputError(f"{name} of annealing must be a positive share of a plan's cost, got {value!r}")
        if isinstance(swaps, bool) or not isinstance(swaps, int | float) or not 0 <= swaps <= 1:
            raise InputError(f"swaps of annealing must be a share from 0 to 1, got {swaps!r}")
        self.start_temperature = start_temperature
        self.end_temperature = end_temperature
        self.swaps = swaps
        self.together = check_int("together", together, 1)

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
        now_ms = first_ms = incumbent.cost_ms
        in_vain = 0
        with contextlib.suppress(OutOfTime):
            while queries.left and in_vain < _DRAWS_IN_VAIN:
                budget.check()
                share = max(queries.asked / queries.limit, budget.spent)
                temperature = self.start_temperature ** (1 - share) * self.end_temperature**share * first_ms
                changes = self._draw(placement, task.num_devices, rng)
                changes = changes.take(placement.are_allowed(changes))
                changes = changes.take(slice(queries.take(len(changes.given))))
                in_vain = 0 if len(changes.given) else in_vain + 1
                if in_vain:
                    continue
                costs = placement.costs_ms(changes)
                accepted = costs - now_ms <= temperature * rng.exponential(size=len(costs))
                if accepted.any():
                    first = int(accepted.argmax())
                    placement.make(changes, first)
                    now_ms = float(costs[first])
                    incumbent.update(placement.plan_maker(), now_ms)
        return incumbent.plan()

    def _draw(self, placement: Neighbourhood, devices: int, rng: np.random.Generator) -> Changes:
        """Draw changes; some may not be allowed."""
        count = len(placement.shards)
        given = rng.integers(count, size=self.together)
        other = rng.integers(count, size=self.together)
        swaps = rng.random(self.together) < self.swaps
        target = np.where(swaps, placement.devices[other], rng.integers(devices, size=self.together))
        return Changes(given, target, np.where(swaps, other, -1), np.zeros(self.together, dtype=np.bool_))
