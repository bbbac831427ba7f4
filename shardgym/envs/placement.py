"""Placement: the state of one episode, tables placed whole one after another."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shardgym.errors import UnknownNameError
from shardgym.plan import ShardingPlan
from shardgym.records import shown
from shardgym.task import ShardingTask

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: In what order tables come up: by memory, by dimension times pooling factor, by dimension (each descending, ties in
#: the task's order), or as the task lists them.
ORDERS = ("size", "lookup", "dim", "task")


@dataclass(frozen=True, eq=False)
class Figures:
    """What placing needs of a task's tables, as arrays of shape (T,) in the order in which they come up.

    Attributes:
        task: the task.
        positions: positions in `task.tables`.
        sizes: bytes, optimiser state included.
        dims: columns.
        lookups: columns times pooling factor.
        capacity: bytes of every device, shape (D,).
    """

    task: ShardingTask
    positions: Int64s
    sizes: Int64s
    dims: Int64s
    lookups: Floats
    capacity: Int64s

    @classmethod
    def of(cls, task: ShardingTask, order: str) -> Self:
        """Work out the figures of a task; raises `UnknownNameError` when `order` is none of `ORDERS`."""
        sizes = np.array([task.table_bytes(table) for table in task.tables], dtype=np.int64)
        dims = np.array([table.embedding_dim for table in task.tables], dtype=np.int64)
        lookups = dims * np.array([table.pooling_factor for table in task.tables])
        keys = {"size": sizes, "lookup": lookups, "dim": dims, "task": np.zeros_like(sizes)}
        positions = np.argsort(-keys[check_order(order)], kind="stable")
        capacity = np.array(task.topology.memory_bytes, dtype=np.int64)
        return cls(task, positions, sizes[positions], dims[positions], lookups[positions], capacity)


def check_order(order: str) -> str:
    """Return `order`; raises `UnknownNameError` when it is none of `ORDERS`."""
    if order not in ORDERS:
        raise UnknownNameError("order", order, ORDERS)
    return order


class Placement:
    """How far the placing of one task has come.

    Args:
        figures: of the task.

    Attributes:
        placed: tables placed so far; also the number of the table to place now.
        used: bytes on every device, shape (D,).
        dims: summed columns, shape (D,).
        lookups: summed columns times pooling factor, shape (D,).
        tables: number of tables, shape (D,).
    """

    def __init__(self, figures: Figures) -> None:
        devices = len(figures.capacity)
        self.figures = figures
        self.placed = 0
        self.used = np.zeros(devices, dtype=np.int64)
        self.dims = np.zeros(devices, dtype=np.int64)
        self.lookups = np.zeros(devices)
        self.tables = np.zeros(devices, dtype=np.int64)
        self._device_of: dict[str, int] = {}

    @property
    def complete(self) -> bool:
        """Whether every table is placed."""
        return self.placed == len(self.figures.sizes)

    @property
    def table_name(self) -> str:
        """Name of the table to place now; "" when there is none."""
        return "" if self.complete else self.figures.task.tables[self.figures.positions[self.placed]].name

    def fitting(self) -> npt.NDArray[np.bool_]:
        """Say which devices have room for the table to place now, shape (D,); none when there is no such table."""
        if self.complete:
            return np.zeros(len(self.used), dtype=np.bool_)
        fits: npt.NDArray[np.bool_] = self.figures.capacity - self.used >= self.figures.sizes[self.placed]
        return fits

    def dead_end(self) -> str | None:
        """Return why no action is left although tables are, or None."""
        if self.complete or self.fitting().any():
            return None
        room = self.figures.capacity - self.used
        device = int(room.argmax())
        return (
            f"table '{self.table_name}' of {self.figures.sizes[self.placed]} bytes fits on no device: "
            f"the largest room left is {room[device]} bytes on device {device}"
        )

    def refusal(self, action: Any) -> str | None:
        """Return why the table cannot go to this device, or None."""
        try:
            device = operator.index(action)
        except TypeError:
            return f"action {shown(action)} is not a whole number"
        if not 0 <= device < len(self.used):
            return f"there is no device {device}, the task has devices 0 to {len(self.used) - 1}"
        if not self.fitting()[device]:
            room, size = self.figures.capacity[device] - self.used[device], self.figures.sizes[self.placed]
            return f"device {device} has room for {room} bytes, table '{self.table_name}' needs {size}"
        return None

    def put(self, device: int) -> None:
        """Place the table; `refusal(device)` must be None."""
        now = self.placed
        self._device_of[self.table_name] = device
        self.used[device] += self.figures.sizes[now]
        self.dims[device] += self.figures.dims[now]
        self.lookups[device] += self.figures.lookups[now]
        self.tables[device] += 1
        self.placed += 1

    def plan(self) -> ShardingPlan:
        """Return the plan of a complete placement."""
        return ShardingPlan.table_wise(self.figures.task, self._device_of)
