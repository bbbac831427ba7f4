"""A table of all column shards of a task, and conversion between its rows and plans.

Both searches represent a shard by its row in this table. Only a plan decides where the shard's columns begin.
"""

import dataclasses
from collections import Counter
from collections.abc import Container, Iterable, Sequence

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.shard_keys import ShardKey
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import COLUMN_UNIT, Shard
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask


class ShardTable:
    """Shards of 0, 1, 2, ... units of columns of each table; a unit is `COLUMN_UNIT` columns, the least FBGEMM takes.

    Attributes:
        task: the task, whose widths are all divisible by the unit.
        units: units of each whole table, shape (T,).
        first: row of each table's empty shard, shape (T,); the shard of u units is u rows further.
        whole: row of each whole table, shape (T,).
        tables: position of each row's table in the task, shape (R,).
        columns: columns of each row, shape (R,).
        bytes: bytes of each row with optimiser state, shape (R,).
        halves: row of each row's halves, -1 if it cannot be halved, shape (R,).
    """

    def __init__(self, task: ShardingTask) -> None:
        self.task = task
        self.units: Ints = np.array([table.embedding_dim // COLUMN_UNIT for table in task.tables], dtype=np.int64)
        self.whole: Ints = np.cumsum(self.units + 1) - 1
        self.first: Ints = self.whole - self.units
        self.tables: Ints = np.repeat(np.arange(len(self.units)), self.units + 1)
        units = np.arange(len(self.tables)) - self.first[self.tables]
        self.columns: Ints = COLUMN_UNIT * units
        self.halves: Ints = np.where((units > 0) & (units % 2 == 0), self.first[self.tables] + units // 2, -1)
        self.bytes: Ints = task.columns_bytes(self.tables, self.columns)
        self._own_tables: dict[tuple[int, int], EmbeddingTable] = {}

    def __len__(self) -> int:
        return len(self.tables)

    def reached_by_halving(self) -> Ints:
        """Return the rows of whole tables, their halves, quarters and so on, ascending."""
        reached = []
        rows = self.whole
        while rows.size:
            reached.append(rows)
            rows = self.halves[rows[self.halves[rows] >= 0]]
        return np.sort(np.concatenate(reached))

    def vectors(self, costs: AdditiveCosts, rows: Ints) -> Floats:
        """Return the vectors of some rows, see `AdditiveCosts.vectors`, and zeros for the others, (R, V)."""
        # Making a `Shard` of every row, which checks its fields, would take longer than describing them.
        tables = [self.task.tables[table] for table in self.tables[rows].tolist()]
        pairs = zip(tables, self.columns[rows].tolist(), strict=True)
        keys = [ShardKey(table.name, table.num_embeddings, columns) for table, columns in pairs]
        known = costs.vectors(costs.encode_keys(self.task, keys))
        vectors = np.zeros((len(self), known.shape[1]))
        vectors[rows] = known
        return vectors

    def shard(self, row: int, first_column: int = 0, device: int = 0) -> Shard:
        """Return a non-empty row as a shard."""
        table = self.task.tables[self.tables[row]]
        columns = (first_column, first_column + int(self.columns[row]))
        return Shard(table.name, (0, table.num_embeddings), columns, (device,))

    def with_own_tables(self, devices: Sequence[Iterable[int]]) -> tuple[ShardingTask, ShardingPlan]:
        """Return an artificial task in which every shard is a table of its own, and the plan that places them.

        Cost models price sets of shards with it, even sets that no plan has: a row may occur more than once.

        Args:
            devices: rows on every device. The devices are those of the task, with unlimited memory.
        """
        copies = Counter[int]()
        placed = []
        for device, rows in enumerate(devices):
            for row in rows:
                copy = copies[row]  # copies differ by name; each is made once, as records check themselves
                if (row, copy) not in self._own_tables:
                    table = self.task.tables[self.tables[row]]
                    self._own_tables[row, copy] = dataclasses.replace(
                        table, name=f"{row}.{copy}", embedding_dim=int(self.columns[row])
                    )
                placed.append((self._own_tables[row, copy], device))
                copies[row] += 1
        tables = tuple(table for table, _ in placed)
        task = dataclasses.replace(
            self.task, tables=tables, topology=self.task.topology.roomy(len(devices)), step_memory=None, name=""
        )
        return task, ShardingPlan.of(task, (Shard.whole(table, device) for table, device in placed))


def plan_of(shards: ShardTable, devices: Sequence[Iterable[int]], others: Iterable[Shard] = ()) -> ShardingPlan:
    """Return a plan, assigning columns from the left by device number, and on a device to the widest shard first.

    Args:
        shards: shards of the task.
        devices: rows on every device; the widths of each table's shards add up to the table's.
        others: shards of tables that have no rows.
    """
    next_column = [0] * shards.task.num_tables
    placed = []
    for device, rows in enumerate(devices):
        for row in sorted(rows, reverse=True):
            table = int(shards.tables[row])
            placed.append(shards.shard(row, next_column[table], device))
            next_column[table] += int(shards.columns[row])
    return ShardingPlan.of(shards.task, [*placed, *others])


def plan_of_units(shards: ShardTable, units: Ints, others: Iterable[Shard] = ()) -> ShardingPlan:
    """Return a plan from units of each table on each device, shape (D, T), with one shard for each.

    `others` are the shards of tables without units.
    """
    return plan_of(shards, [(shards.first + on_device)[on_device > 0].tolist() for on_device in units], others)


def is_by_columns(shard: Shard, table: EmbeddingTable) -> bool:
    """Say whether one device has all rows of a shard, in its own memory."""
    return len(shard.devices) == 1 and shard.memory == "device" and shard.num_rows == table.num_embeddings


def units_of(shards: ShardTable, plan: ShardingPlan, others: Container[int] = ()) -> Ints | None:
    """Return the units of each table on each device, shape (D, T).

    None if the plan has other cuts or replicas, or rows in the memory of hosts.

    Shards of one table on one device become one. Tables at the positions `others` get no units.
    """
    task = shards.task
    position = {table.name: n for n, table in enumerate(task.tables)}
    units = np.zeros((task.num_devices, task.num_tables), dtype=np.int64)
    for shard in plan.shards:
        table = position[shard.table]
        if table in others:
            continue
        if not is_by_columns(shard, task.tables[table]):
            return None
        units[shard.devices[0], table] += shard.num_columns // COLUMN_UNIT
    return units
