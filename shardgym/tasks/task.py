"""ShardingTask: the tables to place, the devices to place them on, and what a training step does."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from shardgym.arrays import Ints
from shardgym.errors import UnknownNameError, check_instance
from shardgym.records import CONFIG, Record, Whole, canonical_json, sha256
from shardgym.tables.row_access import distinct_ids
from shardgym.tables.table import EmbeddingTable, Optimizer, Pooling, Precision, check_distinct_names
from shardgym.tasks.step_memory import Lookups, StepMemory, shard_lookups
from shardgym.tasks.topology import Topology

ELEMENT_BYTES: dict[str, int] = {"fp32": 4, "fp16": 2}
#: Optimiser state in FP32 elements: (per weight, per row of a shard), as FBGEMM keeps it.
OPTIMIZER_STATE: dict[str, tuple[int, int]] = {
    "exact_sgd": (0, 0),
    "rowwise_adagrad": (0, 1),
    "adagrad": (1, 0),
    "adam": (2, 0),
}


def block_bytes(rows: int, columns: int, precision: Precision, optimizer: Optimizer) -> int:
    """Bytes that `rows` x `columns` weights take, optimiser state included."""
    per_weight, per_row = OPTIMIZER_STATE[optimizer]
    return rows * columns * (ELEMENT_BYTES[precision] + 4 * per_weight) + rows * 4 * per_row


class ShardBytes(NamedTuple):
    """Bytes of a shard on a device that holds it; what a step handles is 0 where the task has no `step_memory`."""

    weights: int  #: as they are trained
    optimizer: int  #: its state
    ids: int = 0  #: that the shard receives, with weights and lengths, in all their copies
    #: Values that are put out and their gradients, and the dense gradient of a shard that all devices hold.
    outputs: int = 0
    quantizer: int = 0  #: what a quantiser makes of the values

    @property
    def in_flight(self) -> int:
        """What a step handles."""
        return self.ids + self.outputs + self.quantizer


class FusedGroup(NamedTuple):
    """What tables have in common that TorchRec puts into one fused operator.

    See `group_tables` in torchrec/distributed/embedding_sharding.py; a collection is weighted or not as a whole.
    """

    precision: Precision
    optimizer: Optimizer
    pooling: Pooling
    weighted: bool


def format_bytes(size: int) -> str:
    """Return bytes in the unit that keeps the number short."""
    value = float(size)
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value /= 1024
        unit = larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def exact_bytes(size: int, noun: str = " bytes") -> str:
    """Return all digits, and from 1 MiB on the size in a larger unit, too: "1572864 bytes (1.5 MiB)"."""
    return f"{size}{noun}" if size < 2**20 else f"{size}{noun} ({format_bytes(size)})"


@dataclass(frozen=True, config=CONFIG)
class ShardingTask(Record):
    """One sharding problem. Its identity (`digest`) covers everything but `name`.

    Attributes:
        tables: at least one, with distinct names.
        topology: the devices.
        batch_size: samples of one training step over all devices (global).
        precision: precision of what is communicated, and of the weights of tables without one of their own. A table
            with the same precision is kept as one without.
        optimizer: optimiser of tables without one of their own; its state counts against memory. If all tables have the
            same, it is kept as that of the task.
        name: name for display, e.g. "dlrm4-v2/17".
        step_memory: what a training step takes besides weights and optimiser state; the topology's memory then has to
            hold all of it. None: memory is for weights and optimiser state alone.
        dedup_ids: whether each device sends every distinct id of its own samples once per table. For an unpooled table
            it gets one row back for each, as with TorchRec's `use_index_dedup`. For a pooled table it also sends, for
            each lookup, which id it is; TorchRec does not have this.
        group_sync_interval: steps after which groups of 2D parallelism exchange weights and optimiser states:
            TorchRec's `dmp_collection_sync_interval_batches`. With it, solvers may choose groups if devices have equal
            memory and there is no `step_memory`. None: they choose none, and groups exchange after every step.
    """

    not_identity: ClassVar[frozenset[str]] = frozenset({"name"})

    tables: Annotated[tuple[EmbeddingTable, ...], Field(min_length=1, max_length=100_000)]
    topology: Topology
    batch_size: Annotated[Whole, Field(ge=1, le=2**26)]
    precision: Precision = "fp32"
    optimizer: Optimizer = "exact_sgd"
    name: Annotated[str, Field(max_length=200)] = ""
    step_memory: StepMemory | None = None
    dedup_ids: bool = False
    group_sync_interval: Annotated[
        Whole | None, Field(ge=1, le=1_000_000, exclude_if=lambda interval: interval is None)
    ] = None
    schema: Literal["shardgym.task/1"] = "shardgym.task/1"

    @model_validator(mode="after")
    def _distinct_names(self) -> ShardingTask:
        check_distinct_names(self.tables)
        return self

    @model_validator(mode="after")
    def _said_once(self) -> ShardingTask:
        """Say what all tables say of optimisers once, and let no table repeat the task: one task has one form."""
        said = {table.optimizer for table in self.tables}
        if len(said) == 1 and (optimizer := self.tables[0].optimizer) is not None:
            object.__setattr__(self, "optimizer", optimizer)
        if self.optimizer in said or any(table.precision == self.precision for table in self.tables):
            tables = tuple(
                dataclasses.replace(
                    table,
                    optimizer=None if table.optimizer == self.optimizer else table.optimizer,
                    precision=None if table.precision == self.precision else table.precision,
                )
                for table in self.tables
            )
            object.__setattr__(self, "tables", tables)
        return self

    @model_validator(mode="after")
    def _reserved_on_each(self) -> ShardingTask:
        reserved = (0,) if self.step_memory is None else self.step_memory.reserved_bytes
        if len(reserved) not in (1, self.num_devices):
            raise ValueError(f"step_memory.reserved_bytes has {len(reserved)} entries for {self.num_devices} devices")
        return self

    @property
    def num_devices(self) -> int:
        """Devices of the topology."""
        return self.topology.num_devices

    @property
    def num_tables(self) -> int:
        """Tables of the task."""
        return len(self.tables)

    @functools.cached_property
    def _by_name(self) -> dict[str, EmbeddingTable]:
        return {table.name: table for table in self.tables}

    @functools.cached_property
    def digest(self) -> str:
        """See `Record`. Each table writes its text once: environments draw thousands of tasks with the same tables."""
        rest = self.identity(frozenset({"tables"})) | {"tables": []}
        tables = ",".join(table.canonical_text for table in self.tables)
        return sha256(canonical_json(rest).replace('"tables":[]', f'"tables":[{tables}]'))

    def table(self, name: str) -> EmbeddingTable:
        """Return a table by name; raises `UnknownNameError` with the closest names."""
        try:
            return self._by_name[name]
        except (KeyError, TypeError):
            raise UnknownNameError("table", name, self._by_name) from None

    def has_table(self, name: str) -> bool:
        """Say whether the task has a table of this name."""
        return name in self._by_name

    @functools.cached_property
    def fused_groups(self) -> frozenset[FusedGroup]:
        """Return the groups of tables that TorchRec runs as one fused operator each, see `FusedGroup`."""
        return frozenset(map(self.fused_group_of, self.tables))

    def fused_group_of(self, table: EmbeddingTable) -> FusedGroup:
        """Return what a table shares with the others of its fused operator."""
        return FusedGroup(self.precision_of(table), self.optimizer_of(table), table.pooling, table.weighted)

    def precision_of(self, table: EmbeddingTable) -> Precision:
        """Return the precision of a table's weights."""
        return table.precision or self.precision

    def optimizer_of(self, table: EmbeddingTable) -> Optimizer:
        """Return the optimiser of a table."""
        return table.optimizer or self.optimizer

    def shard_bytes(
        self, table: EmbeddingTable, rows: tuple[int, int], columns: int, num_holders: int = 1, *, hottest: bool = True
    ) -> ShardBytes:
        """Bytes that a shard takes on each device that holds it.

        Args:
            table: table to place.
            rows: first row, and the row after the last.
            columns: number of columns.
            num_holders: devices that hold it; each serves its share of the samples.
            hottest: whether ids are those of the hottest batch, see `StepMemory`, or of an average one.

        Raises:
            InputError: the task counts what a step takes, and recorded ids of the table cannot be read.
        """
        num_rows = rows[1] - rows[0]
        per_weight, per_row = OPTIMIZER_STATE[self.optimizer_of(table)]
        weights = num_rows * columns * ELEMENT_BYTES[self.precision_of(table)]
        states = num_rows * columns * 4 * per_weight + num_rows * 4 * per_row
        step = self.step_memory
        if step is None:
            return ShardBytes(weights, states)
        if num_holders == self.num_devices > 1:  # nothing is sent: its ids are inputs, what it pools is joined
            return ShardBytes(weights, states, 0, math.ceil(step.gradient_copies * weights))
        samples = -(-self.batch_size // num_holders)
        lookups = self.shard_lookups(table, rows, num_holders)
        received = lookups.hottest if hottest else lookups.average
        ids = step.id_bytes(table, received, samples)
        element = ELEMENT_BYTES[self.precision]
        # A sum over fewer rows is a partial one; a row is a row.
        whole = num_rows == table.num_embeddings or not table.is_pooled
        outputs = samples * table.num_features if table.is_pooled else received
        quantizer = columns * step.quantizer_bytes(outputs, element)
        values = columns * step.column_bytes(outputs, element, whole_rows=whole) - quantizer
        return ShardBytes(weights, states, ids, values, quantizer)

    def row_bytes(self, table: EmbeddingTable, columns: int) -> tuple[int, int]:
        """Bytes of the weights and of the optimiser state of this many columns of one row."""
        per_weight, per_row = OPTIMIZER_STATE[self.optimizer_of(table)]
        return columns * ELEMENT_BYTES[self.precision_of(table)], 4 * (per_weight * columns + per_row)

    def shard_lookups(self, table: EmbeddingTable, rows: tuple[int, int], num_holders: int = 1) -> Lookups:
        """Return the ids of a batch that a shard of a task with `step_memory` receives; arguments as `shard_bytes`.

        With `dedup_ids`, distinct ids are taken to grow in the hottest batch by the same factor as ids.
        """
        key = (table.name, rows, num_holders)
        if key not in self._lookups:
            self._lookups[key] = self._shard_lookups(table, rows, num_holders)
        return self._lookups[key]

    @functools.cached_property
    def _lookups(self) -> dict[tuple[str, tuple[int, int], int], Lookups]:
        """What `shard_lookups` has found: rules that halve shards ask millions of times for a few ranges of rows."""
        return {}

    def _shard_lookups(self, table: EmbeddingTable, rows: tuple[int, int], num_holders: int) -> Lookups:
        assert self.step_memory is not None
        samples = -(-self.batch_size // num_holders)
        lookups = shard_lookups(table, samples, *rows, self.step_memory.hot_quantile)
        if not self.dedup_ids or table.is_pooled or lookups.average == 0:
            return lookups
        sent = distinct_ids(table, self.batch_size, rows, self.num_devices) / num_holders
        return Lookups(*(sent / lookups.average * number for number in lookups))

    def block_bytes(
        self, table: EmbeddingTable, rows: int, columns: int, *, first_row: int = 0, num_holders: int = 1
    ) -> int:
        """Bytes that `rows` x `columns` of a table take in all on each device that holds them, see `shard_bytes`."""
        if self.step_memory is None:
            return block_bytes(rows, columns, self.precision_of(table), self.optimizer_of(table))
        return sum(self.shard_bytes(table, (first_row, first_row + rows), columns, num_holders))

    @functools.cached_property
    def capacity_bytes(self) -> tuple[int, ...]:
        """What shards may take on each device, as `block_bytes` counts: memory without what every plan takes.

        With `step_memory`, that is what is reserved, and inputs and outputs of a device's own samples.
        """
        step = self.step_memory
        if step is None:
            return self.topology.memory_bytes
        return tuple(
            max(0, memory - step.reserved_on(device) - self.own_bytes(device))
            for device, memory in enumerate(self.topology.memory_bytes)
        )

    @property
    def total_capacity_bytes(self) -> int:
        """What shards may take on all devices together."""
        return sum(self.capacity_bytes)

    def own_bytes(self, device: int) -> int:
        """Bytes of a step that a device takes for its own samples under every plan, without what is reserved."""
        return sum(self.own_parts(device))

    def own_parts(self, device: int) -> tuple[int, int]:
        """Return the same, of inputs and of outputs."""
        if self.step_memory is None:
            return 0, 0
        return self._own_parts[int(device < self.batch_size % self.num_devices)]

    @functools.cached_property
    def _own_parts(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Bytes for the own samples of the last devices, and of the first, which have one more if any has."""
        assert self.step_memory is not None
        share, rest = divmod(self.batch_size, self.num_devices)
        few, many = (
            self.step_memory.own_parts(self.tables, samples, ELEMENT_BYTES[self.precision])
            for samples in (share, share + (rest > 0))
        )
        return few, many

    def part(
        self,
        capacity_bytes: Sequence[int],
        tables: Sequence[EmbeddingTable] | None = None,
        topology: Topology | None = None,
    ) -> ShardingTask:
        """Return a task for some tables in the room that is left on devices, to make a part of a plan.

        Args:
            capacity_bytes: what shards may take on each device; at least 1 is left, which holds none.
            tables: some of the task's; all by default.
            topology: devices whose memory is replaced; those of the task by default.
        """
        room = tuple(max(1, num_bytes) for num_bytes in capacity_bytes)
        step = self.step_memory
        if step is not None:  # what shards take alone: the room is what is left for these
            step = dataclasses.replace(step, reserved_bytes=(0,), input_copies=0.0, joined_output_copies=0.0)
        return dataclasses.replace(
            self,
            tables=self.tables if tables is None else tuple(tables),
            topology=dataclasses.replace(self.topology if topology is None else topology, memory_bytes=room),
            step_memory=step,
            name="",
        )

    @functools.cached_property
    def _column_bytes(self) -> tuple[Ints, Ints]:
        """Bytes of a column of each table, and those that its rows take in any case, each of shape (T,)."""
        one = [self.block_bytes(table, table.num_embeddings, 1) for table in self.tables]
        two = [self.block_bytes(table, table.num_embeddings, 2) for table in self.tables]
        column: Ints = np.array(two, dtype=np.int64) - np.array(one, dtype=np.int64)
        return column, np.array(one, dtype=np.int64) - column

    def columns_bytes(self, tables: Ints, columns: Ints) -> Ints:
        """Bytes that some columns of all rows of tables take on a device, see `shard_bytes`, shape (n,).

        Args:
            tables: positions of tables, shape (n,).
            columns: columns of each shard, shape (n,); 0 columns take nothing.
        """
        per_column, besides = self._column_bytes
        return np.where(columns > 0, columns * per_column[tables] + besides[tables], 0)

    def table_bytes(self, table: EmbeddingTable) -> int:
        """Bytes that a whole table takes on one device, see `shard_bytes`.

        Raises:
            InputError: not a table.
        """
        check_instance("table", table, EmbeddingTable)
        return self.block_bytes(table, table.num_embeddings, table.embedding_dim)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tables, each held whole."""
        return sum(self.table_bytes(table) for table in self.tables)
