"""The inner search: greedy placement of many column plans under every limit of the grid, all advanced together."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from neuroshard.budget import Budget
from neuroshard.contents import EMPTY, Contents
from neuroshard.cutoff import Cutoff
from neuroshard.prefixes import Prefixes
from neuroshard.scoring import Placed, best_placements
from shardgym.arrays import Floats, Ints


@dataclasses.dataclass
class _Lanes:
    """Placements under way, L of them; each stands for consecutive values of the grid that did not differ so far.

    Attributes:
        rows: which sequence each is of, shape (L,).
        low: first value of the grid, shape (L,).
        high: last value of the grid, shape (L,).
        contents: of every device, shape (L, D).
        ms: compute of every device, rounded for comparison, shape (L, D).
        bytes: used of every device, shape (L, D).
        columns: of every device, shape (L, D).
    """

    rows: Ints
    low: Ints
    high: Ints
    contents: Ints
    ms: Floats
    bytes: Ints
    columns: Ints

    def take(self, index: Ints) -> None:
        """Keep some lanes, or some of them more than once."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name)[index])

    def fork(self, forks: list[tuple[int, int]]) -> None:
        """Let rows go on from where their stems are."""
        copies = [(np.flatnonzero(self.rows == stem), row) for stem, row in forks]
        index = np.concatenate([np.arange(len(self.rows)), *(lanes for lanes, _ in copies)])
        rows = np.concatenate([self.rows, *(np.full(len(lanes), row) for lanes, row in copies)])
        self.take(index)
        self.rows = rows


class GridSearch:
    """Places shards in a given order, each on the device with the least compute so far that has room for it.

    Args:
        contents: prices devices.
        caps: largest columns of a device, one per value of the grid, ascending, shape (M,).
        budget: of time.
    """

    def __init__(self, contents: Contents, caps: Floats, budget: Budget) -> None:
        self._contents, self._caps, self._budget = contents, caps, budget
        self._kinds = contents.kinds
        self._memory: Ints = np.array(self._kinds.task.topology.memory_bytes, dtype=np.int64)

    def place(self, sequences: Ints, cutoff: Cutoff) -> Placed:
        """Find the best placement of each sequence over the grid.

        Args:
            sequences: kinds in the order they are placed, shape (C, n).
            cutoff: what costs more is of no interest; it gets an infinite cost.

        Raises:
            OutOfTime: the budget is spent.
        """
        self._contents.trim()
        tree = Prefixes(sequences)
        lanes = self._start()
        for step in range(sequences.shape[1]):
            self._budget.check()
            forks = tree.forks(step)
            if forks:
                lanes.fork(list(forks))
            self._step(lanes, tree.rows[lanes.rows, step])
            if not lanes.rows.size:
                break
        return best_placements(self._contents, lanes.rows, lanes.low, lanes.contents, tree.row_of, cutoff)

    def _start(self) -> _Lanes:
        shape = (1, len(self._memory))
        nothing = np.zeros(shape, dtype=np.int64)
        first = np.zeros(1, dtype=np.int64)
        return _Lanes(
            first, first, first + len(self._caps) - 1, np.full(shape, EMPTY), np.zeros(shape), nothing, nothing.copy()
        )

    def _step(self, lanes: _Lanes, kinds: Ints) -> None:
        """Place one shard in each lane, splitting lanes whose values of the grid lead to different devices."""
        columns, size = self._kinds.columns[kinds], self._kinds.bytes[kinds]
        index, device, low, high = self._choose(lanes, columns, size)
        if not np.array_equal(index, np.arange(len(lanes.rows))):
            lanes.take(index)
            kinds, columns, size = kinds[index], columns[index], size[index]
        lanes.low, lanes.high = low, high
        at = np.arange(len(index)), device
        added = self._contents.add(lanes.contents[at], kinds)
        lanes.contents[at], lanes.ms[at] = added, self._contents.compared_ms[added]
        lanes.bytes[at] += size
        lanes.columns[at] += columns

    def _choose(self, lanes: _Lanes, columns: Ints, size: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return lanes to go on from, with the device and the values of the grid of each.

        The largest value of a lane allows the most devices. Values that are too small for the device it leads to are
        looked at again without that device, and so on.
        """
        wide, room = lanes.columns + columns[:, None], lanes.bytes + size[:, None] <= self._memory
        index, high = np.arange(len(lanes.rows)), lanes.high
        parts = []
        while index.size:
            device, ms = _cheapest(lanes, index, room[index] & (wide[index] <= self._caps[high][:, None]))
            least = np.maximum(self._caps.searchsorted(wide[index, device]), lanes.low[index])
            alive = np.isfinite(ms)
            parts.append((index[alive], device[alive], least[alive], high[alive]))
            again = alive & (least > lanes.low[index])
            index, high = index[again], least[again] - 1
        if len(parts) == 1:
            return parts[0]
        joined = [np.concatenate(part) for part in zip(*parts, strict=True)]
        return joined[0], joined[1], joined[2], joined[3]


def _cheapest(lanes: _Lanes, index: Ints, allowed: npt.NDArray[np.bool_]) -> tuple[Ints, Floats]:
    """Return the allowed device with the least compute (ties: fewer bytes, lower number) and its ms or infinity."""
    ms = np.where(allowed, lanes.ms[index], np.inf)
    least = ms.min(axis=1)
    tied = ms == least[:, None]
    return np.where(tied, lanes.bytes[index], np.iinfo(np.int64).max).argmin(axis=1), least
