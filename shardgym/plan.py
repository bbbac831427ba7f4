"""Shard and ShardingPlan: which piece of which table is on which devices, and what makes a plan infeasible."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass

from shardgym.arguments import check_instance, check_list
from shardgym.errors import InfeasiblePlanError, InputError, NoFeasiblePlanError
from shardgym.records import CONFIG, Digest, Name, Record, Whole, short_repr
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask, exact_bytes

#: FBGEMM's fused kernels take widths divisible by this, so it is the unit of a column cut.
COLUMN_UNIT = 4

Bound = Annotated[Whole, Field(ge=0, le=2**40)]

#: How a plan shards a table, in TorchRec's words; "tiers" where TorchRec has none.
Kind = Literal[
    "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard", "data_parallel",
    "tiers",
]  # fmt: skip


@dataclass(frozen=True, order=True, config=CONFIG)
class Shard(Record):
    """A rectangle of one table, and the devices that hold it.

    One device: the rectangle is sharded. All devices: it is replicated, which TorchRec calls data parallel. One in each
    block of consecutive devices: each block has a copy of its own, as groups of 2D parallelism have.

    Attributes:
        table: name of the table.
        rows: first row and the row after the last.
        columns: first column and the column after the last.
        devices: numbers of the devices that hold it, ascending; one number stands for a single one.
    """

    table: Name
    rows: tuple[Bound, Bound]
    columns: tuple[Bound, Bound]
    devices: tuple[Annotated[Whole, Field(ge=0)], ...]

    @field_validator("rows", "columns")
    @classmethod
    def _not_empty(cls, value: tuple[int, int]) -> tuple[int, int]:
        if value[0] >= value[1]:
            raise ValueError(f"expected start < end, got {list(value)}")
        return value

    @field_validator("devices", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if hasattr(value, "__index__") else value

    @field_validator("devices")
    @classmethod
    def _ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or any(device >= after for device, after in itertools.pairwise(value)):
            raise ValueError(f"expected at least one device, in ascending order, got {short_repr(list(value))}")
        return value

    @classmethod
    def whole(cls, table: EmbeddingTable, *devices: int) -> Shard:
        """Return a shard that is all of `table`; raises `InputError` when that is no table."""
        check_instance("table", table, EmbeddingTable)
        rows = (0, table.num_embeddings)
        columns = (0, table.embedding_dim)
        if len(devices) != 1 or type(devices[0]) is not int or devices[0] < 0:
            return cls(table.name, rows, columns, devices)
        # A table has been checked: checking its shard takes longer than a fast solver takes to place it.
        return cls.unchecked(table=table.name, rows=rows, columns=columns, devices=devices)

    @property
    def num_rows(self) -> int:
        """Rows of the shard."""
        return self.rows[1] - self.rows[0]

    @property
    def num_columns(self) -> int:
        """Columns of the shard."""
        return self.columns[1] - self.columns[0]

    def is_replicated(self, task: ShardingTask) -> bool:
        """Say whether each of several devices holds it, so that none sends what it looks up."""
        return len(self.devices) == task.num_devices > 1

    def bytes(self, task: ShardingTask) -> int:
        """Bytes on each device that holds it, see `ShardingTask.shard_bytes`."""
        return task.block_bytes(
            task.table(self.table),
            self.num_rows,
            self.num_columns,
            first_row=self.rows[0],
            num_holders=len(self.devices),
        )


class DeviceMemory(NamedTuple):
    """What a device's memory holds in a training step, in bytes; the last two are 0 without `task.step_memory`.

    Attributes:
        weights: of its shards.
        optimizer: their optimiser states.
        in_flight: ids, pooled values and gradients: those of its shards, and those of its own samples.
        reserved: for the dense part of the model and the framework.
    """

    weights: int
    optimizer: int
    in_flight: int
    reserved: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def device_memory(task: ShardingTask, shards: Iterable[Shard], device: int, *, hottest: bool = True) -> DeviceMemory:
    """Return what a device that holds some shards has in memory; see `ShardingPlan.memory_per_device`."""
    found = [
        task.shard_bytes(task.table(s.table), s.rows, s.num_columns, len(s.devices), hottest=hottest)
        for s in shards
        if task.has_table(s.table)
    ]
    return DeviceMemory(
        sum(part.weights for part in found),
        sum(part.optimizer for part in found),
        sum(part.in_flight for part in found) + task.own_bytes(device),
        0 if task.step_memory is None else task.step_memory.reserved_on(device),
    )


#: As `Shard` orders them, without a call for every comparison.
_ORDER = operator.attrgetter("table", "rows", "columns", "devices")


@dataclass(frozen=True, config=CONFIG)
class ShardingPlan(Record):
    """A complete plan for one task. Plans with the same shards are equal; their order does not matter.

    Rows of some columns that the same devices hold, and that follow each other, are one shard, however many were given:
    no operator runs them apart. Adjacent columns stay apart, as FBGEMM runs them.

    Attributes:
        task_hash: `digest` of the task that the plan is for.
        shards: sorted by table, rows, columns and devices.
        group_size: consecutive devices that hold all tables together, in 2D parallelism; each group takes its share of
            the samples. None, the usual case, is one group of all devices.
    """

    how_to_get: ClassVar[str] = "ShardingPlan.load(path) reads one"

    task_hash: Digest
    shards: tuple[Shard, ...]
    group_size: Annotated[Whole, Field(ge=1)] | None = None
    schema: Literal["shardgym.plan/2"] = "shardgym.plan/2"

    @field_validator("shards")
    @classmethod
    def _sorted(cls, value: tuple[Shard, ...]) -> tuple[Shard, ...]:
        return tuple(sorted(_with_joined_rows(value), key=_ORDER))

    @classmethod
    def of(cls, task: ShardingTask, shards: Iterable[Shard], group_size: int | None = None) -> Self:
        """Make a plan for `task` from shards in any order; raises `InputError` when these are something else."""
        check_instance("task", task, ShardingTask)
        held = tuple(check_list("shards", shards, "shards", ordered=False))
        # One group of all devices is the same plan as without groups.
        return cls(
            task_hash=task.digest, shards=held, group_size=None if group_size == task.num_devices else group_size
        )

    @classmethod
    def table_wise(cls, task: ShardingTask, devices: Sequence[int] | Mapping[str, int]) -> Self:
        """Place every table whole.

        Args:
            task: the task.
            devices: one device per table in the task's order, or a mapping from table name to device.

        Raises:
            InputError: not exactly one device per table, or something else than a task and devices.
        """
        check_instance("task", task, ShardingTask)
        names = [table.name for table in task.tables]
        devices = devices if isinstance(devices, Mapping) else check_list("devices", devices, "numbers of devices")
        device_of = dict(devices) if isinstance(devices, Mapping) else dict(zip(names, devices, strict=False))
        known = set(names)
        wrong = [f"'{name}' is no table of the task" for name in device_of if name not in known]
        wrong += [f"table '{name}' has no device" for name in names if name not in device_of]
        if wrong or len(devices) != len(names):
            why = f": {wrong[0]}" if isinstance(devices, Mapping) else ""
            raise InputError(f"expected one device for each of {len(names)} tables, got {len(devices)}{why}")
        return cls.of(task, (Shard.whole(table, device_of[table.name]) for table in task.tables))

    # Environments and renderings ask for the shards of every device again and again.
    @functools.cached_property
    def _by_device(self) -> dict[int, tuple[Shard, ...]]:
        groups: dict[int, list[Shard]] = {}
        for shard in self.shards:
            for device in shard.devices:
                groups.setdefault(device, []).append(shard)
        return {device: tuple(shards) for device, shards in groups.items()}

    @functools.cached_property
    def _by_table(self) -> dict[str, tuple[Shard, ...]]:
        return {table: tuple(shards) for table, shards in itertools.groupby(self.shards, operator.attrgetter("table"))}

    @functools.cached_property
    def has_replicas(self) -> bool:
        """Whether several devices hold a shard."""
        return any(len(shard.devices) > 1 for shard in self.shards)

    def on(self, device: int) -> tuple[Shard, ...]:
        """Shards of one device, sorted."""
        return self._by_device.get(device, ())

    def of_table(self, table: str) -> tuple[Shard, ...]:
        """Shards of one table, sorted."""
        return self._by_table.get(table, ())

    def kind_of(self, table: str, task: ShardingTask) -> Kind:
        """Return how a table is sharded, in TorchRec's words.

        It follows from the rectangles and their holders within a group: a table that happens to be cut by columns
        inside of one fast domain of several is `table_column_wise`. Rectangles that are held otherwise than by all
        devices or by one place of every group, and rectangles that form no grid, are "tiers".

        Args:
            table: its name.
            task: the task of the plan.

        Raises:
            UnknownNameError: the task has no such table.
            InputError: the plan holds nothing of it.
        """
        num_embeddings = task.table(table).num_embeddings
        shards = self.of_table(table)
        if not shards:
            raise InputError(f"the plan has no shard of table '{table}'")
        devices = task.num_devices
        if devices == 1:
            return "table_wise"
        if all(len(shard.devices) == devices for shard in shards):
            return "data_parallel"
        group = devices if self.group_size is None else self.group_size
        places = [{device % group for device in shard.devices} for shard in shards]
        if any(
            len(place) != 1 or len(shard.devices) * group != devices
            for place, shard in zip(places, shards, strict=True)
        ):
            return "tiers"
        if len(shards) == 1:
            return "table_wise"
        domain = min(task.topology.fast_domain_size, group)
        domains: dict[tuple[int, int], set[int]] = {}
        for (place,), shard in zip(places, shards, strict=True):
            domains.setdefault(shard.columns, set()).add(place // domain)
        in_one_domain = group > domain and len(set.union(*domains.values())) == 1
        if all(shard.num_rows == num_embeddings for shard in shards):
            return "table_column_wise" if in_one_domain else "column_wise"
        if len(domains) == 1:
            return "table_row_wise" if in_one_domain else "row_wise"
        blocks = sorted(domains)
        is_grid = all(left[1] == right[0] for left, right in itertools.pairwise(blocks))
        return "grid_shard" if is_grid and all(len(of) == 1 for of in domains.values()) else "tiers"

    def bytes_per_device(self, task: ShardingTask) -> list[int]:
        """Bytes of shards on each device, at most `task.capacity_bytes`: weights, states, what they have in flight."""
        check_instance("task", task, ShardingTask)
        return [sum(shard.bytes(task) for shard in self.on(d)) for d in range(task.num_devices)]

    def memory_per_device(self, task: ShardingTask, *, hottest: bool = True) -> list[DeviceMemory]:
        """Return what each device's memory holds in a step, at most `task.topology.memory_bytes`.

        Args:
            task: of the plan.
            hottest: whether shards receive the ids of their hottest batch, or of an average one.
        """
        check_instance("task", task, ShardingTask)
        return [device_memory(task, self.on(device), device, hottest=hottest) for device in range(task.num_devices)]

    def validate(self, task: ShardingTask) -> None:
        """Check that the plan covers the task exactly and fits.

        Raises:
            InputError: the plan was made for another task, or `task` is none.
            InfeasiblePlanError: columns or rows missing or held twice, unknown table or device, holders in some groups
                only, a width that FBGEMM cannot fuse, or memory overflow; `problems` lists all of them.
        """
        check_instance("task", task, ShardingTask)
        if self.task_hash != task.digest:
            raise InputError(
                f"plan is for task {self.task_hash[:12]}, not for task {task.digest[:12]}: use the task it was made for"
            )
        problems = plan_problems(task, self.shards, self.group_size)
        if problems:
            raise InfeasiblePlanError(problems)


def _with_joined_rows(shards: tuple[Shard, ...]) -> Iterable[Shard]:
    """Join shards of the same columns and holders whose rows follow each other."""
    if not any(shard.rows[0] for shard in shards):  # most plans cut no rows
        return shards
    joined: list[Shard] = []
    for shard in sorted(shards, key=operator.attrgetter("table", "columns", "devices", "rows")):
        last = joined[-1] if joined else None
        is_next = (
            last is not None
            and (last.table, last.columns, last.devices) == (shard.table, shard.columns, shard.devices)
            and last.rows[1] == shard.rows[0]
        )
        if last is not None and is_next:
            joined[-1] = dataclasses.replace(last, rows=(last.rows[0], shard.rows[1]))
        else:
            joined.append(shard)
    return joined


def plan_problems(task: ShardingTask, shards: Sequence[Shard], group_size: int | None = None) -> list[str]:
    """Return one sentence per problem of `shards` as a plan for `task`; empty when the plan is feasible."""
    return [*cover_problems(task, shards, group_size), *memory_problems(task, shards)]


def cover_problems(task: ShardingTask, shards: Sequence[Shard], group_size: int | None = None) -> list[str]:
    """Return one sentence per problem of a plan apart from memory.

    These are unknown tables and devices, groups that do not divide the devices or are one device, holders that are not
    one in each group, cells without exactly one shard, and widths that FBGEMM cannot fuse.
    """
    problems = [f"table '{shard.table}' is not in the task" for shard in shards if not task.has_table(shard.table)]
    if group_size is not None and task.num_devices % group_size:
        return [f"groups of {group_size} devices do not divide the {task.num_devices} devices of the task", *problems]
    if group_size == 1 < task.num_devices:
        return [
            "groups of 1 device: each holds all tables by itself, which is data parallel; leave group_size out and put "
            "tables on all devices",
            *problems,
        ]
    pieces: dict[str, list[Shard]] = {table.name: [] for table in task.tables}
    known = [shard for shard in shards if shard.table in pieces]  # of unknown tables nothing else can be checked
    for shard in known:
        pieces[shard.table].append(shard)
        if shard.devices[-1] >= task.num_devices:
            last = shard.devices[-1]
            problems.append(
                f"table '{shard.table}' is on device {last}, the task has devices 0 to {task.num_devices - 1}"
            )
        elif len(shard.devices) > 1 or group_size is not None:
            problems += _holder_problems(shard, task.num_devices, group_size)
        if shard.num_columns % COLUMN_UNIT:
            problems.append(
                f"table '{shard.table}' has a shard of {shard.num_columns} columns on {format_devices(shard.devices)}: "
                f"FBGEMM needs widths divisible by {COLUMN_UNIT}"
            )
    cover = (_cover_problem(table, pieces[table.name]) for table in task.tables)
    return problems + [problem for problem in cover if problem is not None]


def _holder_problems(shard: Shard, num_devices: int, group_size: int | None) -> Iterator[str]:
    """Yield a sentence if holders of a shard are not one in each block of consecutive devices, and in each group."""
    copies = len(shard.devices)
    block = num_devices // copies
    group = num_devices if group_size is None else group_size
    one_each = num_devices % copies == 0 and [d // block for d in shard.devices] == list(range(copies))
    if not one_each or group % block:
        expected = f"one device in each of {num_devices // group} groups of {group}, or of equal parts of them"
        if group_size is None:
            expected = "one device, all of them, or, with group_size=, the same place of every group"
        area = format_area(shard.rows, shard.columns)
        yield f"{area} of table '{shard.table}' are held by {format_devices(shard.devices)}: expected {expected}"


def check_possible(task: ShardingTask) -> None:
    """Refuse tasks that no plan is feasible for, however tables are cut by columns.

    Raises:
        NoFeasiblePlanError: a width cannot be fused, or the tables are larger than all devices together.
    """
    for table in task.tables:
        if table.embedding_dim % COLUMN_UNIT:
            raise NoFeasiblePlanError(
                f"table '{table.name}' has {table.embedding_dim} columns: no plan is feasible, "
                f"FBGEMM needs widths divisible by {COLUMN_UNIT}"
            )
    needed = {table.name: _least_bytes(task, table) for table in task.tables}
    missing = sum(needed.values()) - task.total_capacity_bytes
    if missing > 0:
        largest = max(needed, key=needed.__getitem__)
        devices = task.num_devices
        roomiest = max(task.capacity_bytes)
        more = f"{-(-missing // roomiest)} more devices, " if roomiest else ""
        raise NoFeasiblePlanError(
            f"{_what_tables_take(task)} {exact_bytes(sum(needed.values()))}, the devices have "
            f"{exact_bytes(task.total_capacity_bytes, '')} together{_left_by_step(task)}: however tables are cut, at "
            f"least one of {devices} devices lacks {exact_bytes(-(-missing // devices))}; largest is table '{largest}' "
            f"with {exact_bytes(needed[largest])}; what helps: {more}more memory per device, or fewer rows"
        )


def _least_bytes(task: ShardingTask, table: EmbeddingTable) -> int:
    """Return the bytes that a table takes at least on all devices together: whole, or held by all of them."""
    rows, columns = table.num_embeddings, table.embedding_dim
    everywhere = task.num_devices * task.block_bytes(table, rows, columns, num_holders=task.num_devices)
    return min(task.table_bytes(table), everywhere)


def _what_tables_take(task: ShardingTask) -> str:
    return "the tables take" if task.step_memory is None else "the tables take, in the hottest batch of a step,"


def _left_by_step(task: ShardingTask) -> str:
    """Say what every plan takes, where the task counts that."""
    if task.step_memory is None:
        return ""
    others = task.topology.total_memory_bytes - task.total_capacity_bytes
    return f" (without {exact_bytes(others, '')} for inputs and outputs of their own samples and what is reserved)"


def _cover_problem(table: EmbeddingTable, shards: Sequence[Shard]) -> str | None:
    """Return a part of a table that no shard or several shards hold, or a shard that is larger than the table.

    Goes through the rows where shards begin or end. What ends at a row leaves columns free, and what begins there must
    take exactly these. So long as that holds, every row is covered once. It takes n log n steps for n shards.
    """
    num_rows = table.num_embeddings
    num_columns = table.embedding_dim
    # Most tables are placed whole: leave early.
    if len(shards) == 1 and shards[0].rows == (0, num_rows) and shards[0].columns == (0, num_columns):
        return None
    beginning: dict[int, list[Shard]] = {}
    free: dict[int, list[tuple[int, int]]] = {0: [(0, num_columns)]}
    for shard in shards:
        if shard.rows[1] > num_rows or shard.columns[1] > num_columns:
            area = format_area(shard.rows, shard.columns)
            return f"table '{table.name}' is {num_rows} x {num_columns}, a shard covers {area}"
        beginning.setdefault(shard.rows[0], []).append(shard)
        free.setdefault(shard.rows[1], []).append(shard.columns)
    for row in sorted(beginning.keys() | free.keys() - {num_rows}):
        holes = deque(sorted(free.get(row, [])))
        for shard in sorted(beginning.get(row, []), key=operator.attrgetter("columns")):
            first, last = shard.columns
            while holes and first < last:
                start, end = holes[0]
                if start < first:
                    return _wrong_cell(table, shards, row, (start, min(first, end)))
                if first < start:
                    break
                first = min(last, end)
                holes[0] = first, end
                if first == end:
                    holes.popleft()
            if first < last:  # these columns are not free
                return _wrong_cell(table, shards, row, (first, min(last, holes[0][0]) if holes else last))
        if holes:
            return _wrong_cell(table, shards, row, holes[0])
    return None


def _wrong_cell(table: EmbeddingTable, shards: Sequence[Shard], row: int, columns: tuple[int, int]) -> str:
    """Say how many shards hold some columns of a table from a row on; none of them begins between these columns."""
    next_row = min((edge for shard in shards for edge in shard.rows if edge > row), default=table.num_embeddings)
    holding = [s for s in shards if s.rows[0] <= row < s.rows[1] and s.columns[0] <= columns[0] < s.columns[1]]
    last = min([columns[1], *(shard.columns[1] for shard in holding)])
    cell = f"{format_area((row, next_row), (columns[0], last))} of table '{table.name}'"
    if not holding:
        return f"{cell} are missing: held by no device; add a shard with them"
    devices = sorted(device for shard in holding for device in shard.devices)
    held = f"held by devices {', '.join(map(str, devices))}"
    return f"{cell} overlap: {held}; leave them to one of the {len(holding)} shards, which may have several devices"


def memory_problems(task: ShardingTask, shards: Sequence[Shard]) -> Iterator[str]:
    """Yield a sentence for every device whose shards of known tables exceed its memory, largest tables first."""
    held: dict[int, list[tuple[int, Shard]]] = {}
    for shard in shards:
        if task.has_table(shard.table):
            size = shard.bytes(task)
            for device in shard.devices:
                held.setdefault(device, []).append((size, shard))
    for device in sorted(d for d in held if d < task.num_devices):
        used = sum(size for size, _ in held[device])
        limit = task.capacity_bytes[device]
        if used > limit:
            ordered = sorted(held[device], key=lambda sized: (sized[0], sized[1].table), reverse=True)
            largest = ", ".join(f"'{shard.table}' {size}" for size, shard in ordered[:3])
            in_step = "" if task.step_memory is None else _in_step(task, device, [shard for _, shard in ordered])
            yield (
                f"device {device} holds {exact_bytes(used)}, {exact_bytes(used - limit, '')} more than its {limit}"
                f"{in_step}; largest of its {len(ordered)} shards: {largest}"
            )


def _in_step(task: ShardingTask, device: int, shards: Sequence[Shard]) -> str:
    """Say what the room of a device is, and which batch a plan exceeds it in: every one, or the hottest alone."""
    assert task.step_memory is not None
    memory = task.topology.memory_bytes[device]
    average = device_memory(task, shards, device, hottest=False).total
    lookups = [task.shard_lookups(task.table(s.table), s.rows, len(s.devices)) for s in shards]
    hottest = device_memory(task, shards, device).total
    figures = (
        f"{sum(of.average for of in lookups):.0f} ids and {exact_bytes(average)} on average, "
        f"{sum(of.hottest for of in lookups):.0f} ids and {exact_bytes(hottest)} in the hottest batch, "
        f"inputs, outputs of its own samples and {task.step_memory.reserved_on(device)} reserved bytes included"
    )
    verdict = "it fits on average, and not in the hottest batch" if average <= memory else "it fits in no batch"
    return f" of {memory}: {verdict} ({figures})"


def format_area(rows: tuple[int, int], columns: tuple[int, int]) -> str:
    """Return "rows [0, 5) columns [4, 8)": as in plans, the ends are left out."""
    return f"rows [{rows[0]}, {rows[1]}) columns [{columns[0]}, {columns[1]})"


def format_devices(devices: Sequence[int]) -> str:
    """Return "device 3", "devices 0, 4" or, of many, "64 devices from 0 to 63"."""
    if len(devices) > 8:
        return f"{len(devices)} devices from {devices[0]} to {devices[-1]}"
    return f"device{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}"
