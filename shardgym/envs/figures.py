"""Figures: what placing needs of a task's tables, worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.envs.shards import WaitingShard
from shardgym.errors import UnknownNameError
from shardgym.task import ShardingTask

#: In what order tables come up: by memory, by dimension times pooling factor, by dimension (each descending, ties in
#: the task's order), or as the task lists them.
ORDERS = ("size", "lookup", "dim", "task")


@dataclass(frozen=True, eq=False)
class Figures:
    """What placing needs of a task's tables, as arrays of shape (T,) in the order in which they come up.

    Attributes:
        task: the task.
        order: one of `ORDERS`.
        positions: positions in `task.tables`.
        sizes: bytes, optimiser state included.
        dims: columns.
        lookups: columns times pooling factor.
        keys: what the order is by, descending.
        capacity: bytes of every device, shape (D,).
    """

    task: ShardingTask
    order: str
    positions: Ints
    sizes: Ints
    dims: Ints
    lookups: Floats
    keys: Ints | Floats
    capacity: Ints

    @classmethod
    def of(cls, task: ShardingTask, order: str) -> Self:
        """Work out the figures of a task; raises `UnknownNameError` when `order` is none of `ORDERS`."""
        sizes = np.array([task.table_bytes(table) for table in task.tables], dtype=np.int64)
        dims = np.array([table.embedding_dim for table in task.tables], dtype=np.int64)
        lookups = dims * np.array([table.pooling_factor for table in task.tables])
        keys = {"size": sizes, "lookup": lookups, "dim": dims, "task": np.zeros_like(sizes)}[check_order(order)]
        at = np.argsort(-keys, kind="stable")
        capacity = np.array(task.topology.memory_bytes, dtype=np.int64)
        return cls(task, order, at, sizes[at], dims[at], lookups[at], keys[at], capacity)

    @cached_property
    def shards(self) -> list[WaitingShard]:
        """Return the tables as shards of all their columns, in the order in which they come up."""
        columns = (self.positions, np.zeros_like(self.dims), self.dims, self.sizes, self.lookups, self.keys)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [WaitingShard(number, *row) for number, row in enumerate(rows)]


def check_order(order: str) -> str:
    """Return `order`; raises `UnknownNameError` when it is none of `ORDERS`."""
    if order not in ORDERS:
        raise UnknownNameError("order", order, ORDERS)
    return order
