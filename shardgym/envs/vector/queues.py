"""Queues: the shards that wait to be placed, of N environments."""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Ints
from shardgym.envs.shards import WaitingShard
from shardgym.envs.vector.shard_kinds import NOTHING
from shardgym.envs.vector.task_shards import TaskShards


def widened(array: Ints, columns: int) -> Ints:
    """Return an array with at least so many columns, new ones zero."""
    missing = columns - array.shape[1]
    return array if missing <= 0 else np.pad(array, ((0, 0), (0, missing)))


class Queues:
    """What `Placement.waiting` is for one environment. Methods take `rows`, numbers of environments, shape (n,).

    Args:
        num_envs: N.
        shards: tasks and kinds of shards.

    Attributes:
        waiting: shards in the queues, shape (N,).
        kinds, starts: of these shards kind and first column, the next one last, shape (N, Q); the rest is arbitrary.
        next, next_start: the next one, `NOTHING` where none waits, shape (N,).
    """

    def __init__(self, num_envs: int, shards: TaskShards) -> None:
        self._shards = shards
        self.waiting, self.next, self.next_start = np.zeros((3, num_envs), dtype=np.int64)
        self.kinds, self.starts = np.zeros((2, num_envs, 1), dtype=np.int64)

    def begin(self, rows: Ints, slots: Ints, most_splits: int) -> None:
        """Fill queues with the tables of tasks, whole.

        Args:
            rows: of the queues.
            slots: numbers of the tasks, shape (n,).
            most_splits: halvings that there must be room for.
        """
        tasks = self._shards.tasks
        counts = self.waiting[rows] = tasks["count"][slots]
        columns = int(counts.max()) + most_splits
        self.kinds, self.starts = widened(self.kinds, columns), widened(self.starts, columns)
        back = np.maximum(counts[:, None] - 1 - np.arange(self.kinds.shape[1]), 0)
        self.kinds[rows] = self._shards.tables["kind"][tasks["first"][slots][:, None] + back]
        self.starts[rows] = 0
        self._look(rows)

    def pop(self, rows: Ints) -> None:
        """Take the next shards out."""
        self.waiting[rows] -= 1
        self._look(rows)

    def halve(self, rows: Ints) -> None:
        """Put halves in place of the next shards, before those that they tie with; see `Placement.halve`."""
        columns, key = self._shards.kinds, self._shards.kinds["key"]
        half, start, rest = columns["half"][self.next[rows]], self.next_start[rows], self.waiting[rows] - 1
        kinds, starts, at = self.kinds[rows], self.starts[rows], np.arange(self.kinds.shape[1])
        # Keys ascend towards the end, so halves enter behind all that are not larger.
        before = ((key[kinds] <= key[half][:, None]) & (at < rest[:, None])).sum(axis=1)[:, None]
        source, here = np.where(at < before, at, np.maximum(at - 2, 0)), np.hstack([before, before + 1])
        kinds, starts = np.take_along_axis(kinds, source, 1), np.take_along_axis(starts, source, 1)
        np.put_along_axis(kinds, here, half[:, None], 1)
        np.put_along_axis(starts, here, np.column_stack([start + columns["width"][half], start]), 1)
        self.kinds[rows], self.starts[rows], self.waiting[rows] = kinds, starts, rest + 2
        self._look(rows)

    def shards(self, row: int) -> list[WaitingShard]:
        """Return the shards of one queue, the next one last."""
        held = slice(self.waiting[row])
        pairs = zip(self.kinds[row, held].tolist(), self.starts[row, held].tolist(), strict=True)
        return [self._shards.kinds.waiting(*pair) for pair in pairs]

    def renumber(self, shift: Ints) -> None:
        """Add to the kinds of every environment, shape (N,), as they have other numbers now."""
        held = np.arange(self.kinds.shape[1]) < self.waiting[:, None]
        self.kinds = np.where(held, self.kinds + shift[:, None], NOTHING)
        self._look(np.arange(len(self.waiting)))

    def _look(self, rows: Ints) -> None:
        waiting = self.waiting[rows]
        last = np.maximum(waiting - 1, 0)
        self.next[rows] = np.where(waiting > 0, self.kinds[rows, last], NOTHING)
        self.next_start[rows] = self.starts[rows, last]
