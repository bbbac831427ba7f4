"""Local search: moves, swaps and splits of shards, until none makes the plan cheaper."""

from __future__ import annotations

import sys
from typing import Literal

import numpy as np

from baselines.placement_prices import Changes, Neighbourhood, joined
from baselines.queries import Queries, QuerySearch, SearchRun
from shardgym.arguments import check_instance
from shardgym.arrays import Ints
from shardgym.errors import InputError
from shardgym.plans.plan import ShardingPlan

#: Changes that are priced together where the first improvement is taken.
_PRICED_TOGETHER = 64
#: The same where plans are measured.
_MEASURED_TOGETHER = 8
#: A change has to bring more than this share of the cost.
_LEAST_GAIN = 1e-9


class LocalSearch(QuerySearch):
    """Descent from the plan of `lpt_whole`: a shard moves, two shards swap, or half of a shard's columns moves.

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
        super().__init__(queries)
        self.improvement = improvement
        self.splits = splits

    def ask(self, run: SearchRun, queries: Queries, start: ShardingPlan | None) -> None:
        """See `QuerySearch`; ends in a local optimum where queries last."""
        assert start is not None
        placement = Neighbourhood(run.task, run.cost, start)
        together = sys.maxsize
        if self.improvement == "first":
            together = _PRICED_TOGETHER if run.cost.deterministic else _MEASURED_TOGETHER
        rng = np.random.default_rng(run.seed)
        while self._improve(run, queries, placement, together, rng):
            pass

    def _improve(
        self, run: SearchRun, queries: Queries, placement: Neighbourhood, together: int, rng: np.random.Generator
    ) -> bool:
        """Make one change that makes the plan cheaper; False where there is none, or no query is left."""
        for device in (-placement.compute_ms).argsort(kind="stable").tolist():
            changes = self._changes_of(placement, device)
            changes = changes.take(rng.permutation(np.flatnonzero(placement.are_allowed(changes))))
            for first in range(0, len(changes.given), together):
                run.budget.check()
                some = changes.take(slice(first, first + together))
                some = some.take(slice(queries.take(len(some.given))))
                if not len(some.given):
                    return False
                costs = placement.costs_ms(some)
                best = int(costs.argmin())
                if costs[best] < run.incumbent.cost_ms * (1 - _LEAST_GAIN):
                    placement.make(some, best)
                    run.incumbent.update(placement.plan_maker(), float(costs[best]))
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
