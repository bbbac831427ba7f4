"""Episodes of one task in TableWise or ColumnWise, without the environment around them.

There, a step is many small calls that serve any tasks; here it is a few of them, for one. Where an episode of the
environment would end without a plan, as a shard fits nowhere and no halvings are left, these halve on.
"""

from __future__ import annotations

import bisect

import numpy as np

from baselines.ppo.game import NOW, WITH_NEXT, Moments
from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.links import LOADS
from shardgym.costs.shard_keys import ShardKey
from shardgym.envs.features import (
    BYTES,
    DEVICE_FEATURES,
    FREE_BYTES,
    REMAINING_FEATURES,
    SHARDS,
    SPLIT_FEATURES,
    remaining_features,
)
from shardgym.envs.observation import Layout
from shardgym.envs.shard_catalog import ShardCatalog
from shardgym.tasks.task import ShardingTask

#: Places of shares among the features of a device.
_FREE = DEVICE_FEATURES.index("free_share")
_LOADS = slice(DEVICE_FEATURES.index("bytes_share"), DEVICE_FEATURES.index("tables_share") + 1)


class ColumnGame:
    """N episodes of a task; see `OneTaskGame`.

    Args:
        task: the task.
        catalog: that has this task alone, and numbers shards.
        costs: price devices, and the plans in the end.
        max_splits: halvings at most of shards that fit somewhere; None where tables are placed whole.
        episodes: N.
    """

    def __init__(
        self, task: ShardingTask, catalog: ShardCatalog, costs: AdditiveCosts, max_splits: int | None, episodes: int
    ) -> None:
        self.reason = ""
        self._catalog = catalog
        self._max_splits = max_splits
        self._halving = task.num_devices
        self._queues = _Queues(catalog, max_splits, episodes)
        self._devices = _Devices(task, catalog, costs, episodes)
        self._stuck = np.zeros(episodes, dtype=np.bool_)
        self._going = np.arange(episodes)

    def moments(self) -> Moments:
        """See `OneTaskGame`."""
        going = self._going
        if not len(going):
            return self._none_left()
        shards = self._queues.next(going)
        fits = self._devices.room[going] >= self._catalog.shard["bytes"][shards][:, None]
        fits_somewhere = fits.any(axis=1)
        # Where tables are placed whole, no shard of the catalog is halvable.
        can_halve = self._catalog.shard["halvable"][shards]
        can_halve &= ~fits_somewhere | (self._queues.splits[going] < (self._max_splits or 0))
        lost = ~(can_halve | fits_somewhere)
        if np.count_nonzero(lost):
            first = int(np.flatnonzero(lost)[0])
            self.reason = self.reason or _why(self._catalog, int(shards[first]), self._devices.room[going[first]])
            self._stuck[going[lost]] = True
            going, shards = going[~lost], shards[~lost]
            fits, can_halve = fits[~lost], can_halve[~lost]
            self._going = going
        if not len(going):
            return self._none_left()
        rest = self._queues.observe(going, shards)
        seen = self._devices.observe(going, shards)
        return Moments(going, shards, seen, rest, np.concatenate([fits, can_halve[:, None]], axis=1))

    def take(self, moments: Moments, chosen: Ints) -> None:
        """See `OneTaskGame`."""
        going, shards = moments.episodes, moments.shards
        halving = chosen == self._halving
        if np.count_nonzero(halving):
            self._queues.halve(going[halving])
            self._devices.expect(going[halving], self._queues.count)
            placing = ~halving
            if np.count_nonzero(placing):
                self._queues.place(going[placing], shards[placing], chosen[placing])
                self._devices.place(going[placing], shards[placing], chosen[placing])
        else:
            self._queues.place(going, shards, chosen)
            self._devices.place(going, shards, chosen)
        self._going = going[self._queues.waits(going)]

    def _none_left(self) -> Moments:
        nobody = np.zeros(0, dtype=np.int64)
        return Moments(nobody, nobody, np.zeros((0, 0, 0)), np.zeros((0, 0)), np.zeros((0, 0), dtype=np.bool_))

    def step_ms(self) -> Floats:
        """See `OneTaskGame`."""
        return np.where(self._stuck, np.inf, self._devices.step_ms())

    def placed(self, episode: int) -> Ints:
        """See `OneTaskGame`."""
        return np.array(self._queues.placed[episode]).T


