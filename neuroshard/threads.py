"""The inner search on several threads."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from neuroshard.cutoff import Cutoff
from neuroshard.scoring import Placed
from shardgym.arrays import Ints

#: Shards of all column plans together that are worth another thread.
_WORTH_A_THREAD = 2000


class InnerSearch(Protocol):
    """Places column plans."""

    def place(self, sequences: Ints, cutoff: Cutoff) -> Placed:
        """See `GridSearch`."""


class ThreadedSearch:
    """Shares column plans out over inner searches, a thread each; those that begin alike stay together.

    Args:
        searches: with contents of their own; they must let other threads run, as compiled ones do.
    """

    def __init__(self, searches: Sequence[InnerSearch]) -> None:
        self._searches = searches

    def place(self, sequences: Ints, cutoff: Cutoff) -> Placed:
        """See `GridSearch`."""
        if sequences.size < len(self._searches) * _WORTH_A_THREAD:
            return self._searches[0].place(sequences, cutoff)
        parts = np.array_split(np.lexsort(sequences.T[::-1]), min(len(self._searches), len(sequences)))
        with ThreadPoolExecutor(len(parts)) as pool:
            jobs = [
                pool.submit(search.place, sequences[part], cutoff)
                for search, part in zip(self._searches, parts, strict=False)
            ]
            placed = [job.result() for job in jobs]
        costs = np.empty(len(sequences))
        whose = {}
        for found, part in zip(placed, parts, strict=True):
            costs[part] = found.costs
            whose.update({row: (found, n) for n, row in enumerate(part.tolist())})

        def held(row: int) -> list[list[int]]:
            found, n = whose[row]
            return found.held(n)

        return Placed(costs, held)
