"""Placements: placed and waiting shards of N episodes at once."""

import numpy as np

from shardgym.arrays import Bools, Floats, Ints
from shardgym.envs.features import BYTES, FREE_BYTES, SHARDS
from shardgym.envs.kind_rules import KindRules, num_cuts
from shardgym.envs.shard_catalog import NOTHING, ShardCatalog, SplitLimits

#: Arrays of what an episode is in, by row.
_OF_EPISODES = (
    "shards", "starts", "devices", "placed", "loads", "left", "scale", "task", "splits", "next", "capacity", "active",
    "allowed",
)  # fmt: skip


class Placements:
    """The state of N placements as arrays. Methods take `rows`, numbers of episodes, shape (n,).

    Args:
        num_envs: number of environments, N.
        max_devices: most devices of a task, D.
        catalog: catalog of tasks and shards.
        limits: limits on halvings; None if halving is not an action.
        max_shards: initial capacity of the queues, which grow with the tasks.

    Attributes:
        task: number of the task in the catalog, shape (N,).
        shards: numbers of shards in the catalog, shape (N, Q): placed shards in the order of placing, then waiting
            ones, starting with the next, then `NOTHING`, at least once.
        starts: first columns of these shards, shape (N, Q).
        devices: devices of the placed shards, or the first of several holders, -1 for other shards, shape (N, Q).
        placed: number of placed shards, shape (N,).
        splits: halvings so far, shape (N,).
        next: the shard to place now, `NOTHING` when none is left, shape (N,).
        capacity: bytes of devices, -1 beyond the task's devices, shape (N, D).
        loads: bytes, columns, columns times pooling factor and number of the shards on every device, shape (N, D, 4);
            see `shard_kinds.KINDS` for those with several holders. Integers are exact up to 2**53.
        left: the same sums over waiting shards, and free bytes of all devices together, shape (N, 5).
        scale: denominators of the shares of `loads`, shape (N, 4). The last one is the current number of shards.
        active: whether the episode is running, shape (N,).
        allowed: valid actions, shape (N, actions + 1): devices, then halving, cutting rows and replicating if these are
            actions. The last column, always false, stands for actions that are out of range.
        kinds: the rules of shards with several holders; None if there are none.
    """

    def __init__(
        self, num_envs: int, max_devices: int, catalog: ShardCatalog, limits: SplitLimits | None, max_shards: int = 0
    ) -> None:
        self.catalog = catalog
        self._limits = limits
        self._max_devices = max_devices
        self._rows = np.arange(num_envs)
        self.task, self.placed, self.splits, self.next = np.zeros((4, num_envs), dtype=np.int64)
        self.active: Bools = np.zeros(num_envs, dtype=np.bool_)
        self.shards, self.starts, self.devices = np.zeros((3, num_envs, max_shards + 1), dtype=np.int64)
        self.capacity: Floats = np.zeros((num_envs, max_devices))
        self.loads: Floats = np.zeros((num_envs, max_devices, 4))
        self.left: Floats = np.zeros((num_envs, 5))
        self.scale: Floats = np.ones((num_envs, 4))
        actions = max_devices + num_cuts(limits)
        self.allowed: Bools = np.zeros((num_envs, actions + 1), dtype=np.bool_)
        self.kinds = KindRules(self) if limits is not None and limits.every_kind else None

    @property
    def count(self) -> Ints:
        """Number of placed and waiting shards, shape (N,)."""
        return self.scale[:, SHARDS].astype(np.int64)

    def start(self, rows: Ints, tasks: Ints) -> None:
        """Start placing tasks, given their numbers, shape (n,)."""
        task = self.catalog.task
        tables = task["tables"][tasks]
        self._make_room(int(tables.max()))
        places = np.arange(self.shards.shape[1])
        queue = task["first"][tasks][:, None] + places
        self.shards[rows] = np.where(places < tables[:, None], queue, NOTHING)
        self.starts[rows] = 0
        self.devices[rows] = -1
        self.task[rows] = tasks
        self.placed[rows] = 0
        self.splits[rows] = 0
        self.capacity[rows] = task["capacity"][tasks]
        self.loads[rows] = 0.0
        self.left[rows] = task["totals"][tasks]
        self.scale[rows] = task["scale"][tasks]
        self.active[rows] = True
        if self.kinds is not None:
            self.kinds.start(rows)
        self.update()

    def place(self, rows: Ints | np.int64, devices: Ints | np.int64) -> None:
        """Place the next shard of each episode on a device that has room for it, shape (n,). Call `update` afterwards.

        For one episode, both may be scalars, by which NumPy indexes several times as fast.
        """
        here = self.placed[rows]
        amounts = self.catalog.shard["amounts"][self.next[rows]]
        self.devices[rows, here] = devices
        self.placed[rows] = here + 1
        self.left[rows] -= amounts
        if self.kinds is None:
            self.loads[rows, devices] += amounts[..., :FREE_BYTES]
        else:
            self.kinds.place(np.atleast_1d(rows), np.atleast_1d(devices))

    def become(self, rows: Ints, kind: str) -> None:
        """Cut the rows of the next shard of each episode (kind "by_rows"), or replicate it (kind "replica").

        This must be valid. Call `update` after a cut, and `place` on device 0 after a replication.
        """
        shards = self.catalog.kind[kind][self.next[rows]]
        self.shards[rows, self.placed[rows]] = shards
        self.next[rows] = shards
        assert self.kinds is not None
        self.kinds.become(rows)

    def halve(self, rows: Ints) -> None:
        """Halve the next shard of each episode, which must be valid. Call `update` afterwards.

        The halves, left one first, go in front of the first waiting shard whose key is not larger than theirs.
        """
        catalog = self.catalog.shard
        whole = self.next[rows]
        half = catalog["half"][whole]
        here = self.placed[rows]
        start = self.starts[rows, here]
        queue = self.shards[rows]
        places = np.arange(queue.shape[1])
        behind = places > here[:, None]
        # Keys descend along the queue, so the waiting shards with a larger key lie together, at its front.
        larger = behind & (queue != NOTHING) & (catalog["key"][queue] > catalog["key"][half][:, None])
        left = here + np.count_nonzero(larger, axis=1)
        # Shards with a larger key move one place to the front, those behind the halves one to the back.
        forward = (places >= here[:, None]) & (places < left[:, None])
        source = places + forward - (places > left[:, None] + 1)
        for array, left_half, right_half in (
            (self.shards, half, half), (self.starts, start, start + catalog["width"][half])
        ):  # fmt: skip
            array[rows] = array[rows[:, None], source]
            array[rows, left] = left_half
            array[rows, left + 1] = right_half
        # Two halves may hold more optimiser state than the whole.
        amounts = catalog["amounts"]
        self.left[rows, :FREE_BYTES] += (2 * amounts[half] - amounts[whole])[:, :FREE_BYTES]
        self.scale[rows, SHARDS] += 1
        self.splits[rows] += 1
        if self.kinds is not None:
            self.kinds.halve(rows, catalog["position"][half])

    def update(self) -> None:
        """Recompute `next` and `allowed` after shards were placed or halved."""
        shard = self.catalog.shard
        self.next = self.shards[self._rows, self.placed]
        room = self.capacity - self.loads[:, :, BYTES]
        np.greater_equal(room, shard["bytes"][self.next][:, None], out=self.allowed[:, : self._max_devices])
        if self._limits is not None:
            can_halve = self.allowed[:, self._max_devices]
            np.less(self.splits, self._limits.max_splits, out=can_halve)
            can_halve &= shard["halvable"][self.next]
            if self.kinds is not None:
                self.kinds.limit(room)
        self.allowed &= self.active[:, None]

    def end(self, row: int) -> None:
        """End an episode, so that no action is valid."""
        self.active[row] = False
        self.allowed[row] = False
        if self.next[row] == NOTHING:
            # The running differences of floating-point sums need not end at exactly 0.
            self.left[row, :FREE_BYTES] = 0.0

    def copy(self, row: int, rows: Ints) -> None:
        """Make other episodes copies of one."""
        for name in _OF_EPISODES:
            array = getattr(self, name)
            array[rows] = array[row]
        if self.kinds is not None:
            self.kinds.copy(row, rows)

    def _make_room(self, shards: int) -> None:
        """Widen the queues to so many shards, their possible halvings, and the final `NOTHING`."""
        max_splits = self._limits.max_splits if self._limits else 0
        missing = shards + max_splits + 1 - self.shards.shape[1]
        if missing > 0:
            for name in ("shards", "starts", "devices"):
                fill = -1 if name == "devices" else 0
                setattr(self, name, np.pad(getattr(self, name), ((0, 0), (0, missing)), constant_values=fill))
