"""Plans of finished episodes, many at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardgym.arrays import Ints
from shardgym.envs.vector.placements import Placements
from shardgym.envs.vector.task_shards import TaskShards
from shardgym.plan import Shard, ShardingPlan

#: Shards that are kept to be part of later plans too.
_SHARDS_KEPT = 2**20

#: Where kind and first column lie in the bits of a key, above the device. Both of these are fewer than 2**17.
_KIND, _START = 33, 16
_LAST = 2**62


class Finished(NamedTuple):
    """P complete placements.

    Attributes:
        slots: numbers of their tasks, shape (P,).
        counts: shards of each, shape (P,).
        kinds: of all shards, plan after plan, each plan's in the order of `ShardingPlan.shards`, shape (H,).
        starts: first columns, shape (H,).
        devices: shape (H,).
    """

    slots: Ints
    counts: Ints
    kinds: Ints
    starts: Ints
    devices: Ints

    def pick(self, numbers: Ints) -> Finished:
        """Return some of the placements, whose numbers are given in ascending order, shape (n,)."""
        picked = np.zeros(len(self.counts), dtype=np.bool_)
        picked[numbers] = True
        held = np.repeat(picked, self.counts)
        return Finished(
            self.slots[picked], self.counts[picked], self.kinds[held], self.starts[held], self.devices[held]
        )


def finished(placements: Placements, rows: Ints) -> Finished:
    """Return the complete placements of some environments, shape (P,)."""
    counts = placements.placed[rows]
    most = counts.max()
    kinds, starts, devices = (
        array[rows, :most] for array in (placements.done, placements.done_start, placements.done_device)
    )
    held = np.arange(most) < counts[:, None]
    # Plans are sorted by the table's name, then by columns, which are at most 2**16.
    key = (placements.shards.kinds["rank"][kinds] << 17) + starts
    order = np.argsort(np.where(held, key, _LAST), axis=1)
    sort = (np.take_along_axis(array, order, 1)[held] for array in (kinds, starts, devices))
    return Finished(placements.slot[rows], counts, *sort)


class PlanMaker:
    """Makes plans of complete placements.

    Args:
        shards: of the tasks.
    """

    def __init__(self, shards: TaskShards) -> None:
        self._shards, self._known = shards, _KnownShards(shards)

    def forget(self) -> None:
        """Forget all shards, as kinds have other numbers now."""
        self._known.clear()

    def plans(self, done: Finished) -> list[ShardingPlan]:
        """Return the plans of complete placements."""
        if len(self._known) > _SHARDS_KEPT:
            self.forget()
        keys = (done.kinds << _KIND) | (done.starts << _START) | done.devices
        shards, ends = list(map(self._known.__getitem__, keys.tolist())), np.cumsum(done.counts)
        pieces = zip(done.slots.tolist(), (ends - done.counts).tolist(), ends.tolist(), strict=True)
        return [
            _plan(self._shards.figures[slot].task.digest, tuple(shards[first:last])) for slot, first, last in pieces
        ]


class _KnownShards(dict[int, Shard]):
    """Shards by kind, first column and device, which are packed into one number; made when first asked for."""

    def __init__(self, shards: TaskShards) -> None:
        super().__init__()
        self._shards = shards

    def __missing__(self, key: int) -> Shard:
        start, device = (key & (1 << _KIND) - 1) >> _START, key & (1 << _START) - 1
        self[key] = shard = self._shards.kinds.shard(key >> _KIND, start, device)
        return shard


def _plan(task_hash: str, shards: tuple[Shard, ...]) -> ShardingPlan:
    """Return a plan without checking its parts again: the hash is a task's own, and the shards are sorted."""
    plan = object.__new__(ShardingPlan)
    plan.__dict__.update(task_hash=task_hash, shards=shards, schema=ShardingPlan.schema)
    return plan
