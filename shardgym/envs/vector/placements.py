"""Placements: how far the placing of N tasks has come, as arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Ints
from shardgym.envs.placement import Placement
from shardgym.envs.shards import SplitLimits
from shardgym.envs.vector.queues import Queues, widened
from shardgym.envs.vector.shard_kinds import NOTHING
from shardgym.envs.vector.task_shards import TaskShards


class Placements:
    """`Placement` for N environments; see there for what is not described here.

    Methods take `rows`, numbers of environments, shape (n,).

    Args:
        num_envs: N.
        max_devices: D.
        shards: tasks and kinds of shards.
        limits: how often shards may be halved.

    Attributes:
        slot: number of the task in `shards`, shape (N,).
        queue: shards that wait.
        placed, splits: numbers of shards and halvings, shape (N,).
        done, done_start, done_device: kind, first column and device of the shards placed so far, shape (N, Q).
        capacity, used, dims, lookups, tables: of devices, shape (N, D); no capacity (-1) where there is no device.
        free: bytes of all devices, shape (N,).
        bytes_left, dims_left, lookups_left: of the shards that wait, shape (N,).
        fits: whether devices have room for the shard to place now, shape (N, D).
        can_split: whether it can be halved, shape (N,).
        open: whether anything can be done about it, shape (N,).
    """

    def __init__(self, num_envs: int, max_devices: int, shards: TaskShards, limits: SplitLimits) -> None:
        self.shards, self.limits, self.queue = shards, limits, Queues(num_envs, shards)
        self.slot, self.placed, self.splits, self.free = np.zeros((4, num_envs), dtype=np.int64)
        self.bytes_left, self.dims_left = np.zeros((2, num_envs), dtype=np.int64)
        self.done, self.done_start, self.done_device, self._table_splits = np.zeros((4, num_envs, 1), dtype=np.int64)
        self.capacity, self.used, self.dims, self.tables = np.zeros((4, num_envs, max_devices), dtype=np.int64)
        self.lookups, self.lookups_left = np.zeros((num_envs, max_devices)), np.zeros(num_envs)
        self.fits = np.zeros((num_envs, max_devices), dtype=np.bool_)
        self.can_split, self.open = np.zeros((2, num_envs), dtype=np.bool_)

    @property
    def count(self) -> Ints:
        """Shards that there are now, placed or waiting, shape (N,)."""
        return self.placed + self.queue.waiting

    def begin(self, rows: Ints, slots: Ints) -> None:
        """Start placing tasks, whose numbers are given, shape (n,)."""
        tasks = self.shards.tasks
        self.slot[rows] = slots
        self.queue.begin(rows, slots, self.limits.per_episode)
        for name in ("done", "done_start", "done_device", "_table_splits"):
            setattr(self, name, widened(getattr(self, name), self.queue.kinds.shape[1]))
        for array in (self.placed, self.splits, self.used, self.dims, self.lookups, self.tables, self._table_splits):
            array[rows] = 0
        capacity = self.capacity[rows] = tasks["capacity"][slots]
        self.free[rows] = np.maximum(capacity, 0).sum(axis=1)
        self.bytes_left[rows], self.dims_left[rows] = tasks["bytes"][slots], tasks["dims"][slots]
        self.lookups_left[rows] = tasks["lookups"][slots]
        self._look(rows)

    def put(self, rows: Ints, devices: Ints) -> None:
        """Place the next shard of each environment on a device that has room for it, shape (n,)."""
        kinds, now, placed = self.shards.kinds, self.queue.next[rows], self.placed[rows]
        size, width, lookups = kinds["size"][now], kinds["width"][now], kinds["lookups"][now]
        self.done[rows, placed], self.done_device[rows, placed] = now, devices
        self.done_start[rows, placed] = self.queue.next_start[rows]
        self.placed[rows] = placed + 1
        self.used[rows, devices] += size
        self.dims[rows, devices] += width
        self.lookups[rows, devices] += lookups
        self.tables[rows, devices] += 1
        self.free[rows] -= size
        self.bytes_left[rows] -= size
        self.dims_left[rows] -= width
        self.queue.pop(rows)
        self.lookups_left[rows] = np.where(self.queue.waiting[rows] > 0, self.lookups_left[rows] - lookups, 0.0)
        self._look(rows)

    def halve(self, rows: Ints) -> None:
        """Halve the next shard of each environment, which must be possible."""
        kinds, now = self.shards.kinds, self.queue.next[rows]
        self.splits[rows] += 1
        self._table_splits[rows, kinds["table"][now]] += 1
        self.bytes_left[rows] += 2 * kinds["size"][kinds["half"][now]] - kinds["size"][now]
        self.queue.halve(rows)
        self._look(rows)

    def placement(self, row: int) -> Placement:
        """Return the placement of one environment as an object of its own."""
        figures, queue = self.shards.figures[self.slot[row]], self.queue
        placement, devices = Placement(figures, self.limits), len(figures.capacity)
        for name in ("used", "dims", "lookups", "tables"):
            setattr(placement, name, getattr(self, name)[row, :devices].copy())
        done = (array[row, : self.placed[row]].tolist() for array in (self.done, self.done_start, self.done_device))
        placement.done = [(self.shards.kinds.waiting(k, start), device) for k, start, device in zip(*done, strict=True)]
        placement.waiting = queue.shards(row)
        placement.splits = int(self.splits[row])
        placement._table_splits.update(dict(enumerate(self._table_splits[row].tolist())))
        return placement

    def clear(self, rows: Ints) -> None:
        """Take all shards away, as another task is about to begin."""
        self.slot[rows] = self.placed[rows] = self.queue.waiting[rows] = 0

    def renumber(self, number: Ints, shift: Ints) -> None:
        """Go on with other numbers of tasks and kinds; see `TaskShards.keep`."""
        shift = shift[self.slot]
        held = np.arange(self.done.shape[1]) < self.placed[:, None]
        self.done = np.where(held, self.done + shift[:, None], NOTHING)
        self.slot = number[self.slot]
        self.queue.renumber(shift)

    def _look(self, rows: Ints) -> None:
        """Find out what can be done about the shard to place now."""
        kinds, now = self.shards.kinds, self.queue.next[rows]
        fits = self.capacity[rows] - self.used[rows] >= kinds["size"][now][:, None]
        self.fits[rows], self.open[rows] = fits, fits.any(axis=1)
        if self.limits.per_episode:
            can_split = self.can_split[rows] = self._can_split(rows, now)
            self.open[rows] |= can_split

    def _can_split(self, rows: Ints, now: Ints) -> npt.NDArray[np.bool_]:
        kinds = self.shards.kinds
        can = (kinds["half"][now] >= 0) & (self.splits[rows] < self.limits.per_episode)
        if self.limits.per_table is not None:
            can &= self._table_splits[rows, kinds["table"][now]] < self.limits.per_table
        return np.asarray(can, dtype=np.bool_)
