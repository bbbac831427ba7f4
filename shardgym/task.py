"""ShardingTask: the tables to place, the devices to place them on, and what a training step does."""

from __future__ import annotations

import functools
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from shardgym.arguments import check_instance
from shardgym.arrays import Ints
from shardgym.errors import UnknownNameError
from shardgym.records import CONFIG, Record, Whole, canonical_json, sha256
from shardgym.table import EmbeddingTable, Optimizer, Pooling, Precision, check_distinct_names
from shardgym.topology import Topology

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
        precision: of what is communicated, and of the weights of tables that do not say otherwise.
        optimizer: of tables that do not say otherwise; its state counts against memory.
        name: for display, e.g. "dlrm4-v1/17".
    """

    not_identity: ClassVar[frozenset[str]] = frozenset({"name"})
    how_to_get: ClassVar[str] = "ShardingTask.load(path) reads one, suite[0] is one of a suite"

    tables: Annotated[tuple[EmbeddingTable, ...], Field(min_length=1, max_length=100_000)]
    topology: Topology
    batch_size: Annotated[Whole, Field(ge=1, le=2**26)]
    precision: Precision = "fp32"
    optimizer: Optimizer = "exact_sgd"
    name: Annotated[str, Field(max_length=200)] = ""
    schema: Literal["shardgym.task/1"] = "shardgym.task/1"

    @model_validator(mode="after")
    def _distinct_names(self) -> ShardingTask:
        check_distinct_names(self.tables)
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
        """Return what TorchRec runs a fused operator for each of, see `FusedGroup`."""
        return frozenset(
            FusedGroup(self.precision_of(table), self.optimizer_of(table), table.pooling, table.weighted)
            for table in self.tables
        )

    def precision_of(self, table: EmbeddingTable) -> Precision:
        """Return the precision of a table's weights."""
        return table.precision or self.precision

    def optimizer_of(self, table: EmbeddingTable) -> Optimizer:
        """Return the optimiser of a table."""
        return table.optimizer or self.optimizer

    def block_bytes(self, table: EmbeddingTable, rows: int, columns: int) -> int:
        """Bytes that `rows` x `columns` weights of a table take on a device, optimiser state included."""
        return block_bytes(rows, columns, self.precision_of(table), self.optimizer_of(table))

    @functools.cached_property
    def _column_bytes(self) -> tuple[Ints, Ints]:
        """Bytes of a column of each table, and those that its rows take besides, each of shape (T,)."""
        one = [self.block_bytes(table, table.num_embeddings, 1) for table in self.tables]
        two = [self.block_bytes(table, table.num_embeddings, 2) for table in self.tables]
        column: Ints = np.array(two, dtype=np.int64) - np.array(one, dtype=np.int64)
        return column, np.array(one, dtype=np.int64) - column

    def columns_bytes(self, tables: Ints, columns: Ints) -> Ints:
        """Bytes that some columns of all rows of tables take on a device, optimiser state included, shape (n,).

        Args:
            tables: positions of tables, shape (n,).
            columns: of each, shape (n,); 0 columns take nothing.
        """
        per_column, besides = self._column_bytes
        return np.where(columns > 0, columns * per_column[tables] + besides[tables], 0)

    def table_bytes(self, table: EmbeddingTable) -> int:
        """Bytes that a whole table takes on one device, optimiser state included.

        Raises:
            InputError: not a table.
        """
        check_instance("table", table, EmbeddingTable)
        return self.block_bytes(table, table.num_embeddings, table.embedding_dim)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tables, each held whole."""
        return sum(self.table_bytes(table) for table in self.tables)
