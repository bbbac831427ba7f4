"""ShardCatalog: static figures of tasks and their shards, as arrays."""

from typing import Any, NamedTuple

import numpy as np

from shardgym.arrays import GrowingArrays, Ints
from shardgym.envs.features import (
    BYTES,
    COLUMNS,
    DEVICE_FEATURES,
    FREE_BYTES,
    LOOKUPS,
    SHARDS,
    TABLE_FEATURES,
    empty_devices,
    shard_features,
)
from shardgym.envs.shard_kinds import KINDS, kinds_of_none, with_kinds
from shardgym.errors import UnknownNameError
from shardgym.plans.shard import COLUMN_UNIT, Shard
from shardgym.tasks.task import ShardingTask

#: In what order tables come up: by memory, by columns times pooling factor (both descending, ties in the task's order),
#: or as the task lists them.
ORDERS = ("size", "lookup", "task")

#: Number of the placeholder shard for "none is left". Its size is infinite, so it fits on no device.
NOTHING = 0


class SplitLimits(NamedTuple):
    """Limits on halvings, and whether tables may also be cut by rows and replicated."""

    max_splits: int  #: maximum number of halvings in an episode
    every_kind: bool = False  #: whether shards may be cut by rows and tables replicated


class Placed(NamedTuple):
    """A placed shard of an episode; shards of several tasks may be equal."""

    table: str  #: name of the table
    rows: int  #: rows of each holder
    width: int  #: number of columns
    start: int  #: first column
    device: int  #: first holder
    holders: int = 1  #: number of holders, which are consecutive
    replicated: bool = False  #: whether each holder has all rows
    last_rows: int = 0  #: rows of the last of several holders

    def in_plan(self) -> tuple[Shard, ...]:
        """Return it as shards of a plan, in the order of rows, without validation."""
        columns = (self.start, self.start + self.width)
        devices = range(self.device, self.device + self.holders)
        if self.holders == 1 or self.replicated:
            shard = Shard.unchecked(table=self.table, rows=(0, self.rows), columns=columns, devices=tuple(devices))
            return (shard,)
        last = (self.holders - 1) * self.rows + self.last_rows
        return tuple(
            Shard.unchecked(table=self.table, rows=(row, min(row + self.rows, last)), columns=columns, devices=(of,))
            for row, of in zip(range(0, last, self.rows), devices, strict=True)
        )


