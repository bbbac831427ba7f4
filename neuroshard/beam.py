"""The outer search: a beam over column plans, and the constants of the published search."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from neuroshard.grid_search import Cutoff, InnerSearch
from neuroshard.shard_table import plan_of
from shardgym.arguments import check_int
from shardgym.arrays import Floats, Ints
from shardgym.incumbent import Incumbent

#: Shards of the column plans that are placed together, all counted: bounds memory.
_SHARDS_TOGETHER = 200_000
#: Column plans that are placed together when time is limited, so that the best of them is known early.
_PLANS_IN_HURRY = 20

#: Shards of a column plan: in the task's order, second halves appended as they are cut.
ColumnPlan = tuple[int, ...]


@dataclass(frozen=True)
class SearchSettings:
    """How widely to search; the defaults are the published constants (`neurosharder.py`, `shard`).

    Attributes:
        beam_width: column plans kept from level to level, K in the paper.
        candidates: shards tried by size and as many by compute, N in the paper.
        levels: column cuts of one plan at most, L in the paper.
        grid: limits of a device's width tried for every column plan, M in the paper; with 0 there is one placement
            without a limit.

    Raises:
        InputError: a value is not an integer in range.
    """

    beam_width: int = 3
    candidates: int = 10
    levels: int = 10
    grid: int = 11

    def __post_init__(self) -> None:
        for field in fields(self):
            check_int(field.name, getattr(self, field.name), 0 if field.name in ("levels", "grid") else 1)

    def scales(self) -> Floats:
        """Return the grid, as multiples of the mean width: 1.00, 1.05, ..., 1.50 as published.

        With M = 1 it is 1.00 alone, with M = 0 infinity.
        """
        if self.grid == 0:
            return np.array([np.inf])
        step = 0.5 / max(self.grid - 1, 1)
        return 1.0 + step * np.arange(self.grid, dtype=np.float64)


class BeamSearch:
    """Halves the columns of one more shard per level and keeps the best column plans.

    Follows NeuroShard (`neurosharder.py`, `shard`), with what is arbitrary there settled: among shards of equal size or
    compute the later ones are candidates and are placed first; among column plans of equal cost the first found stays.

    Args:
        inner: places column plans.
        settings: constants.
        incumbent: updated with every better plan.
        hurry: whether time is limited, so that good plans should be found early.
        crowded: whether plans fail for lack of memory. Column plans without a placement are then ordered by their
            largest shard, and devices may get as wide as they like where no value of the grid leads to a plan.
    """

    def __init__(
        self, inner: InnerSearch, settings: SearchSettings, incumbent: Incumbent, *, hurry: bool, crowded: bool = False
    ) -> None:
        self._inner = inner
        self._settings = settings
        self._incumbent = incumbent
        self._plans_together = _PLANS_IN_HURRY if hurry else _SHARDS_TOGETHER
        self._crowded = crowded
        task = inner.device_sets.shards.task
        mean_columns = sum(table.embedding_dim for table in task.tables) / task.num_devices
        self._max_columns: Floats = settings.scales() * mean_columns
        if crowded:
            self._max_columns = np.append(self._max_columns, np.inf)

    def run(self, start: ColumnPlan) -> None:
        """Search from a column plan.

        Raises:
            OutOfTime: the budget is spent.
        """
        self._score([start])
        beam = [start]
        for _ in range(self._settings.levels):
            children = [child for parent in beam for child in self._children(parent)]
            if not children:
                return
            costs = self._score(children)
            order = costs.argsort(kind="stable")
            if self._crowded:
                largest = self._inner.device_sets.shards.bytes[np.array(children)].max(axis=1)
                order = np.lexsort((largest, costs))
            beam = [children[n] for n in order[: self._settings.beam_width].tolist()]

    def _children(self, plan: ColumnPlan) -> list[ColumnPlan]:
        """Halve each candidate that can be halved: the largest shards and those that compute longest."""
        sets = self._inner.device_sets
        shards = np.array(plan)
        number = self._settings.candidates
        tried = np.arange(len(shards))
        if number <= len(shards):
            by_size = sets.shards.bytes[shards].argsort(kind="stable")[-number:]
            by_compute = sets.single_ms(shards).argsort(kind="stable")[-number:]
            tried = np.union1d(by_size, by_compute)
        halves = sets.shards.halves[shards].tolist()
        return [(*plan[:n], halves[n], *plan[n + 1 :], halves[n]) for n in tried.tolist() if halves[n] >= 0]

    def _score(self, plans: Sequence[ColumnPlan]) -> Floats:
        """Return the cost of each column plan, infinite for those that are not among the best; update the incumbent.

        Plans are taken in parts, so that memory is bounded.
        """
        shards = self._inner.device_sets.shards
        size = min(max(_SHARDS_TOGETHER // len(plans[0]), 1), self._plans_together)
        cutoff = Cutoff(self._settings.beam_width)
        costs = []
        for start in range(0, len(plans), size):
            # Different cuts may lead to the same shards, which are placed once.
            ordered = self._placement_order(np.array(plans[start : start + size]))
            different, index = np.unique(ordered, axis=0, return_inverse=True)
            best = self._inner.place(different, self._max_columns, cutoff)
            found = best.costs[index.ravel()]
            for n in np.flatnonzero(found < self._incumbent.cost_ms).tolist():
                if found[n] < self._incumbent.cost_ms:
                    devices = best.devices_of(int(index.flat[n]))
                    self._incumbent.update(functools.partial(plan_of, shards, devices), float(found[n]))
            cutoff.update(found)
            costs.append(found)
        return np.concatenate(costs)

    def _placement_order(self, plans: Ints) -> Ints:
        """Sort the shards of each plan by what they compute alone, costliest and last first; shape (C, n)."""
        single_ms = self._inner.device_sets.single_ms(plans.ravel()).reshape(plans.shape)
        return np.take_along_axis(plans, single_ms.argsort(axis=1, kind="stable")[:, ::-1], axis=1)
