"""The outer search: a beam over column plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from neuroshard.budget import Budget
from neuroshard.contents import Contents
from neuroshard.cutoff import Cutoff
from neuroshard.settings import SearchSettings
from neuroshard.threads import InnerSearch
from shardgym.arrays import Floats, Ints

#: Shards of the column plans that are placed together, all counted: bounds memory.
_SHARDS_TOGETHER = 200_000
#: Column plans that are placed together when time is limited, so that the best of them is known early.
_PLANS_IN_HURRY = 20

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
        inner: makes the inner search over `contents` for a grid of width limits.
        improved: told of every plan better than all before.
        crowded: whether memory is what plans fail at. Column plans without a placement are then ordered by their
            largest shard, and devices may get as wide as they like where no value of the grid leads to a plan.
    """

    def __init__(
        self, contents: Contents, settings: SearchSettings, budget: Budget,
        inner: Callable[[Floats, Budget], InnerSearch], improved: Callable[[Found], None],
        *, crowded: bool = False,
    ) -> None:  # fmt: skip
        self._contents, self._settings, self._improved = contents, settings, improved
        self._together = _PLANS_IN_HURRY if budget.limited else _SHARDS_TOGETHER
        task = contents.kinds.task
        mean_columns = sum(table.embedding_dim for table in task.tables) / task.num_devices
        caps = settings.scales() * mean_columns
        self._inner = inner(np.append(caps, np.inf) if crowded else caps, budget)
        self._crowded = crowded
        self._best_ms = np.inf

    def run(self, shards: Shards) -> None:
        """Search from a column plan.

        Raises:
            OutOfTime: the budget is spent.
        """
        self._level([shards])
        beam = [shards]
        for _ in range(self._settings.levels):
            children = [child for parent in beam for child in self._children(parent)]
            if not children:
                return
            costs = self._level(children)
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

    def _level(self, plans: Sequence[Shards]) -> Floats:
        """Return the cost of each column plan, infinite for those that are not among the best.

        Plans are taken in parts, so that memory is bounded.
        """
        size = min(max(_SHARDS_TOGETHER // len(plans[0]), 1), self._together)
        cutoff, costs = Cutoff(self._settings.beam_width), []
        for start in range(0, len(plans), size):
            costs.append(self._score(plans[start : start + size], cutoff))
            cutoff.keep(costs[-1])
        return np.concatenate(costs)

    def _score(self, plans: Sequence[Shards], cutoff: Cutoff) -> Floats:
        """Return the cost of each column plan, rounded for comparison, and report what is better than all before."""
        costs, held = self._inner.place(self._order(np.array(plans)), cutoff)
        for n in np.flatnonzero(costs < self._best_ms).tolist():
            if costs[n] < self._best_ms:
                self._best_ms = costs[n]
                self._improved(Found(held(n), float(costs[n])))
        return costs

    def _order(self, plans: Ints) -> Ints:
        """Sort the shards of each plan by what they compute alone, costliest and last first; shape (C, n)."""
        singles = self._contents.singles(plans.ravel()).reshape(plans.shape)
        return np.take_along_axis(plans, singles.argsort(axis=1, kind="stable")[:, ::-1], axis=1)

    def _largest(self, plans: Sequence[Shards]) -> Ints:
        """Return the bytes of each plan's largest shard."""
        sizes: Ints = self._contents.kinds.bytes[np.array(plans)].max(axis=1)
        return sizes
