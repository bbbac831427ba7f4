"""EmbeddingTable: what a solver and a cost model know about one embedding table."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass

from shardgym.ids.distribution import IdDistribution, UniformIds
from shardgym.records import CONFIG, Name, Number, Record, Whole

#: Upper edges of the reuse bins 0..15: bin i holds rows accessed (2**(i-1), 2**i] times a batch, bin 16 the rest.
REUSE_BINS = 17


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
            The batch is that of the pool or task the table belongs to. None when unknown.
    """

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
