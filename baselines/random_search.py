"""Random search: the cheapest of many random plans."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from baselines.placement_prices import PlacementPrices
from baselines.queries import Queries, QuerySearch, SearchRun
from shardgym.arrays import Floats, Ints
from shardgym.errors import NoFeasiblePlanError
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tasks.task import ShardingTask

#: Plans drawn and priced together.
_DRAWN_TOGETHER = 64
#: Draws in succession that all run out of memory before the search gives up.
_DRAWS_IN_VAIN = 6400


class RandomSearch(QuerySearch):
    """Draw table-wise plans at random and keep the cheapest.

    A plan is drawn as `random` draws it: tables in descending order of size, each to a device drawn uniformly among
    those with room. Random search is what every search should be compared with at the same number of queries.

    Args:
        queries: plans that the oracle prices, as in `annealing`. When None: any number with a time limit, else 50 for
            each table, or 32 where the cost is measured.

    Raises:
        InputError: `queries` is not a whole number from 1 on.
    """

    def first_plan(self, run: SearchRun, queries: Queries) -> ShardingPlan | None:  # noqa: ARG002
        """Return None: nothing but random plans is compared."""
        return None

    def ask(self, run: SearchRun, queries: Queries, start: ShardingPlan | None) -> None:  # noqa: ARG002
        """See `QuerySearch`.

        Raises:
            NoFeasiblePlanError: every plan drawn ran out of memory.
        """
        task, rng = run.task, np.random.default_rng(run.seed)
        prices = PlacementPrices(task, run.cost, [Shard.whole(table, 0) for table in task.tables])
        together = _DRAWN_TOGETHER if run.cost.deterministic else 1
        in_vain = 0
        while queries.left and in_vain < _DRAWS_IN_VAIN:
            # The largest of independent uniform numbers is at each of the devices with room with the same probability.
            drawn = draw_placements(task, together, rng.random)
            in_vain = 0 if len(drawn) else in_vain + together
            drawn = drawn[: queries.take(len(drawn))]
            if len(drawn):
                placements = drawn[:, None, :] == np.arange(task.num_devices)[:, None]
                totals = prices.totals(placements)
                best = int(totals.argmin())
                run.incumbent.update(functools.partial(prices.plan, placements[best]), float(totals[best]))
            if not run.budget.left_s:
                break
        if run.incumbent.cost_ms == float("inf"):
            raise NoFeasiblePlanError(f"{_DRAWS_IN_VAIN} random placements of whole tables all ran out of memory")


def draw_placements(task: ShardingTask, count: int, scores: Callable[[tuple[int, ...]], Floats]) -> Ints:
    """Draw placements of whole tables, the largest first; those that run out of memory are left out.

    A table goes to the device with the largest score among those with room; `scores` draws them in a shape, (count, D).
    Returns the device of every table, shape (P, T) with P up to `count`.
    """
    sizes = np.array([task.table_bytes(table) for table in task.tables])
    room = np.tile(np.array(task.capacity_bytes, dtype=np.int64), (count, 1))
    devices = np.zeros((count, task.num_tables), dtype=np.int64)
    complete = np.ones(count, dtype=np.bool_)
    rows = np.arange(count)
    for table in (-sizes).argsort(kind="stable").tolist():
        fits = room >= sizes[table]
        chosen = np.where(fits, scores(fits.shape), -np.inf).argmax(axis=1)
        complete &= fits[rows, chosen]
        devices[:, table] = chosen
        room[rows, chosen] -= sizes[table]
    return devices[complete]
