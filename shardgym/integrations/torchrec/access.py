"""How often a model's tables are accessed: from a sample of ids, from numbers, or assumed."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardgym.arguments import describe
from shardgym.arrays import Ints
from shardgym.costs.roofline import expected_distinct_rows
from shardgym.errors import InputError, UnknownNameError
from shardgym.ids import Bags, ReuseCounts
from shardgym.integrations.torchrec.library import KeyedJaggedTensor
from shardgym.integrations.torchrec.model_tables import ModelTable, by_table
from shardgym.table import EmbeddingTable, IdDistribution, Lengths, UniformIds, ZipfIds

#: Largest exponent that is fitted; and the smallest, below which ids count as uniform.
_MOST_SKEW = 5.0
_LEAST_SKEW = 0.01


class Access(NamedTuple):
    """What a task says of the accesses to a table.

    Attributes:
        pooling_factor: mean ids per sample, of all features of the table together.
        ids: the distribution to draw from.
        reuse_histogram: see `EmbeddingTable`; None when unknown.
    """

    pooling_factor: float
    ids: IdDistribution
    reuse_histogram: tuple[float, ...] | None = None


def access_of_pooling_factors(
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


def access_of_constraints(tables: list[ModelTable], constraints: Mapping[str, Any]) -> dict[str, Access]:
    """Return accesses with uniform ids from TorchRec's `ParameterConstraints`: the sums of their pooling factors.

    Raises:
        InputError: not one factor for each feature of a table, or a name that no table has.
    """
    found = by_table("constraints", constraints, tables)
    access = {}
    for table in tables:
        if table.name not in found:
            continue
        factors = list(found[table.name].pooling_factors)
        features = table.config.feature_names
        if len(factors) != len(features):
            raise InputError(
                f"constraints of table '{table.name}': expected a pooling factor for each of its {len(features)} "
                f"features, got {len(factors)}"
            )
        access[table.name] = Access(math.fsum(factors), UniformIds())
    return access


def access_of_sample(
    tables: list[ModelTable], sample: KeyedJaggedTensor | Mapping[str, Bags], batch_size: int
) -> dict[str, Access]:
    """Return accesses as a sample of ids has them.

    The pooling factor is the mean bag. The ids are uniform, or follow a Zipf law with as many distinct rows as the
    sample. The reuse histogram is that of the first `batch_size` samples; there is none when the sample has fewer.

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
    """Return the accesses of one table; those of its features, if there are several, as if they were one feature."""
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
    return Access(len(indices) / len(lengths), fit_ids(rows, indices, lengths), histogram)


def fit_ids(rows: int, indices: Ints, lengths: Ints) -> UniformIds | ZipfIds:
    """Return the distribution that is expected to touch as many distinct rows as these ids do.

    Args:
        rows: of the table.
        indices: ids, shape (N,).
        lengths: bag sizes, shape (samples,), which sum to N.
    """
    kind: Lengths = "fixed" if int(np.ptp(lengths)) <= 1 else "poisson"
    distinct = len(np.unique(indices))
    probe = EmbeddingTable("sample", rows, 4, len(indices) / len(lengths))

    @functools.cache
    def excess(s: float) -> float:
        """Distinct rows that a law is expected to touch more than the sample; falls with s."""
        return expected_distinct_rows(dataclasses.replace(probe, ids=ZipfIds(s)), len(lengths)) - distinct

    low = 0.0
    high = _MOST_SKEW
    if len(indices) == 0 or rows == 1 or excess(_LEAST_SKEW) <= 0:
        return UniformIds(lengths=kind)
    if excess(high) > 0:
        return ZipfIds(high, lengths=kind)
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return ZipfIds(round((low + high) / 2, 4), lengths=kind)
