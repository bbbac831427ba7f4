"""Simulated annealing over the devices of shards."""

from __future__ import annotations

import math

import numpy as np

from baselines.placement_prices import Changes, Neighbourhood
from baselines.queries import Queries, QuerySearch, SearchRun
from shardgym.arguments import check_int
from shardgym.errors import InputError
from shardgym.plans.plan import ShardingPlan

#: Draws in succession without an allowed change after which the search ends.
_DRAWS_IN_VAIN = 100


class Annealing(QuerySearch):
    """Random moves and swaps of shards; one that makes the plan costlier is accepted with falling probability.

    Kirkpatrick, Gelatt and Vecchi (1983), "Optimization by simulated annealing": a change that costs d ms more is
    accepted with probability exp(-d / temperature), and the temperature falls geometrically. It is given as a share
    of the first plan's cost. Changes are drawn and priced a few at a time, and the first accepted one is made. Search
    begins with the plan of `lpt_whole`; where tables do not fit, the largest are halved first. Nothing else is cut.

    Args:
        queries: plans that the oracle prices, as in `random_search`. When None: any number with a time limit, else 50
            for each table, or 32 where the cost is measured. Single tables and the first plan count as two.
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
        super().__init__(queries)
        for name, value in (("start_temperature", start_temperature), ("end_temperature", end_temperature)):
            if not 0 < value < math.inf:
                raise InputError(f"{name} of annealing must be a positive share of a plan's cost, got {value!r}")
        if not 0 <= swaps <= 1:
            raise InputError(f"swaps of annealing must be a share from 0 to 1, got {swaps!r}")
        self.start_temperature = start_temperature
        self.end_temperature = end_temperature
        self.swaps = swaps
        self.together = check_int("together", together, 1)

    def ask(self, run: SearchRun, queries: Queries, start: ShardingPlan | None) -> None:
        """See `QuerySearch`."""
        assert start is not None
        budget, rng = run.budget, np.random.default_rng(run.seed)
        placement = Neighbourhood(run.task, run.cost, start)
        now_ms = first_ms = run.incumbent.cost_ms
        in_vain = 0
        while queries.left and in_vain < _DRAWS_IN_VAIN:
            budget.check()
            share = max(queries.asked / queries.limit, budget.spent)
            temperature = self.start_temperature ** (1 - share) * self.end_temperature**share * first_ms
            changes = self._draw(placement, run.task.num_devices, rng)
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
                run.incumbent.update(placement.plan_maker(), now_ms)

    def _draw(self, placement: Neighbourhood, devices: int, rng: np.random.Generator) -> Changes:
        """Draw changes; some may not be allowed."""
        count = len(placement.shards)
        given = rng.integers(count, size=self.together)
        other = rng.integers(count, size=self.together)
        swaps = rng.random(self.together) < self.swaps
        target = np.where(swaps, placement.devices[other], rng.integers(devices, size=self.together))
        return Changes(given, target, np.where(swaps, other, -1), np.zeros(self.together, dtype=np.bool_))
