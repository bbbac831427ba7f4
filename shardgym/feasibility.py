"""What can be wrong with a plan, in words: cover, devices, widths and memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardgym.plan import Shard
    from shardgym.task import ShardingTask

#: FBGEMM's fused kernels take widths divisible by this, so it is the unit of a column cut.
COLUMN_UNIT = 4


def plan_problems(task: ShardingTask, shards: Sequence[Shard]) -> list[str]:
    """Return one sentence per problem of `shards` as a plan for `task`; empty when the plan is feasible."""
    known = [shard for shard in shards if task.has_table(shard.table)]
    problems = [f"table '{shard.table}' is not in the task" for shard in shards if not task.has_table(shard.table)]
    problems += _shard_problems(task, known)
    problems += _cover_problems(task, known)
    problems += memory_problems(task, known)
    return problems


def _shard_problems(task: ShardingTask, shards: Sequence[Shard]) -> Iterator[str]:
    for shard in shards:
        if shard.device >= task.num_devices:
            yield f"table '{shard.table}' is on device {shard.device}, the task has devices 0 to {task.num_devices - 1}"
        if shard.num_columns % COLUMN_UNIT:
            yield (
                f"table '{shard.table}' has a shard of {shard.num_columns} columns on device {shard.device}: "
                f"FBGEMM needs widths divisible by {COLUMN_UNIT}"
            )


def _cover_problems(task: ShardingTask, shards: Sequence[Shard]) -> Iterator[str]:
    groups: dict[str, list[Shard]] = {table.name: [] for table in task.tables}
    for shard in shards:
        groups[shard.table].append(shard)
    for table in task.tables:
        held = groups[table.name]
        if len(held) == 1 and held[0].rows == (0, table.num_embeddings) and held[0].columns == (0, table.embedding_dim):
            continue
        yield from _table_problems(table.name, table.num_embeddings, table.embedding_dim, held)


def _table_problems(name: str, rows: int, columns: int, shards: Sequence[Shard]) -> Iterator[str]:
    """Find the first cell of the table that is held by no shard or by several, and any shard that sticks out."""
    for shard in shards:
        if shard.rows[1] > rows or shard.columns[1] > columns:
            yield f"table '{name}' is {rows} x {columns}, a shard covers {_area(shard.rows, shard.columns)}"
            return
    row_cuts = sorted({0, rows, *(edge for s in shards for edge in s.rows)})
    column_cuts = sorted({0, columns, *(edge for s in shards for edge in s.columns)})
    for cell_rows in itertools.pairwise(row_cuts):
        inside = [s for s in shards if s.rows[0] <= cell_rows[0] < s.rows[1]]
        for cell_columns in itertools.pairwise(column_cuts):
            holders = [s.device for s in inside if s.columns[0] <= cell_columns[0] < s.columns[1]]
            if len(holders) != 1:
                where = f"{_area(cell_rows, cell_columns)} of table '{name}'"
                on = ", ".join(map(str, sorted(holders)))
                yield f"{where} overlap: held by devices {on}" if holders else f"{where} are missing: held by no device"
                return


def memory_problems(task: ShardingTask, shards: Sequence[Shard]) -> Iterator[str]:
    """Yield a sentence for every device whose shards exceed its memory, largest tables first."""
    held: dict[int, list[tuple[int, str]]] = {}
    for shard in shards:
        held.setdefault(shard.device, []).append((shard.bytes(task), shard.table))
    for device in sorted(d for d in held if d < task.num_devices):
        used, limit = sum(size for size, _ in held[device]), task.topology.memory_bytes[device]
        if used > limit:
            largest = ", ".join(f"'{name}' {size}" for size, name in sorted(held[device], reverse=True)[:3])
            yield (
                f"device {device} holds {used} bytes, {used - limit} more than its {limit}; "
                f"largest of its {len(held[device])} shards: {largest}"
            )


def _area(rows: tuple[int, int], columns: tuple[int, int]) -> str:
    return f"rows {rows[0]}..{rows[1] - 1} columns {columns[0]}..{columns[1] - 1}"