def _why(catalog: ShardCatalog, shard: int, room: Floats) -> str:
    part = "table" if catalog.shard["width_share"][shard] == 1 else "a part of table"
    return (
        f"{part} '{catalog.shard['name'][shard]}' of {int(catalog.shard['bytes'][shard])} bytes fits on no device: the "
        f"largest room left is {int(room.max())} bytes"
    )


class _Queues:
    """The shards that wait in N episodes, of the only task of a catalog. `rows` are numbers of episodes, shape (n,).

    Args:
        catalog: of the task.
        max_splits: halvings at most; None where tables are placed whole.
        episodes: N.

    Attributes:
        placed: numbers of shards in the catalog, their first columns and devices, in the order of placing.
        count: of shards, placed or waiting, shape (N,).
        splits: halvings so far, shape (N,).
    """

    def __init__(self, catalog: ShardCatalog, max_splits: int | None, episodes: int) -> None:
        count = int(catalog.task["tables"][0])
        self._shard = catalog.shard
        self._max_splits = max_splits
        self._splits_left = Layout(0, max_splits).splits_left
        waiting = [(shard, 0) for shard in reversed(catalog.shards_of(0)[:count].tolist())]
        #: Numbers of shards in the catalog and their first columns, the next one last.
        self._waiting = [waiting.copy() for _ in range(episodes)]
        self.placed: list[list[tuple[int, int, int]]] = [[] for _ in range(episodes)]
        self.count = np.full(episodes, count)
        self.splits = np.zeros(episodes, dtype=np.int64)
        #: See `Placements.left` and `Placements.scale`.
        self._left: Floats = np.tile(catalog.task["totals"][0], (episodes, 1))
        self._scale: Floats = np.tile(catalog.task["scale"][0], (episodes, 1))

    def waits(self, rows: Ints) -> Bools:
        """Return in which of these episodes shards are left to place, shape (n,)."""
        return np.array([bool(self._waiting[row]) for row in rows.tolist()], dtype=np.bool_)

    def next(self, rows: Ints) -> Ints:
        """Return the numbers of the shards that come next, shape (n,)."""
        return np.array([self._waiting[row][-1][0] for row in rows.tolist()], dtype=np.int64)

    def observe(self, rows: Ints, shards: Ints) -> Floats:
        """Return entries "progress", "remaining" and "splits" of the observations before these shards, shape (n, 8)."""
        left = self._left[rows]
        scale = self._scale[rows]
        seen = np.zeros((len(rows), 1 + len(REMAINING_FEATURES) + len(SPLIT_FEATURES)))
        seen[:, 0] = 1 - left[:, SHARDS] / scale[:, SHARDS]
        seen[:, 1:-2] = remaining_features(left, scale)
        if self._max_splits is not None:
            seen[:, -2] = self._splits_left[np.minimum(self.splits[rows], self._max_splits)]
            seen[:, -1] = self._shard["width_share"][shards]
        return seen

    def place(self, rows: Ints, shards: Ints, devices: Ints) -> None:
        """Place the next shards, which are given, on devices, both of shape (n,)."""
        self._left[rows] -= self._shard["amounts"][shards]
        for row, device in zip(rows.tolist(), devices.tolist(), strict=True):
            self.placed[row].append((*self._waiting[row].pop(), device))

    def halve(self, rows: Ints) -> None:
        """Halve the next shards."""
        keys = self._shard["key"]
        amounts = self._shard["amounts"]
        for row in rows.tolist():
            waiting = self._waiting[row]
            whole, start = waiting.pop()
            half = int(self._shard["half"][whole])
            # In front of all shards that do not precede the halves, the left half first.
            at = bisect.bisect_right(waiting, keys[half], key=lambda other: keys[other[0]])
            waiting[at:at] = [(half, start + int(self._shard["width"][half])), (half, start)]
            self._left[row, :FREE_BYTES] += (2 * amounts[half] - amounts[whole])[:FREE_BYTES]
        self.count[rows] += 1
        self.splits[rows] += 1
        self._scale[rows, SHARDS] += 1


