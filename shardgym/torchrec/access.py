"""How often a model's tables are accessed: from a sample or a stream of ids, from numbers, or assumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardgym.errors import InputError, UnknownNameError
from shardgym.records import short_repr
from shardgym.tables.bags import Bags
from shardgym.tables.streams.statistics import FeatureStatistics
from shardgym.tables.streams.stream import IdStream, RecordedStream
from shardgym.tables.table import IdDistribution, UniformIds
from shardgym.tables.tables_of_streams import fit_ids
from shardgym.torchrec.model_tables import ModelTable, by_table


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
    sample: KeyedJaggedTensor | Mapping[str, Bags] | IdStream | None,
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
        raise InputError(f"pooling_factors: {expected}, got {short_repr(pooling_factors)}")
    elif len(pooling_factors) != len(tables):
        raise InputError(f"pooling_factors: expected one for each of {len(tables)} tables, got {len(pooling_factors)}")
    else:
        factors = {table.name: factor for table, factor in zip(tables, pooling_factors, strict=True)}
    return {name: Access(factor, UniformIds()) for name, factor in factors.items()}


def _access_of_sample(
    tables: list[ModelTable], sample: KeyedJaggedTensor | Mapping[str, Bags] | IdStream, batch_size: int
) -> dict[str, Access]:
    """Return accesses as a sample of ids has them.

    The pooling factor is the mean bag. The ids are those of `fit_ids`. The reuse histogram is that of batches; there is
    none when the sample is smaller than a batch, which is taken for one then.

    Args:
        tables: of the model.
        sample: ids by feature; all features with the same number of samples.
        batch_size: samples of a training step over all devices.

    Raises:
        InputError: a feature is missing, bags and ids contradict each other, or an id is out of range.
    """
    bags = _bags_of(sample) if isinstance(sample, KeyedJaggedTensor) else sample
    return _group_access(tables, bags, batch_size)


def _bags_of(sample: KeyedJaggedTensor) -> dict[str, Bags]:
    return {
        feature: Bags(jagged.values().cpu().numpy().astype(np.int64), jagged.lengths().cpu().numpy().astype(np.int64))
        for feature, jagged in sample.to_dict().items()
    }


def _group_access(
    tables: list[ModelTable], sample: Mapping[str, Bags] | IdStream, batch_size: int
) -> dict[str, Access]:
    """Return the accesses of tables, each by all of its features."""
    found: dict[str, FeatureStatistics] = {}
    for batch in _batches(tables, sample, batch_size):
        for table in tables:
            bags = _table_bags(table, batch)
            if table.name not in found:
                found[table.name] = FeatureStatistics(table.config.num_embeddings, len(bags.lengths))
            found[table.name].add(bags)
    if not found:  # a stream of less than a batch
        if not isinstance(sample, RecordedStream):
            raise InputError(f"sample: has no whole batch of {batch_size} samples: give more of them")
        whole = {feature: sample.read(feature) for table in tables for feature in table.config.feature_names}
        return _group_access(tables, whole, batch_size)
    return {
        name: Access(
            of_table.pooling_factor,
            fit_ids(of_table),
            of_table.reuse.row_shares() if of_table.batch_size == batch_size else None,
            of_table.run_length,
        )
        for name, of_table in found.items()
    }


def _batches(
    tables: list[ModelTable], sample: Mapping[str, Bags] | IdStream, batch_size: int
) -> Iterator[Mapping[str, Bags]]:
    """Yield the bags of all features of tables, batch after batch."""
    features = [feature for table in tables for feature in table.config.feature_names]
    if isinstance(sample, IdStream):
        yield from sample.batches(batch_size, features)
        return
    bags = {
        feature: _checked_bags(table, feature, sample) for table in tables for feature in table.config.feature_names
    }
    count = len(bags[features[0]].lengths)
    size = min(batch_size, count)
    for number in range(count // size):
        yield {feature: of_one.samples(number * size, size) for feature, of_one in bags.items()}


def _table_bags(table: ModelTable, batch: Mapping[str, Bags]) -> Bags:
    """Return the ids of all features of a table by sample; raises `InputError` for ids that are none of its rows."""
    rows = table.config.num_embeddings
    for feature in table.config.feature_names:
        indices = batch[feature].indices
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < rows:
            wrong = int(indices.min()) if int(indices.min()) < 0 else int(indices.max())
            raise InputError(
                f"sample of feature '{feature}': id {wrong} is no row of table '{table.name}' ({rows} rows)"
            )
    return _together([batch[feature] for feature in table.config.feature_names])


def _checked_bags(table: ModelTable, feature: str, sample: Mapping[str, Bags]) -> Bags:
    """Return the bags of a feature; raises `InputError` unless they are as many as the first feature's and whole."""
    first = table.config.feature_names[0]
    if feature not in sample:
        raise UnknownNameError("feature in the sample", feature, sample)
    bag = sample[feature]
    if not len(bag.lengths) or int(bag.lengths.sum()) != len(bag.indices):
        raise InputError(
            f"sample of feature '{feature}': {len(bag.lengths)} bags hold {int(bag.lengths.sum())} ids, "
            f"there are {len(bag.indices)}; expected at least one sample, and as many ids as bags hold"
        )
    if len(bag.lengths) != len(sample[first].lengths):
        raise InputError(
            f"table '{table.name}': feature '{feature}' has {len(bag.lengths)} samples, another "
            f"{len(sample[first].lengths)}"
        )
    return bag


def _together(batch: list[Bags]) -> Bags:
    """Return the bags of several features as one for each sample."""
    if len(batch) == 1:
        return batch[0]
    samples = np.concatenate([np.repeat(np.arange(len(bags.lengths)), bags.lengths) for bags in batch])
    order = np.argsort(samples, kind="stable")
    indices = np.concatenate([bags.indices for bags in batch])[order]
    return Bags(indices, np.sum([bags.lengths for bags in batch], axis=0))
