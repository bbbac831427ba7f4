"""Shard and ShardingPlan: which device holds which rows and columns of which table."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass

from shardgym.arguments import check_instance, check_list
from shardgym.errors import InfeasiblePlanError, InputError
from shardgym.feasibility import plan_problems
from shardgym.records import CONFIG, Digest, Name, Record, Whole
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask, check_task

Bound = Annotated[Whole, Field(ge=0, le=2**40)]


@dataclass(frozen=True, order=True, config=CONFIG)
class Shard(Record):
    """A rectangle of one table on one device.

    Attributes:
        table: name of the table.
        rows: first row and the row after the last.
        columns: first column and the column after the last.
        device: number of the device.
    """

    table: Name
    rows: tuple[Bound, Bound]
    columns: tuple[Bound, Bound]
    device: Annotated[Whole, Field(ge=0)]

    @field_validator("rows", "columns")
    @classmethod
    def _not_empty(cls, value: tuple[int, int]) -> tuple[int, int]:
        if value[0] >= value[1]:
            raise ValueError(f"expected start < end, got {list(value)}")
        return value

    @classmethod
    def whole(cls, table: EmbeddingTable, device: int) -> Shard:
        """Return a shard that is all of `table`; raises `InputError` when that is no table."""
        check_instance("table", table, EmbeddingTable, "task.table(name) finds one")
        return cls(table.name, (0, table.num_embeddings), (0, table.embedding_dim), device)

    @property
    def num_rows(self) -> int:
        """Rows of the shard."""
        return self.rows[1] - self.rows[0]

    @property
    def num_columns(self) -> int:
        """Columns of the shard."""
        return self.columns[1] - self.columns[0]

    def bytes(self, task: ShardingTask) -> int:
        """Bytes on the device, optimiser state included."""
        return task.block_bytes(self.num_rows, self.num_columns)


@dataclass(frozen=True, config=CONFIG)
class ShardingPlan(Record):
    """A complete plan for one task. Plans with the same shards are equal whatever order they were given in.

    Attributes:
        task_hash: `digest` of the task that the plan is for.
        shards: sorted by table, rows, columns and device.
    """

    task_hash: Digest
    shards: tuple[Shard, ...]
    schema: Literal["shardgym.plan/1"] = "shardgym.plan/1"

    @field_validator("shards")
    @classmethod
    def _sorted(cls, value: tuple[Shard, ...]) -> tuple[Shard, ...]:
        return tuple(sorted(value))

    @classmethod
    def of(cls, task: ShardingTask, shards: Iterable[Shard]) -> Self:
        """Make a plan for `task` from shards in any order; raises `InputError` when these are something else."""
        check_task(task)
        return cls(task_hash=task.digest, shards=tuple(check_list("shards", shards, "shards", ordered=False)))

    @classmethod
    def table_wise(cls, task: ShardingTask, devices: Sequence[int] | Mapping[str, int]) -> Self:
        """Place every table whole.

        Args:
            task: the task.
            devices: one device per table in the task's order, or a mapping from table name to device.

        Raises:
            InputError: not exactly one device per table, or something else than a task and devices.
        """
        check_task(task)
        names = [table.name for table in task.tables]
        devices = devices if isinstance(devices, Mapping) else check_list("devices", devices, "numbers of devices")
        given = dict(devices) if isinstance(devices, Mapping) else dict(zip(names, devices, strict=False))
        wrong = [f"'{name}' is no table of the task" for name in given if name not in names]
        wrong += [f"table '{name}' has no device" for name in names if name not in given]
        if wrong or len(devices) != len(names):
            why = f": {wrong[0]}" if isinstance(devices, Mapping) else ""
            raise InputError(f"expected one device for each of {len(names)} tables, got {len(devices)}{why}")
        return cls.of(task, (Shard.whole(table, given[table.name]) for table in task.tables))

    @functools.cached_property
    def _by_device(self) -> dict[int, tuple[Shard, ...]]:
        groups: dict[int, list[Shard]] = {}
        for shard in self.shards:
            groups.setdefault(shard.device, []).append(shard)
        return {device: tuple(shards) for device, shards in groups.items()}

    def on(self, device: int) -> tuple[Shard, ...]:
        """Shards of one device, sorted."""
        return self._by_device.get(device, ())

    def bytes_per_device(self, task: ShardingTask) -> list[int]:
        """Bytes of weights and optimiser state on each device of the task."""
        check_task(task)
        return [sum(shard.bytes(task) for shard in self.on(d)) for d in range(task.num_devices)]

    def validate(self, task: ShardingTask) -> None:
        """Check that the plan covers the task exactly and fits.

        Raises:
            InputError: the plan was made for another task, or `task` is none.
            InfeasiblePlanError: columns or rows missing or held twice, unknown table or device, a width that FBGEMM
                cannot fuse, or memory overflow; `problems` lists all of them.
        """
        check_task(task)
        if self.task_hash != task.digest:
            raise InputError(
                f"plan is for task {self.task_hash[:12]}, not for task {task.digest[:12]}: use the task it was made for"
            )
        problems = plan_problems(task, self.shards)
        if problems:
            raise InfeasiblePlanError(problems)
