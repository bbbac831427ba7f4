"""ShardingTask: the tables to place, the devices to place them on, and what a training step does."""

from __future__ import annotations

import functools
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from shardgym.arguments import check_instance
from shardgym.arrays import Ints
from shardgym.errors import UnknownNameError
from shardgym.records import CONFIG, Record, Whole, canonical_json, sha256
from shardgym.table import EmbeddingTable, check_distinct_names
from shardgym.topology import Topology

Precision = Literal["fp32", "fp16"]
Optimizer = Literal["exact_sgd", "rowwise_adagrad", "adagrad", "adam"]

ELEMENT_BYTES: dict[str, int] = {"fp32": 4, "fp16": 2}
#: Optimiser state in FP32 elements: (per weight, per row of a shard), as FBGEMM keeps it.
OPTIMIZER_STATE: dict[str, tuple[int, int]] = {
    "exact_sgd": (0, 0),
    "rowwise_adagrad": (0, 1),
    "adagrad": (1, 0),
    "adam": (2, 0),
}

#: A whole number, or an array of them.
Count = TypeVar("Count", int, Ints)


def block_bytes(rows: Count, columns: Count, precision: Precision, optimizer: Optimizer) -> Count:
    """Bytes that `rows` x `columns` weights take, optimiser state included."""
    per_weight, per_row = OPTIMIZER_STATE[optimizer]
    return rows * columns * (ELEMENT_BYTES[precision] + 4 * per_weight) + rows * 4 * per_row


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
        precision: of weights and of what is communicated.
        optimizer: its state counts against memory.
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

    def block_bytes(self, rows: Count, columns: Count) -> Count:
        """Bytes that `rows` x `columns` weights take on a device, optimiser state included."""
        return block_bytes(rows, columns, self.precision, self.optimizer)

    def table_bytes(self, table: EmbeddingTable) -> int:
        """Bytes that a whole table takes on one device, optimiser state included.

        Raises:
            InputError: not a table.
        """
        check_instance("table", table, EmbeddingTable)
        return self.block_bytes(table.num_embeddings, table.embedding_dim)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tables, each held whole."""
        return sum(self.table_bytes(table) for table in self.tables)
