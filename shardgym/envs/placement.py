"""Placement: how far the placing of one task has come."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from shardgym.envs.figures import Figures
from shardgym.envs.shards import NO_SPLITS, SplitLimits, WaitingShard
from shardgym.plan import Shard, ShardingPlan


class Placement:
    """Which shards are on which devices, and which wait.

    Args:
        figures: of the task.
        limits: how often shards may be halved.

    Attributes:
        done: shards placed so far with their devices, in the order of placing.
        waiting: shards to place, the next one last.
        splits: halvings so far.
        used: bytes on every device, shape (D,).
        dims: summed columns, shape (D,).
        lookups: summed columns times pooling factor, shape (D,).
        tables: number of shards, shape (D,).
        bytes_left, dims_left, lookups_left: the same sums of the shards that wait.
    """

    def __init__(self, figures: Figures, limits: SplitLimits = NO_SPLITS) -> None:
        devices = len(figures.capacity)
        self.figures, self.limits = figures, limits
        self.done: list[tuple[WaitingShard, int]] = []
        self.waiting = figures.shards[::-1]
        self.splits = 0
        self._table_splits: Counter[int] = Counter()
        self.used = np.zeros(devices, dtype=np.int64)
        self.dims = np.zeros(devices, dtype=np.int64)
        self.lookups = np.zeros(devices)
        self.tables = np.zeros(devices, dtype=np.int64)
        self.bytes_left, self.dims_left = int(figures.sizes.sum()), int(figures.dims.sum())
        self.lookups_left = float(figures.lookups.sum())

    def copy(self) -> Placement:
        """Return an independent placement; the figures are shared."""
        other = object.__new__(Placement)
        other.__dict__.update(self.__dict__)
        for name in ("done", "waiting", "_table_splits", "used", "dims", "lookups", "tables"):
            setattr(other, name, getattr(self, name).copy())
        return other

    @property
    def placed(self) -> int:
        """Shards placed so far."""
        return len(self.done)

    @property
    def complete(self) -> bool:
        """Whether every shard is placed."""
        return not self.waiting

    @property
    def shards(self) -> int:
        """Shards that there are now, placed or waiting."""
        return len(self.done) + len(self.waiting)

    @property
    def next(self) -> WaitingShard | None:
        """The shard to place now; None when there is none."""
        return self.waiting[-1] if self.waiting else None

    @property
    def table_name(self) -> str:
        """Name of the table that the shard to place now is of; "" when there is none."""
        return self.figures.task.tables[self.waiting[-1].position].name if self.waiting else ""

    def fitting(self) -> npt.NDArray[np.bool_]:
        """Say which devices have room for the shard to place now, shape (D,); none when there is no such shard."""
        if not self.waiting:
            return np.zeros(len(self.used), dtype=np.bool_)
        fits: npt.NDArray[np.bool_] = self.figures.capacity - self.used >= self.waiting[-1].size
        return fits

    def split_refusal(self) -> str | None:
        """Return why the shard to place now cannot be halved, or None."""
        shard = self.waiting[-1]
        reason = self.limits.refusal(shard, self.splits, self._table_splits[shard.table])
        return None if reason is None else f"table '{self.table_name}' cannot be halved: {reason}"

    @property
    def can_split(self) -> bool:
        """Whether the shard to place now can be halved; False when there is none."""
        return bool(self.waiting) and self.split_refusal() is None

    def put(self, device: int) -> None:
        """Place the shard; `why_not_there(self, device)` must be None."""
        shard = self.waiting.pop()
        self.done.append((shard, device))
        self.used[device] += shard.size
        self.dims[device] += shard.width
        self.lookups[device] += shard.lookups
        self.tables[device] += 1
        self.bytes_left -= shard.size
        self.dims_left -= shard.width
        # Differences of floating-point sums do not end at 0 by themselves.
        self.lookups_left = self.lookups_left - shard.lookups if self.waiting else 0.0

    def halve(self) -> None:
        """Halve the shard; `split_refusal()` must be None. The halves go before those that they tie with."""
        shard = self.waiting.pop()
        left, right = shard.halves(self.figures.task, self.figures.order)
        before = len(self.waiting)
        while before and self.waiting[before - 1].key > left.key:
            before -= 1
        self.waiting[before:before] = [right, left]
        self.splits += 1
        self._table_splits[shard.table] += 1
        self.bytes_left += left.size + right.size - shard.size

    def shard_of(self, shard: WaitingShard, device: int) -> Shard:
        """Return a shard of this placement on a device."""
        table = self.figures.task.tables[shard.position]
        return Shard(table.name, (0, table.num_embeddings), (shard.start, shard.start + shard.width), device)

    def plan(self) -> ShardingPlan:
        """Return the plan of a complete placement."""
        return ShardingPlan.of(self.figures.task, (self.shard_of(shard, device) for shard, device in self.done))
