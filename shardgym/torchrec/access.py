"""How often a model's tables are accessed: from a sample or a log of ids, from numbers, or assumed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardgym.arguments import check_int, check_name, describe
from shardgym.arrays import Ints
from shardgym.errors import InputError, UnknownNameError, import_extra, missing_file_remedy
from shardgym.ids import Bags, ReuseCounts
from shardgym.repeats import mean_run_length
from shardgym.row_access import distinct_rows
from shardgym.row_ranges import RANGES, RangeCounts
from shardgym.table import EmbeddingTable, IdDistribution, Lengths, RangeIds, UniformIds, ZipfIds
from shardgym.torchrec.model_tables import ModelTable, by_table

#: Largest exponent that is fitted; and the smallest, below which ids count as uniform.
_MOST_SKEW = 5.0
_LEAST_SKEW = 0.01
#: Ids in a range of rows, on average, from which its share is taken: even shares then vary by a tenth.
_IDS_PER_RANGE = 100
#: Times the mean that the busiest range has at least where ranges are not even: five such tenths above it.
_UNEVEN = 1.5


class Access(NamedTuple):
    """What a task says of the accesses to a table.

    Attributes:
        pooling_factor: mean ids per sample, of all features of the table together.
        ids: the distribution to draw from.
        reuse_histogram: see `EmbeddingTable`; None when unknown.
        run_length: likewise.
    """

    pooling_factor: float
    ids: IdDistribution
    reuse_histogram: tuple[float, ...] | None = None
    run_length: float = 1.0


def table_access(
    tables: list[ModelTable],
    batch_size: int,
    pooling_factors: Mapping[str, float] | Sequence[float] | None,
    sample: KeyedJaggedTensor | Mapping[str, Bags] | None,
    asked: Mapping[str, float],
) -> dict[str, Access]:
    """Return the accesses by table that one of three sources tells; of none, nothing is known. See `import_model`.

    Args:
        tables: of the model.
        batch_size: samples of a training step over all devices.
        pooling_factors: see `import_model`.
        sample: likewise.
        asked: pooling factors of TorchRec's constraints, by table.

    Raises:
        InputError: several sources, or one that does not fit the tables.
    """
    given = {"pooling_factors": pooling_factors, "sample": sample, "pooling factors of constraints": asked or None}
    sources = [source for source, value in given.items() if value is not None]
    if len(sources) > 1:
        raise InputError(f"{' and '.join(sources)} were given: give one of them")
    if pooling_factors is not None:
        return _access_of_pooling_factors(tables, pooling_factors)
    if sample is not None:
        return _access_of_sample(tables, sample, batch_size)
    return {name: Access(factor, UniformIds()) for name, factor in asked.items()}


def _access_of_pooling_factors(
    tables: list[ModelTable], pooling_factors: Mapping[str, float] | Sequence[float]
) -> dict[str, Access]:
    """Return accesses with uniform ids.

    Args:
        tables: of the model.
        pooling_factors: mean ids per sample, by table or for all tables in the model's order. A table without one is
            left out of the result.

    Raises:
        InputError: not one for each table, or a name that no table has.
    """
    if isinstance(pooling_factors, Mapping):
        factors = by_table("pooling_factors", pooling_factors, tables)
    elif isinstance(pooling_factors, str) or not isinstance(pooling_factors, Sequence | np.ndarray):
        expected = "expected numbers by table, or one for each table"
        raise InputError(f"pooling_factors: {expected}, got {describe(pooling_factors)}")
    elif len(pooling_factors) != len(tables):
        raise InputError(f"pooling_factors: expected one for each of {len(tables)} tables, got {len(pooling_factors)}")
    else:
        factors = {table.name: factor for table, factor in zip(tables, pooling_factors, strict=True)}
    return {name: Access(factor, UniformIds()) for name, factor in factors.items()}


def _access_of_sample(
    tables: list[ModelTable], sample: KeyedJaggedTensor | Mapping[str, Bags], batch_size: int
) -> dict[str, Access]:
    """Return accesses as a sample of ids has them.

    The pooling factor is the mean bag. The ids are those of `fit_ids`. The reuse histogram is that of the first
    `batch_size` samples; there is none when the sample has fewer.

    Args:
        tables: of the model.
        sample: ids by feature; all features with the same number of samples.
        batch_size: samples of a training step over all devices.

    Raises:
        InputError: a feature is missing, bags and ids contradict each other, or an id is out of range.
    """
    bags = _bags_of(sample) if isinstance(sample, KeyedJaggedTensor) else dict(sample)
    return {table.name: _table_access(table, bags, batch_size) for table in tables}


def _bags_of(sample: KeyedJaggedTensor) -> dict[str, Bags]:
    return {
        feature: Bags(jagged.values().cpu().numpy().astype(np.int64), jagged.lengths().cpu().numpy().astype(np.int64))
        for feature, jagged in sample.to_dict().items()
    }


def _table_access(table: ModelTable, bags: Mapping[str, Bags], batch_size: int) -> Access:
    """Return the accesses of one table, by all of its features together."""
    rows = table.config.num_embeddings
    lengths: Ints = np.zeros(0, dtype=np.int64)
    whole: list[Ints] = []
    first: list[Ints] = []
    for feature in table.config.feature_names:
        if feature not in bags:
            raise UnknownNameError("feature in the sample", feature, bags)
        bag = bags[feature]
        if not len(bag.lengths) or int(bag.lengths.sum()) != len(bag.indices):
            raise InputError(
                f"sample of feature '{feature}': {len(bag.lengths)} bags hold {int(bag.lengths.sum())} ids, "
                f"there are {len(bag.indices)}; expected at least one sample, and as many ids as bags hold"
            )
        if len(bag.indices) and not 0 <= int(bag.indices.min()) <= int(bag.indices.max()) < rows:
            wrong = int(bag.indices.min()) if int(bag.indices.min()) < 0 else int(bag.indices.max())
            raise InputError(
                f"sample of feature '{feature}': id {wrong} is no row of table '{table.name}' ({rows} rows)"
            )
        if len(lengths) and len(lengths) != len(bag.lengths):
            raise InputError(
                f"table '{table.name}': feature '{feature}' has {len(bag.lengths)} samples, another {len(lengths)}"
            )
        lengths = bag.lengths if not len(lengths) else lengths + bag.lengths
        whole.append(bag.indices)
        first.append(bag.indices[: int(bag.lengths[:batch_size].sum())])
    indices = np.concatenate(whole)
    histogram = ReuseCounts.of(np.concatenate(first)).row_shares() if len(lengths) >= batch_size else None
    # Of several features, ids are not in the order of samples here.
    run_length = mean_run_length(indices, lengths) if len(whole) == 1 else 1.0
    return Access(len(indices) / len(lengths), fit_ids(rows, indices, lengths, run_length), histogram, run_length)


def fit_ids(rows: int, indices: Ints, lengths: Ints, run_length: float) -> UniformIds | ZipfIds | RangeIds:
    """Return the distribution that is expected to touch as many distinct rows as these ids do.

    Where some ranges of rows are looked up far more than others, it has their shares, and is a Zipf law inside each.

    Args:
        rows: of the table.
        indices: ids, shape (N,).
        lengths: bag sizes, shape (samples,), which sum to N.
        run_length: of the ids, see `EmbeddingTable`.
    """
    kind: Lengths = "fixed" if int(np.ptp(lengths)) <= 1 else "poisson"
    distinct = len(np.unique(indices))
    probe = EmbeddingTable("sample", rows, 4, len(indices) / len(lengths), run_length=run_length)
    shares = _uneven_shares(rows, indices)

    def law(s: float) -> ZipfIds | RangeIds:
        return ZipfIds(s, lengths=kind) if shares is None else RangeIds(shares, s, lengths=kind)

    @functools.cache
    def excess(s: float) -> float:
        """Distinct rows that a law is expected to touch more than the sample; falls with s."""
        return distinct_rows(dataclasses.replace(probe, ids=law(s)), len(lengths)) - distinct

    low = 0.0
    high = _MOST_SKEW
    if len(indices) == 0 or rows == 1 or excess(_LEAST_SKEW) <= 0:
        return UniformIds(lengths=kind) if shares is None else law(0.0)
    if excess(high) > 0:
        return law(high)
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return law(round((low + high) / 2, 4))


def _uneven_shares(rows: int, indices: Ints) -> tuple[float, ...] | None:
    """Return shares of ranges of rows; None where they may as well be even, or the ids are too few to tell."""
    count = min(RANGES, rows, len(indices) // _IDS_PER_RANGE)
    if count < 2:
        return None
    shares = RangeCounts.of(indices, rows, count).lookups
    return shares if max(shares) * count > _UNEVEN else None


def read_log(path: str | Path, features: Iterable[str], samples: int | None = None) -> dict[str, Bags]:
    """Return the ids of some features, in the order of the file.

    Args:
        path: of the Parquet file.
        features: names of columns; each holds an id or a list of ids per sample, or nothing for no id.
        samples: read this many rows at most; all by default.

    Raises:
        InputError: the file cannot be read, is empty, lacks a column, or a column holds no whole numbers.
        MissingDependencyError: pyarrow is not installed.
    """
    parquet = import_extra("pyarrow.parquet", "reading a log of ids")
    path = check_name("path", path)
    samples = None if samples is None else check_int("samples", samples, 1)
    try:
        table = parquet.ParquetFile(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}{missing_file_remedy(path)}") from None
    except Exception as error:  # pyarrow's own errors for what is no Parquet file
        raise InputError(f"{path}: not a Parquet file ({str(error).splitlines()[0][:160]})") from None
    columns = list(dict.fromkeys(features))
    known = table.schema_arrow.names
    for feature in columns:
        if feature not in known:
            raise UnknownNameError(f"column in {path}", feature, known)
    rows = table.read(columns=columns) if samples is None else _first_rows(table, columns, samples)
    if not rows.num_rows:
        raise InputError(f"{path}: has no samples, expected a row for each")
    return {feature: _bags(f"{path}, column '{feature}'", rows.column(feature)) for feature in columns}


def _first_rows(table: Any, columns: list[str], samples: int) -> Any:
    """Read no more of a file than needed."""
    pyarrow = import_extra("pyarrow", "reading a log of ids")
    batches = []
    left = samples
    for batch in table.iter_batches(columns=columns):
        batches.append(batch.slice(0, left))
        left -= batches[-1].num_rows
        if not left:
            break
    return pyarrow.Table.from_batches(batches, table.schema_arrow.empty_table().select(columns).schema)


def _bags(where: str, column: Any) -> Bags:
    types = import_extra("pyarrow.types", "reading a log of ids")
    compute = import_extra("pyarrow.compute", "reading a log of ids")
    is_list = types.is_list(column.type) or types.is_large_list(column.type)
    value_type = column.type.value_type if is_list else column.type
    if not types.is_integer(value_type):
        raise InputError(f"{where}: holds {column.type}, expected whole numbers or lists of them")
    present = column.is_valid()
    lengths = compute.list_value_length(column) if is_list else present.cast("int64")
    values = compute.list_flatten(column) if is_list else column.drop_null()
    if values.null_count:
        raise InputError(f"{where}: a list holds {values.null_count} empty values, expected whole numbers")
    return Bags(
        values.combine_chunks().to_numpy(zero_copy_only=False).astype(np.int64),
        compute.fill_null(lengths, 0).combine_chunks().to_numpy(zero_copy_only=False).astype(np.int64),
    )
