"""EmbeddingTable: an embedding table and how its rows are accessed. TablePool: the tables that tasks are drawn from."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import numbers
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, overload

from pydantic import Field, field_validator, model_validator
from pydantic.dataclasses import dataclass

from shardgym.errors import InputError, short_repr
from shardgym.records import CONFIG, Digest, Name, Number, Record, Whole, canonical_json

#: Rows of a table.
MOST_ROWS = 2**40

#: Bins of a reuse histogram: bin 0 holds the rows that a batch accesses once, bin i those accessed more than 2**(i-1)
#: and up to 2**i times, and bin 16 all others.
REUSE_BINS = 17

Precision = Literal["fp32", "fp16"]
Optimizer = Literal["exact_sgd", "rowwise_adagrad", "adagrad", "adam"]
#: What becomes of the rows of a bag: they are added up, averaged, or all put out in their order, unpooled.
Pooling = Literal["sum", "mean", "none"]

#: How bag sizes vary around the pooling factor: `fixed` spreads ids evenly over samples, `poisson` draws every bag.
Lengths = Literal["fixed", "poisson"]

#: Where popular rows lie: anywhere, side by side at the beginning, or in blocks of rows that are about as popular.
RowOrder = Literal["scattered", "by_frequency", "blocks"]

#: Shares of equal ranges of a table's rows, which sum to 1; or are all 0, where nothing is looked up.
RangeShares = Annotated[tuple[Annotated[Number, Field(ge=0, le=1)], ...], Field(min_length=1, max_length=4096)]


@dataclass(frozen=True, config=CONFIG)
class UniformIds(Record):
    """Every row is equally likely."""

    kind: Literal["uniform"] = "uniform"
    lengths: Lengths = "fixed"


@dataclass(frozen=True, config=CONFIG)
class ZipfIds(Record):
    """Row of popularity rank x = 0, 1, ... is drawn with probability proportional to (x + 1 + q) ** -s.

    The family of FBGEMM's benchmark configuration (`TBEDataConfig`: `zipf_q`, `zipf_s`).

    Attributes:
        s: exponent; larger means more skew.
        q: shift; larger flattens the head. At least -0.5.
        row_order: where popular rows lie. "by_frequency": rank x is row x, as after a remapping by frequency.
            "scattered": ranks are spread over the rows, as by a hash function. "blocks": `block_rows` neighbours by
            rank are neighbours by row, and these blocks are scattered. None: unknown; ids are drawn as scattered, and
            every range of rows counts as having its fair share of lookups.
        block_rows: rows of a block, only for "blocks". Rows at the end that fill no block are the least popular ones.

    Raises:
        InputError: `block_rows` without blocks, or blocks without it.
    """

    s: Annotated[Number, Field(ge=0, le=10)]
    q: Annotated[Number, Field(ge=-0.5, le=1e12)] = 0.0
    kind: Literal["zipf"] = "zipf"
    lengths: Lengths = "fixed"
    row_order: RowOrder | None = None
    block_rows: Annotated[Whole, Field(ge=1, le=2**40)] | None = None

    @model_validator(mode="after")
    def _blocks_have_a_size(self) -> ZipfIds:
        if (self.row_order == "blocks") != (self.block_rows is not None):
            given = "no block_rows" if self.block_rows is None else f"block_rows={self.block_rows}"
            raise ValueError(f"expected block_rows only with row_order='blocks', got {given} with {self.row_order!r}")
        return self


@dataclass(frozen=True, config=CONFIG)
class RangeIds(Record):
    """Lookups by ranges of rows: a histogram over the rows of a table, measured or made up.

    Attributes:
        shares: share of the lookups in each of n equal ranges; range i starts at row `i * rows // n`.
        s: exponent of the Zipf law inside each range, over scattered rows; 0 makes its rows equally likely.
        q: shift of that law.

    Raises:
        InputError: the shares do not sum to 1.
    """

    shares: RangeShares
    s: Annotated[Number, Field(ge=0, le=10)] = 0.0
    q: Annotated[Number, Field(ge=-0.5, le=1e12)] = 0.0
    kind: Literal["ranges"] = "ranges"
    lengths: Lengths = "fixed"

    @field_validator("shares")
    @classmethod
    def _is_distribution(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not any(value):
            raise ValueError("shares must sum to 1, but all are 0")
        return _checked_shares(value, "shares")


@dataclass(frozen=True, config=CONFIG)
class RecordedIds(Record):
    """Ids recorded in a file that `shardgym.tables.streams` reads, found by name in the folders of `SHARDGYM_DATA`.

    Attributes:
        file: name of the file, without folders.
        feature: name of the feature in the stream of the file.
        samples: number of recorded samples, from the start of the file; whole batches.
        batch_size: samples of the batches in which distinct rows were counted.
        sha256: digest of lengths and ids, see `shardgym.tables.streams.statistics`; compared when the ids are loaded.
        hash_size: ids of the file are taken modulo this to become rows; None if they are rows.
        range_shares: share of the recorded lookups in each of n equal ranges of rows, as in `RangeIds`. None: not
            counted; every range of rows counts as having its fair share.
        range_distinct: share of the distinct rows of batches in each range; given with `range_shares`.

    Raises:
        InputError: shares do not sum to 1, one of the two is missing or has another length, or samples do not make
            whole batches.
    """

    file: Annotated[Name, Field(pattern=r"^[^/\\]+$")]
    feature: Name
    samples: Annotated[Whole, Field(ge=1)]
    batch_size: Annotated[Whole, Field(ge=1)]
    sha256: Digest
    kind: Literal["recorded"] = "recorded"
    hash_size: Annotated[Whole, Field(ge=1, le=MOST_ROWS)] | None = None
    range_shares: RangeShares | None = None
    range_distinct: RangeShares | None = None

    @field_validator("range_shares", "range_distinct")
    @classmethod
    def _are_distributions(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        return None if value is None else _checked_shares(value, "shares")

    @model_validator(mode="after")
    def _whole_batches(self) -> RecordedIds:
        if self.samples % self.batch_size:
            raise ValueError(f"expected whole batches of {self.batch_size} samples, got {self.samples} samples")
        return self

    @model_validator(mode="after")
    def _same_ranges(self) -> RecordedIds:
        counts = [0 if shares is None else len(shares) for shares in (self.range_shares, self.range_distinct)]
        if counts[0] != counts[1]:
            raise ValueError(
                f"expected range_shares and range_distinct of equal length, got {counts[0]} and {counts[1]}"
            )
        return self


def _checked_shares(value: tuple[float, ...], what: str) -> tuple[float, ...]:
    """Return shares that sum to 1 or are all 0; raises `ValueError` for others."""
    total = math.fsum(value)
    if total != 0 and abs(total - 1) > 1e-3:
        raise ValueError(f"{what} must sum to 1 (or all be 0), but sum to {total:.6g}")
    return value


IdDistribution = Annotated[UniformIds | ZipfIds | RangeIds | RecordedIds, Field(discriminator="kind")]


@dataclass(frozen=True, config=CONFIG)
class EmbeddingTable(Record):
    """One embedding table and how its rows are accessed.

    Attributes:
        name: unique within a task.
        num_embeddings: number of rows.
        embedding_dim: number of columns.
        pooling_factor: mean number of ids per sample, of all its features together; 0 for a table that is never used.
        ids: distribution of the ids, or the recording that they come from.
        reuse_histogram: 17 shares that sum to 1, or are all 0 for an unused table. Share k is the part of a batch's
            distinct rows that the batch looks up exactly once, (1, 2], (2, 4], ..., (16384, 32768], or more times. The
            batch is that of the table's pool or task. None when unknown.
        precision: precision of its weights, if not the task's. What is communicated has the task's.
        optimizer: optimiser of its rows, if not the task's.
        num_features: features that share the table: bags per sample, each with an output of its own.
        weighted: whether each id comes with a weight of 4 bytes.
        pooling: "sum" or "mean" of the rows of a bag; or "none", TorchRec's `PoolingType.NONE`: a row for each id, as
            for sequences.
        run_length: mean number of consecutive lookups of a row, as in batches that go user by user; they fall on the
            same device. Drawn ids are repeated this often.
    """

    name: Name
    num_embeddings: Annotated[Whole, Field(ge=1, le=MOST_ROWS)]
    embedding_dim: Annotated[Whole, Field(ge=1, le=2**16)]
    pooling_factor: Annotated[Number, Field(ge=0, le=1e6)] = 1.0
    ids: IdDistribution = Field(default_factory=UniformIds)
    reuse_histogram: tuple[Annotated[Number, Field(ge=0, le=1)], ...] | None = None
    precision: Precision | None = None
    optimizer: Optimizer | None = None
    num_features: Annotated[Whole, Field(ge=1, le=2**16)] = 1
    weighted: bool = False
    pooling: Pooling = "sum"
    run_length: Annotated[Number, Field(ge=1, le=1e6)] = 1.0
    schema: Literal["shardgym.table/1"] = "shardgym.table/1"

    @field_validator("reuse_histogram")
    @classmethod
    def _is_distribution(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if value is None:
            return None
        if len(value) != REUSE_BINS:
            raise ValueError(f"expected {REUSE_BINS} bins, got {len(value)}")
        return _checked_shares(value, "bins")

    @model_validator(mode="after")
    def _rows_fill_ranges(self) -> EmbeddingTable:
        ids = self.ids
        if isinstance(ids, ZipfIds):
            needed, what = ids.block_rows or 1, f"blocks of {ids.block_rows} rows"
        else:
            shares = ids.shares if isinstance(ids, RangeIds) else getattr(ids, "range_shares", None)
            needed, what = len(shares or ()), f"the {len(shares or ())} ranges"
        if needed > self.num_embeddings:
            raise ValueError(f"table '{self.name}' has {self.num_embeddings} rows, too few for {what} of its ids")
        return self

    @model_validator(mode="after")
    def _weights_are_pooled(self) -> EmbeddingTable:
        if self.weighted and not self.is_pooled:
            raise ValueError(f"table '{self.name}' is weighted but unpooled: weights apply to pooled rows only")
        return self

    @property
    def is_pooled(self) -> bool:
        """Whether a bag has one output row; otherwise every id has one."""
        return self.pooling != "none"

    @functools.cached_property
    def canonical_text(self) -> str:
        """The canonical JSON of what the table is, which is part of that of every task with this table."""
        return canonical_json(self.identity())


def check_distinct_names(tables: Iterable[EmbeddingTable]) -> None:
    """Raise `ValueError` when two tables have the same name."""
    for name, count in Counter(table.name for table in tables).most_common(1):
        if count > 1:
            raise ValueError(f"table names must be distinct, '{name}' occurs more than once")


#: Samples per batch that the papers' table statistics refer to (dlrm_datasets 2021).
DEFAULT_BATCH_SIZE = 65_536


def tables_in_batches(tables: Iterable[EmbeddingTable], counted: int, batch_size: int) -> tuple[EmbeddingTable, ...]:
    """Return tables for batches of `batch_size`, without reuse histograms unless these were counted in such batches.

    Args:
        tables: tables whose reuse histograms are of batches of `counted` samples.
        counted: samples per batch.
        batch_size: samples per batch that the tables are for.

    Raises:
        InputError: recorded ids follow no law that would say how often larger or smaller batches reuse rows.
    """
    if batch_size == counted:
        return tuple(tables)
    found = []
    for table in tables:
        if isinstance(table.ids, RecordedIds) and table.reuse_histogram is not None:
            raise InputError(
                f"table '{table.name}' has recorded ids, whose reuse was counted in batches of {counted}, not "
                f"{batch_size}: import them again for that batch, or with a fitted law (--fit)"
            )
        found.append(dataclasses.replace(table, reuse_histogram=None))
    return tuple(found)


#: Hashed with a table's name to choose its half of a pool; a change would move tables between train and test halves.
SPLIT_SALT = "shardgym pool split 1"


@dataclass(frozen=True, config=CONFIG)
class TablePool(Record, Sequence[EmbeddingTable]):
    """Tables by index, with the batch that their reuse histograms are of.

    Attributes:
        name: name for display and errors.
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
        """Return a table, or a tuple of tables; raises `IndexError`."""
        return self.tables[index]

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
        return self._halves

    @functools.cached_property
    def _halves(self) -> tuple[TablePool, TablePool]:
        # By rank and not by a bit of the hash, so that both halves have the same size.
        ranked = sorted((hashlib.sha256(f"{SPLIT_SALT}\n{t.name}".encode()).hexdigest(), t.name) for t in self.tables)
        train = {name for _, name in ranked[: len(self) // 2]}
        halves = [tuple(t for t in self.tables if (t.name in train) == wanted) for wanted in (True, False)]
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
        batch_size = self.scaled_batch_size(factor)
        if factor == 1:
            return self
        tables = tuple(scaled_table(table, factor) for table in self.tables)
        return TablePool(f"{self.name}, scaled by {factor}", batch_size, tables)

    def scaled_batch_size(self, factor: int) -> int:
        """Return the batch size of the pool scaled by `factor`; raises `InputError` when the factor does not fit."""
        if not isinstance(factor, numbers.Integral) or factor < 1 or self.batch_size % factor:
            raise InputError(
                f"pool '{self.name}' cannot be scaled by {short_repr(factor)}: expected a whole divisor of its batch "
                f"size {self.batch_size}"
            )
        return self.batch_size // factor


def scaled_table(table: EmbeddingTable, factor: int) -> EmbeddingTable:
    """Return a table as `TablePool.scaled` has it; raises `InputError` when its ids are recorded."""
    if factor == 1:
        return table
    if isinstance(table.ids, RecordedIds):
        raise InputError(f"table '{table.name}' cannot be scaled: its ids are recorded; use its file's batch size")
    ids = table.ids
    if isinstance(ids, ZipfIds):
        # Ids are drawn from a continuous density over [0.5 + q, rows + 0.5 + q]: shrinking this interval as a whole
        # keeps the density's shape.
        ids = dataclasses.replace(
            ids,
            q=(ids.q + 0.5) / factor - 0.5,
            block_rows=None if ids.block_rows is None else -(-ids.block_rows // factor),
        )
    elif isinstance(ids, RangeIds):
        ids = dataclasses.replace(ids, q=(ids.q + 0.5) / factor - 0.5)
    return dataclasses.replace(table, num_embeddings=-(-table.num_embeddings // factor), ids=ids)
