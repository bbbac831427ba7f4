"""The outer search: a beam over column plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from neuroshard.arrays import Floats, Ints, comparable
from neuroshard.budget import Budget
from neuroshard.contents import Contents
from neuroshard.grid_search import GridSearch
from neuroshard.settings import SearchSettings

#: Contents that may be kept from one level to the next.
_CONTENTS_KEPT = 200_000

#: Shards of a column plan by kind: in the task's order, second halves appended as they are cut.
Shards = tuple[int, ...]


class Found(NamedTuple):
    """A plan found by the search: kinds on every device, and its cost in ms."""

    held: list[list[int]]
    cost_ms: float


class BeamSearch:
    """Halves the columns of one more shard per level and keeps the best column plans.

    Follows NeuroShard (`neurosharder.py`, `shard`), with what is arbitrary there settled: among shards of equal size or
    compute the later ones are candidates and are placed first; among column plans of equal cost the first found stays.

    Args:
        contents: prices devices.
        settings: constants.
        budget: of time; may run out in the middle.
        improved: told of every plan better than all before.
        crowded: whether memory is what plans fail at. Column plans without a placement are then ordered by their
            largest shard, and devices may get as wide as they like where no value of the grid leads to a plan.
    """

    def __init__(
        self, contents: Contents, settings: SearchSettings, budget: Budget, improved: Callable[[Found], None],
        *, crowded: bool = False,
    ) -> None:  # fmt: skip
        self._contents, self._settings, self._budget, self._improved = contents, settings, budget, improved
        task = contents.kinds.task
        mean_columns = sum(table.embedding_dim for table in task.tables) / task.num_devices
        caps = settings.scales() * mean_columns
        self._grid = GridSearch(contents, np.append(caps, np.inf) if crowded else caps, budget)
        self._crowded = crowded
        self._best_ms = np.inf

    def run(self, shards: Shards) -> None:
        """Search from a column plan.

        Raises:
            OutOfTime: the budget is spent.
        """
        self._score([shards])
        beam = [shards]
        for _ in range(self._settings.levels):
            grown = [self._children(parent) for parent in beam]
            children = [child for family in grown for child in family]
            if not children:
                return
            costs = np.concatenate([self._score(part) for part in (grown if self._budget.limited else [children])])
            order = np.lexsort((self._largest(children), costs)) if self._crowded else costs.argsort(kind="stable")
            beam = [children[n] for n in order[: self._settings.beam_width].tolist()]

    def _children(self, shards: Shards) -> list[Shards]:
        """Halve each candidate that can be halved."""
        kinds, number = np.array(shards), self._settings.candidates
        tried = np.arange(len(kinds))
        if number <= len(kinds):
            by_size = self._contents.kinds.bytes[kinds].argsort(kind="stable")[-number:]
            by_compute = self._contents.singles(kinds).argsort(kind="stable")[-number:]
            tried = np.union1d(by_size, by_compute)
        halves = self._contents.kinds.halves[kinds]
        return [
            (*shards[:n], int(halves[n]), *shards[n + 1 :], int(halves[n]))
            for n in tried.tolist()
            if halves[n] >= 0
        ]  # fmt: skip

    def _score(self, plans: Sequence[Shards]) -> Floats:
        """Return the cost of each column plan, rounded for comparison, and report what is better than all before."""
        if not plans:
            return np.zeros(0)
        if self._contents.count > _CONTENTS_KEPT:
            self._contents.clear()
        placed = self._grid.place(self._order(np.array(plans)))
        costs = comparable(placed.costs)
        for n in np.flatnonzero(costs < self._best_ms).tolist():
            if costs[n] < self._best_ms:
                self._best_ms = costs[n]
                held = [self._contents.held(content) for content in placed.contents[n].tolist()]
                self._improved(Found(held, float(placed.costs[n])))
        return costs

    def _order(self, plans: Ints) -> Ints:
        """Sort the shards of each plan by what they compute alone, costliest and last first; shape (C, n)."""
        singles = self._contents.singles(plans.ravel()).reshape(plans.shape)
        return np.take_along_axis(plans, singles.argsort(axis=1, kind="stable")[:, ::-1], axis=1)

    def _largest(self, plans: Sequence[Shards]) -> Ints:
        """Return the bytes of each plan's largest shard."""
        sizes: Ints = self._contents.kinds.bytes[np.array(plans)].max(axis=1)
        return sizes