class ShardCatalog:
    """Tasks, and the shards that can come up in them: whole tables, their halves, quarters and so on.

    Tasks and shards are numbered in the order of their addition. Shards of one task have consecutive numbers, its whole
    tables first. A shard is a table and a number of columns, since its first column changes no figure. It has one
    holder, or several, which share its rows evenly or have all of them (see `shard_kinds.py`).

    Args:
        order: order of tables, one of `ORDERS`.
        max_devices: maximum number of devices of a task, D.
        limits: limits on halvings; None if tables are placed whole.
        replicas: whether tables may be replicated, if `limits` allow every kind.

    Attributes:
        tasks: tasks by number.
        task: arrays with an entry for each task. `first`: number of its first shard; `tables`: number of tables;
            `num_devices`; `capacity`: bytes of every device, -1 beyond the last one, shape (D,); `totals`: sums of the
            first four `amounts` over its tables, and bytes of all its devices, shape (5,); `scale`: denominators of
            shares, shape (4,); `devices`: features of empty devices; `is_odd`: whether a table has a width that no
            kernel takes; `hash`; `name`.
        shard: arrays with an entry for each shard. `amounts`: bytes with optimiser state, columns, columns times
            pooling factor, 1 (itself), and bytes that all its holders take from the free ones; `bytes` on a holder;
            `key`: what the queue is ordered by, descending; `half`: number of its halves, -1 if it cannot be halved;
            `halvable`; `position` of the table in `task.tables`; `rank` of the table's name among the task's; `rows`:
            those that a holder has; `width`: columns; `width_share`: of the whole table; `features`: see
            `shard_features`; `name` of the table.
        kind: arrays with an entry for each shard, too; empty where shards have one holder. See `shard_kinds.KINDS`.

    Raises:
        UnknownNameError: no such order.
    """

    def __init__(self, order: str, max_devices: int, limits: SplitLimits | None, *, replicas: bool = False) -> None:
        if order not in ORDERS:
            raise UnknownNameError("order", order, ORDERS)
        self._order = order
        self._max_devices = max_devices
        self._limits = limits or SplitLimits(0)
        self._replicas = replicas
        number = ((), np.int64)
        real = ((), np.float64)
        label = ((), np.object_)
        device = ((self._max_devices,), np.float64)
        self.tasks: list[ShardingTask] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self.task = GrowingArrays(
            first=number, tables=number, num_devices=number, capacity=device, totals=((5,), np.float64),
            scale=((4,), np.float64), devices=((self._max_devices, len(DEVICE_FEATURES)), np.float32),
            is_odd=((), np.bool_), hash=label, name=label,
        )  # fmt: skip
        self.shard = GrowingArrays(
            amounts=((5,), np.float64), bytes=real, key=real, half=number, halvable=((), np.bool_), position=number,
            rank=number, rows=number, width=number, width_share=real, name=label,
            features=((len(TABLE_FEATURES),), np.float32),
        )  # fmt: skip
        self.shard.append(
            amounts=[[np.inf, 0, 0, 0, 0]], bytes=[np.inf], key=[0], half=[-1], halvable=[False], position=[-1],
            rank=[-1], rows=[0], width=[0], width_share=[0], features=np.zeros((1, len(TABLE_FEATURES))), name=[""],
        )  # fmt: skip
        self.kind = GrowingArrays(**KINDS)
        if self._limits.every_kind:
            self.kind.append(**kinds_of_none())

    def number(self, task: ShardingTask) -> int:
        """Return the number of a task, adding it if it is new."""
        key = task.digest, task.name
        if key not in self._numbers:
            self._add(task)
            self._numbers[key] = len(self.tasks)
            self.tasks.append(task)
        return self._numbers[key]

    def shards_of(self, task: int) -> Ints:
        """Return the numbers of all shards of a task."""
        first = self.task["first"]
        end = first[task + 1] if task + 1 < len(first) else len(self.shard)
        return np.arange(first[task], end)

    def placed(self, shards: Ints, starts: Ints, devices: Ints) -> list[Placed]:
        """Return shards as placed shards.

        Args:
            shards: their numbers, shape (n,).
            starts: their first columns, shape (n,).
            devices: their first holders, shape (n,).
        """
        of_shard = [self.shard[name][shards].tolist() for name in ("name", "rows", "width")]
        if not self._limits.every_kind:
            return [Placed(*fields) for fields in zip(*of_shard, starts.tolist(), devices.tolist(), strict=True)]
        kinds = [self.kind[name][shards].tolist() for name in ("holders", "replicated")]
        last_rows = self.shard["rows"][self.kind["last"][shards]].tolist()
        fields = zip(*of_shard, starts.tolist(), devices.tolist(), *kinds, last_rows, strict=True)
        return [Placed(*of_one) for of_one in fields]

    def _add(self, task: ShardingTask) -> None:
        dims = np.array([table.embedding_dim for table in task.tables])
        rows = np.array([table.num_embeddings for table in task.tables])
        sizes = task.columns_bytes(np.arange(len(dims)), dims).astype(np.float64)
        lookups = dims * np.array([table.pooling_factor for table in task.tables])
        keys = {"size": sizes, "lookup": lookups, "task": np.zeros(len(dims))}
        queue = np.argsort(-keys[self._order], kind="stable").tolist()

        # The loop extends the list that it walks: halves are appended behind the tables, and are halved in turn.
        shards = [(position, task.tables[position].embedding_dim) for position in queue]
        halves = []
        for position, width in shards:
            depth = (task.tables[position].embedding_dim // width).bit_length() - 1
            if width % (2 * COLUMN_UNIT) == 0 and depth < self._limits.max_splits:
                halves.append(len(self.shard) + len(shards))
                shards.append((position, width // 2))
            else:
                halves.append(-1)

        position, width = np.array(shards).T
        amounts = np.ones((len(shards), 5))
        amounts[:, BYTES] = task.columns_bytes(position, width)
        amounts[:, COLUMNS] = width
        # The parts of a table have exactly as many lookups as the table, as this divides by powers of two.
        amounts[:, LOOKUPS] = lookups[position] / (dims[position] // width)
        amounts[:, FREE_BYTES] = amounts[:, BYTES]
        capacity = np.full(self._max_devices, -1.0)
        capacity[: task.num_devices] = task.capacity_bytes
        largest_device = max(capacity.max(), 1.0)
        totals = [sizes.sum(), dims.sum(), lookups[queue].sum(), len(dims), sum(task.capacity_bytes)]
        scale = [totals[BYTES], totals[COLUMNS], totals[LOOKUPS] or 1.0, totals[SHARDS]]

        names = [table.name for table in task.tables]
        rank = {name: number for number, name in enumerate(sorted(names))}
        key = {"size": amounts[:, BYTES], "lookup": amounts[:, LOOKUPS], "task": np.zeros(len(width))}
        figures: dict[str, Any] = {
            "amounts": amounts, "bytes": amounts[:, BYTES], "key": key[self._order], "half": np.array(halves),
            "halvable": np.array(halves) > 0, "position": position, "rows": rows[position],
            "width": width, "width_share": width / dims[position],
            "features": shard_features(task, position, amounts, scale, largest_device),
        }  # fmt: skip
        if self._limits.every_kind:
            figures, kinds = with_kinds(task, figures, len(self.shard), scale, largest_device, replicas=self._replicas)
            self.kind.append(**kinds)
        positions = figures["position"].tolist()
        first = self.shard.append(
            rank=[rank[names[at]] for at in positions], name=[names[at] for at in positions], **figures
        )
        self.task.append(
            first=[first], tables=[len(dims)], num_devices=[task.num_devices], capacity=[capacity], totals=[totals],
            scale=[scale], devices=[empty_devices(capacity)],
            is_odd=[bool((dims % COLUMN_UNIT).any())], hash=[task.digest], name=[task.name],
        )  # fmt: skip
