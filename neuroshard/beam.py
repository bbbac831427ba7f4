"""The outer search: a beam over column plans, and the constants of the published search."""

import functools
from dataclasses import dataclass, fields

import numpy as np

from neuroshard.grid_search import Cutoff, GridSearch
from neuroshard.shard_table import plan_of
from shardgym.arrays import Floats, Ints
from shardgym.errors import check_int
from shardgym.evaluation.solver import Incumbent

#: Shards of the column plans that are placed together, all counted: bounds memory.
_SHARDS_TOGETHER = 200_000
#: Column plans that are placed together when time is limited, so that the best of them is known early.
_PLANS_IN_HURRY = 20


@dataclass(frozen=True)
class SearchSettings:
    """Constants of the search, by default the published ones (`neurosharder.py`, `shard`).

    Raises:
        InputError: a value is not an integer in range.
    """

    beam_width: int = 3  #: column plans kept per level, K in the paper
    candidates: int = 10  #: shards tried by size, and as many by compute, N in the paper
    levels: int = 10  #: maximum number of column cuts per plan, L in the paper
    #: Number of limits on devices' widths per column plan, M in the paper; 0 for no limit.
    grid: int = 11

    def __post_init__(self) -> None:
        for field in fields(self):
            check_int(field.name, getattr(self, field.name), 0 if field.name in ("levels", "grid") else 1)

    def scales(self) -> Floats:
        """Return the grid as multiples of the mean width, by default 1.00, 1.05, ..., 1.50; 1.00 if M = 1.

        M = 0 gives infinity.
        """
        if self.grid == 0:
            return np.array([np.inf])
        step = 0.5 / max(self.grid - 1, 1)
        return 1.0 + step * np.arange(self.grid, dtype=np.float64)


class BeamSearch:
    """Halves the columns of one more shard per level and keeps the best column plans.

    A column plan is an array of shards in the task's order, with second halves appended as they are cut.

    The search follows NeuroShard (`neurosharder.py`, `shard`) and settles its arbitrary ties: among shards of equal
    size or compute, later ones are candidates and are placed first; among column plans of equal cost, the first stays.

    Args:
        inner: the inner search, which places column plans.
        settings: constants of the search.
        incumbent: best plan so far, updated with every better plan.
        hurry: whether time is limited, so that good plans should be found early.
        crowded: whether plans fail for lack of memory. Column plans without a placement are then ordered by their
            largest shard, and widths are unlimited if no value of the grid leads to a plan.
    """

    def __init__(
        self, inner: GridSearch, settings: SearchSettings, incumbent: Incumbent, *, hurry: bool, crowded: bool = False
    ) -> None:
        self._inner = inner
        self._sets = inner.device_sets
        self._settings = settings
        self._incumbent = incumbent
        self._plans_together = _PLANS_IN_HURRY if hurry else _SHARDS_TOGETHER
        self._crowded = crowded
        task = self._sets.shards.task
        mean_columns = sum(table.embedding_dim for table in task.tables) / task.num_devices
        self._max_columns: Floats = settings.scales() * mean_columns
        #: Random, so that different sequences of shards have different sums.
        longest = int(self._sets.shards.units.sum())
        self._weights: Ints = np.random.default_rng(0).integers(-(2**63), 2**63, size=longest)
        if crowded:
            self._max_columns = np.append(self._max_columns, np.inf)

    def run(self, start: Ints) -> None:
        """Search from a column plan, shape (n,); raises `OutOfTime` when the budget is spent."""
        beam = start[None]
        self._score(beam)
        for _ in range(self._settings.levels):
            children = self._children(beam)
            if not len(children):
                return
            costs = self._score(children)
            order = costs.argsort(kind="stable")
            if self._crowded:
                order = np.lexsort((self._sets.shards.bytes[children].max(axis=1), costs))
            beam = children[order[: self._settings.beam_width]]

    def _children(self, plans: Ints) -> Ints:
        """Halve each of the largest and slowest shards of each plan where possible, (C, n) to (children, n + 1)."""
        shards = self._sets.shards
        number = self._settings.candidates
        tried = np.ones(plans.shape, dtype=np.bool_)
        if number <= plans.shape[1]:
            tried[:] = False
            for figures in (shards.bytes[plans], self._sets.single_ms(plans)):
                np.put_along_axis(tried, figures.argsort(axis=1, kind="stable")[:, -number:], True, axis=1)
        parents, places = np.nonzero(tried & (shards.halves[plans] >= 0))
        halves = shards.halves[plans[parents, places]]
        children = np.column_stack([plans[parents], halves])
        children[np.arange(len(halves)), places] = halves
        return children

    def _score(self, plans: Ints) -> Floats:
        """Return the cost of each column plan, infinite if not among the best, (C, n) to (C,); update the incumbent."""
        shards = self._sets.shards
        size = min(max(_SHARDS_TOGETHER // plans.shape[1], 1), self._plans_together)
        cutoff = Cutoff(self._settings.beam_width)
        costs = []
        for start in range(0, len(plans), size):
            some = plans[start : start + size]
            # Shards that compute longest are placed first, of equal ones the last.
            order = self._sets.single_ms(some).argsort(axis=1, kind="stable")[:, ::-1]
            ordered = np.take_along_axis(some, order, axis=1)
            # Different cuts may lead to the same shards, which are placed once.
            _, which, index = np.unique(
                ordered @ self._weights[: plans.shape[1]], return_index=True, return_inverse=True
            )
            best = self._inner.place(ordered[which], self._max_columns, cutoff)
            found = best.costs[index]
            first = int(found.argmin())
            if found[first] < self._incumbent.cost_ms:
                devices = best.devices_of(int(index[first]))
                self._incumbent.update(functools.partial(plan_of, shards, devices), float(found[first]))
            cutoff.update(found)
            costs.append(found)
        return np.concatenate(costs)
