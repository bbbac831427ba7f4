"""Kinds: every shard that halving columns can lead to."""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Ints
from shardgym.plan import COLUMN_UNIT, Shard
from shardgym.task import ShardingTask


class Kinds:
    """Shards up to where their columns begin: table and width. The two halves of a shard are of one kind.

    Args:
        task: the task.

    Attributes:
        task: the task.
        tables: position of each kind's table in the task, shape (S,).
        columns: width of each kind, shape (S,).
        bytes: of each kind, optimiser state included, shape (S,).
        halves: the kind of each kind's halves, -1 where it cannot be halved, shape (S,).
        whole: kind of each table, uncut, shape (T,).
    """

    def __init__(self, task: ShardingTask) -> None:
        self.task = task
        rows = [(n, width) for n, table in enumerate(task.tables) for width in _widths(table.embedding_dim)]
        self.tables: Ints = np.array([n for n, _ in rows], dtype=np.int64)
        self.columns: Ints = np.array([width for _, width in rows], dtype=np.int64)
        self.bytes: Ints = np.array(
            [task.block_bytes(task.tables[n].num_embeddings, width) for n, width in rows], dtype=np.int64
        )
        last = np.append(self.tables[1:] != self.tables[:-1], True)
        self.halves: Ints = np.where(last, -1, np.arange(1, len(rows) + 1))
        self.whole: Ints = np.flatnonzero(np.append(True, last[:-1]))

    def __len__(self) -> int:
        return len(self.tables)

    def shard(self, kind: int, first_column: int = 0, device: int = 0) -> Shard:
        """Return a shard of a kind."""
        table = self.task.tables[self.tables[kind]]
        columns = first_column, first_column + int(self.columns[kind])
        return Shard(table.name, (0, table.num_embeddings), columns, device)


def _widths(columns: int) -> list[int]:
    """Return a width, its half and so on while halves can be fused (NeuroShard, `neurosharder.py`)."""
    widths = [columns]
    while (widths[-1] // 2) % COLUMN_UNIT == 0:
        widths.append(widths[-1] // 2)
    return widths
