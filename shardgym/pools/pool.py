"""TablePool: the tables that tasks are drawn from."""

from __future__ import annotations

import dataclasses
import hashlib
import numbers
from collections.abc import Sequence
from typing import Annotated, Literal, overload

from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass

from shardgym.arguments import check_index
from shardgym.errors import InputError
from shardgym.records import CONFIG, Name, Record, Whole, short_repr
from shardgym.table import EmbeddingTable, RecordedIds, ZipfIds, check_distinct_names

#: Samples per batch that the papers' table statistics refer to (dlrm_datasets 2021).
DEFAULT_BATCH_SIZE = 65_536

#: Decides for ever which half of a pool a table is in.
SPLIT_SALT = "shardgym pool split 1"


@dataclass(frozen=True, config=CONFIG)
class TablePool(Record, Sequence[EmbeddingTable]):
    """Tables by index, with the batch that their reuse histograms are of.

    Attributes:
        name: for display and errors.
        batch_size: samples per batch.
        tables: at least one, with distinct names.
    """

    name: Name
    batch_size: Annotated[Whole, Field(ge=1, le=2**26)]
    tables: Annotated[tuple[EmbeddingTable, ...], Field(min_length=1, max_length=100_000)]
    schema: Literal["shardgym.pool/1"] = "shardgym.pool/1"

    @field_validator("tables")
    @classmethod
    def _distinct_names(cls, value: tuple[EmbeddingTable, ...]) -> tuple[EmbeddingTable, ...]:
        check_distinct_names(value)
        return value

    def __len__(self) -> int:
        return len(self.tables)

    @overload
    def __getitem__(self, index: int) -> EmbeddingTable: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[EmbeddingTable, ...]: ...
    def __getitem__(self, index: int | slice) -> EmbeddingTable | tuple[EmbeddingTable, ...]:
        """Return a table, or a tuple of tables; raises `IndexError`, and `InputError` when `index` is no number."""
        if isinstance(index, slice):
            return self.tables[index]
        return self.tables[check_index(f"pool '{self.name}'", "table", index, len(self))]

    def split(self) -> tuple[TablePool, TablePool]:
        """Cut the pool by table into a train and a test half.

        The half of a table follows from a hash of its name among those of the other tables, not from its position,
        rows or any random state. An odd table goes to the test half.

        Returns:
            (train, test), each in the pool's order.

        Raises:
            InputError: the pool has one table only.
        """
        if len(self) < 2:
            raise InputError(f"pool '{self.name}' has one table: a train and a test half need at least two")
        # By rank and not by a bit of the hash, so that both halves have the same size.
        ranked = sorted((_split_hash(table.name), table.name) for table in self)
        train = {name for _, name in ranked[: len(self) // 2]}
        halves = [tuple(t for t in self if (t.name in train) == wanted) for wanted in (True, False)]
        return (
            TablePool(f"{self.name}, train half", self.batch_size, halves[0]),
            TablePool(f"{self.name}, test half", self.batch_size, halves[1]),
        )

    def scaled(self, factor: int) -> TablePool:
        """Divide the batch and all rows by `factor`, so that tables reuse their rows as before.

        With rows, popularity curve and number of ids all shrunk alike, a row is expected to be touched as often per
        batch as the rows it stands for were on average; so reuse histograms and pooling factors are kept. Only the
        most popular few rows of a strongly skewed table are averaged away.

        Args:
            factor: at least 1; must divide the batch size.

        Raises:
            InputError: the factor does not fit, or ids are recorded and cannot be scaled.
        """
        if not isinstance(factor, numbers.Integral) or factor < 1 or self.batch_size % factor:
            raise InputError(
                f"pool '{self.name}' cannot be scaled by {short_repr(factor)}: expected a whole divisor of its batch "
                f"size {self.batch_size}"
            )
        if factor == 1:
            return self
        tables = tuple(_scaled(table, factor) for table in self)
        return TablePool(f"{self.name}, scaled by {factor}", self.batch_size // factor, tables)


def _split_hash(name: str) -> str:
    return hashlib.sha256(f"{SPLIT_SALT}\n{name}".encode()).hexdigest()


def _scaled(table: EmbeddingTable, factor: int) -> EmbeddingTable:
    if isinstance(table.ids, RecordedIds):
        raise InputError(f"table '{table.name}' cannot be scaled: its ids are recorded; use its file's batch size")
    ids = table.ids
    if isinstance(ids, ZipfIds):
        # Ids are drawn from a continuous density over [0.5 + q, rows + 0.5 + q]: shrinking this interval as a whole
        # keeps the density's shape.
        ids = dataclasses.replace(ids, q=(ids.q + 0.5) / factor - 0.5)
    return dataclasses.replace(table, num_embeddings=-(-table.num_embeddings // factor), ids=ids)
