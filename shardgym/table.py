"""EmbeddingTable: what a solver and a cost model know about one embedding table, and where its ids come from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass

from shardgym.records import CONFIG, Digest, Name, Number, Record, Whole

#: Bins of a reuse histogram: bin 0 holds the rows that a batch accesses once, bin i those accessed more than 2**(i-1)
#: and up to 2**i times, and bin 16 all others.
REUSE_BINS = 17

#: How bag sizes vary around the pooling factor: `fixed` spreads ids evenly over samples, `poisson` draws every bag.
Lengths = Literal["fixed", "poisson"]


@dataclass(frozen=True, config=CONFIG)
class UniformIds(Record):
    """Every row is equally likely."""

    kind: Literal["uniform"] = "uniform"
    lengths: Lengths = "fixed"


@dataclass(frozen=True, config=CONFIG)
class ZipfIds(Record):
    """Row of popularity rank x = 0, 1, ... is drawn with probability proportional to (x + 1 + q) ** -s.

    The family of FBGEMM's benchmark configuration (`TBEDataConfig`: `zipf_q`, `zipf_s`). Ranks are scattered over
    the rows, so that a range of rows holds a fair share of popular ones.

    Attributes:
        s: exponent; larger means more skew.
        q: shift; larger flattens the head. At least -0.5.
    """

    s: Annotated[Number, Field(ge=0, le=10)]
    q: Annotated[Number, Field(ge=-0.5, le=1e12)] = 0.0
    kind: Literal["zipf"] = "zipf"
    lengths: Lengths = "fixed"


@dataclass(frozen=True, config=CONFIG)
class RecordedIds(Record):
    """Ids recorded in a dlrm_datasets file, found by name in the folders of `SHARDGYM_DATA`.

    Attributes:
        file: name of the file, without folders.
        table_index: which of the file's tables.
        batch_size: samples recorded.
        sha256: over the table's lengths and ids as little-endian 64-bit integers; compared when the ids are loaded.
    """

    file: Annotated[Name, Field(pattern=r"^[^/\\]+$")]
    table_index: Annotated[Whole, Field(ge=0)]
    batch_size: Annotated[Whole, Field(ge=1)]
    sha256: Digest
    kind: Literal["recorded"] = "recorded"


IdDistribution = Annotated[UniformIds | ZipfIds | RecordedIds, Field(discriminator="kind")]


@dataclass(frozen=True, config=CONFIG)
class EmbeddingTable(Record):
    """One embedding table and how its rows are accessed.

    Attributes:
        name: unique within a task.
        num_embeddings: rows.
        embedding_dim: columns.
        pooling_factor: mean number of ids per sample; 0 for a table that is never looked up.
        ids: where ids come from when the table is measured.
        reuse_histogram: 17 shares, summing to 1 (or all 0 for an unused table), of the distinct rows touched by one
            batch by how often the batch touches them: exactly once, (1, 2], (2, 4], ..., (16384, 32768], more.
            The batch is that of the table's pool or task. None when unknown.
    """

    how_to_get: ClassVar[str] = "task.table(name) finds one"

    name: Name
    num_embeddings: Annotated[Whole, Field(ge=1, le=2**40)]
    embedding_dim: Annotated[Whole, Field(ge=1, le=2**16)]
    pooling_factor: Annotated[Number, Field(ge=0, le=1e6)] = 1.0
    ids: IdDistribution = Field(default_factory=UniformIds)
    reuse_histogram: tuple[Annotated[Number, Field(ge=0, le=1)], ...] | None = None
    schema: Literal["shardgym.table/1"] = "shardgym.table/1"

    @field_validator("reuse_histogram")
    @classmethod
    def _is_distribution(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if value is None:
            return None
        if len(value) != REUSE_BINS:
            raise ValueError(f"expected {REUSE_BINS} bins, got {len(value)}")
        total = math.fsum(value)
        if total != 0 and abs(total - 1) > 1e-3:
            raise ValueError(f"bins must sum to 1 (or all be 0), they sum to {total:.6g}")
        return value


def check_distinct_names(tables: Iterable[EmbeddingTable]) -> None:
    """Raise `ValueError` when two tables have the same name."""
    for name, count in Counter(table.name for table in tables).most_common(1):
        if count > 1:
            raise ValueError(f"table names must be distinct, '{name}' occurs more than once")
