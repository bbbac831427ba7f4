"""Shelf: every width of every table that a device can hold, ready to be added up."""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Ints
from shardgym.plan import COLUMN_UNIT, Shard
from shardgym.task import ShardingTask


class Shelf:
    """Shards of 0, 1, 2, ... units of columns of each table; a unit is four columns, the least that can be cut off.

    A device holds at most one shard of a table: two would read the same ids twice.

    Args:
        task: the task; all widths are divisible by four.

    Attributes:
        task: the task.
        units: of each table, uncut, shape (T,).
        first: row of each table's shard of 0 units; that of u units is u rows further on, shape (T,).
        tables: position of each row's table in the task, shape (R,).
        columns: of each row, shape (R,).
        bytes: of each row, optimiser state included, shape (R,).
    """

    def __init__(self, task: ShardingTask) -> None:
        self.task = task
        self.units: Ints = np.array([table.embedding_dim // COLUMN_UNIT for table in task.tables], dtype=np.int64)
        self.first: Ints = np.cumsum(self.units + 1) - (self.units + 1)
        self.tables: Ints = np.repeat(np.arange(len(self.units)), self.units + 1)
        self.columns: Ints = COLUMN_UNIT * (np.arange(len(self.tables)) - self.first[self.tables])
        self.bytes: Ints = np.array(
            [
                task.block_bytes(task.tables[table].num_embeddings, columns) if columns else 0
                for table, columns in zip(self.tables.tolist(), self.columns.tolist(), strict=True)
            ],
            dtype=np.int64,
        )

    def __len__(self) -> int:
        return len(self.tables)

    def shard(self, row: int, first_column: int = 0, device: int = 0) -> Shard:
        """Return a row that is not empty as a shard."""
        table = self.task.tables[self.tables[row]]
        columns = first_column, first_column + int(self.columns[row])
        return Shard(table.name, (0, table.num_embeddings), columns, device)