class _Devices:
    """What devices hold and compute in N episodes. `rows` are numbers of episodes, shape (n,).

    Args:
        task: the task.
        catalog: that has this task alone, and numbers shards.
        costs: price devices.
        episodes: N.

    Attributes:
        room: free bytes, shape (N, D).
    """

    def __init__(self, task: ShardingTask, catalog: ShardCatalog, costs: AdditiveCosts, episodes: int) -> None:
        shape = episodes, task.num_devices
        self._costs = costs
        self._task = costs.add_task(task)
        self._amounts: Floats = catalog.shard["amounts"][:, :FREE_BYTES]
        self._capacity: Floats = catalog.task["capacity"][0]
        self._scale: Floats = np.tile(catalog.task["scale"][0], (episodes, 1))
        keys = map(ShardKey, *(catalog.shard[name].tolist() for name in ("name", "rows", "width")))
        # The catalog's first shard is none.
        encoded = costs.encode_keys(task, list(keys)[1:])
        self._vectors = np.pad(costs.vectors(encoded), ((1, 0), (0, 0)))
        self._sums: Floats = np.zeros((*shape, self._vectors.shape[1]))
        self._loads: Floats = np.zeros((*shape, FREE_BYTES))
        self._most_even_shares = Layout(task.num_devices).most_even_shares
        self._even_share_ms = self._all_on_one_ms(task) / task.num_devices
        #: Entries "devices" and "times" of the observations.
        self._seen: Floats = np.zeros((*shape, WITH_NEXT + 1))
        self._seen[..., : len(DEVICE_FEATURES)] = catalog.task["devices"][0]
        self.room: Floats = np.tile(self._capacity, (episodes, 1))

    def observe(self, rows: Ints, shards: Ints) -> Floats:
        """Return entries "devices" and "times" of the observations before these shards, shape (n, D, 9)."""
        ms = self._costs.exact_compute_ms(self._sums[rows] + self._vectors[shards][:, None])
        shares = np.minimum(ms.sum(axis=2) / self._even_share_ms, self._most_even_shares)
        self._seen[rows, :, WITH_NEXT] = shares
        return self._seen[rows]

    def place(self, rows: Ints, shards: Ints, devices: Ints) -> None:
        """Place the shards that were observed on devices, both of shape (n,)."""
        self._sums[rows, devices] += self._vectors[shards]
        self._loads[rows, devices] += self._amounts[shards]
        loads = self._loads[rows, devices]
        capacity = self._capacity[devices]
        self.room[rows, devices] = capacity - loads[:, BYTES]
        seen = self._seen[rows, devices]
        seen[:, _FREE] = 1 - loads[:, BYTES] / capacity
        seen[:, _LOADS] = np.minimum(loads / self._scale[rows], 1.0)
        seen[:, NOW] = seen[:, WITH_NEXT]
        self._seen[rows, devices] = seen

    def expect(self, rows: Ints, count: Ints) -> None:
        """Observe loads as shares of so many shards, shape (N,)."""
        self._scale[rows, SHARDS] = count[rows]
        self._seen[rows, :, _LOADS] = np.minimum(self._loads[rows] / self._scale[rows][:, None], 1.0)

    def step_ms(self) -> Floats:
        """Return what the plans of the episodes cost, shape (N,)."""
        return self._costs.slowest_ms(self._task, self._costs.compute_ms(self._sums), self._sums[..., -LOADS:])

    def _all_on_one_ms(self, task: ShardingTask) -> float:
        sums = np.zeros((1, *self._sums.shape[1:]))
        sums[0, 0] = self._vectors[1 : 1 + task.num_tables].sum(axis=0)
        return float(self._costs.total_ms(self._task, sums)[0])
