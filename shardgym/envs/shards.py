"""Waiting shards: a table of a task, or the part of its columns that halving left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shardgym.errors import InputError
from shardgym.plan import COLUMN_UNIT
from shardgym.records import short_repr
from shardgym.task import ShardingTask


class WaitingShard(NamedTuple):
    """All rows of some columns of one table, with the figures that placing needs.

    Attributes:
        table: number of the table in the order in which tables come up.
        position: position of the table in `task.tables`.
        start: first column.
        width: columns.
        size: bytes, optimiser state included.
        lookups: columns times pooling factor.
        key: what the queue is ordered by, descending.
    """

    table: int
    position: int
    start: int
    width: int
    size: int
    lookups: float
    key: float

    def halves(self, task: ShardingTask, order: str) -> tuple[WaitingShard, WaitingShard]:
        """Return the left and the right half; the width must be even."""
        width, rows = self.width // 2, task.tables[self.position].num_embeddings
        size, lookups = task.block_bytes(rows, width), self.lookups / 2
        key = order_key(order, size, lookups, width)
        left = self._replace(width=width, size=size, lookups=lookups, key=key)
        return left, left._replace(start=self.start + width)


def order_key(order: str, size: int, lookups: float, width: int) -> float:
    """Return what a queue in this order is sorted by, descending."""
    return {"size": size, "lookup": lookups, "dim": width, "task": 0}[order]


@dataclass(frozen=True)
class SplitLimits:
    """How often shards may be halved in one episode.

    Attributes:
        per_episode: halvings in all.
        per_table: halvings of the shards of one table; None for no limit of its own.

    Raises:
        InputError: a limit is not a whole number from 0 on.
    """

    per_episode: int
    per_table: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("max_splits", self.per_episode), ("max_table_splits", self.per_table)):
            if value is None and name == "max_table_splits":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InputError(f"{name} {short_repr(value)} is not a whole number from 0 on")

    def refusal(self, shard: WaitingShard, splits: int, table_splits: int) -> str | None:
        """Return why a shard cannot be halved, or None.

        Args:
            shard: the shard.
            splits: halvings in the episode so far.
            table_splits: halvings of the shards of its table so far.
        """
        if shard.width % (2 * COLUMN_UNIT):
            return f"its {shard.width} columns are not divisible by {2 * COLUMN_UNIT}"
        if splits >= self.per_episode:
            return f"max_splits={self.per_episode} is used up"
        if self.per_table is not None and table_splits >= self.per_table:
            return f"max_table_splits={self.per_table} is used up"
        return None


#: Tables are placed whole.
NO_SPLITS = SplitLimits(0)
