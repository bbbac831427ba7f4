"""Access frequencies of a model's tables: from a sample or a stream of ids, from numbers, or assumed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardgym.errors import InputError, closest, short_repr
from shardgym.tables.bags import Bags
from shardgym.tables.streams.statistics import FeatureStatistics
from shardgym.tables.streams.stream import IdStream, RecordedStream
from shardgym.tables.table import IdDistribution, UniformIds
from shardgym.tables.tables_of_streams import fit_ids
from shardgym.torchrec.model_tables import ModelTable, by_table


class Access(NamedTuple):
    """Accesses to a table, see `EmbeddingTable`."""

    pooling_factor: float  #: mean ids per sample, of all features of the table together
    ids: IdDistribution
    reuse_histogram: tuple[float, ...] | None = None  #: None when unknown
    run_length: float = 1.0


def table_access(
    tables: list[ModelTable],
    batch_size: int,
    pooling_factors: Mapping[str, float] | Sequence[float] | None,
    sample: KeyedJaggedTensor | Mapping[str, Bags] | IdStream | None,
    asked: Mapping[str, float],
) -> dict[str, Access]:
    """Return the accesses by table from one of three sources; without a source, nothing is known.

    Args:
        tables: tables of the model.
        batch_size: samples of a training step over all devices.
        pooling_factors: see `import_model`.
        sample: see `import_model`.
        asked: pooling factors of TorchRec's constraints, by table.
    """
    given = {"pooling_factors": pooling_factors, "sample": sample, "pooling factors of constraints": asked or None}
    sources = [source for source, value in given.items() if value is not None]
    if len(sources) > 1:
        raise InputError(f"{' and '.join(sources)} were given: give one of them")
    if sample is not None:
        return _access_of_sample(tables, sample, batch_size)
    factors: Mapping[str, float] = asked
    if isinstance(pooling_factors, Mapping):
        factors = by_table("pooling_factors", pooling_factors, tables)
    elif pooling_factors is not None:
        if isinstance(pooling_factors, str) or not isinstance(pooling_factors, Sequence | np.ndarray):
            expected = "expected numbers by table, or one for each table"
            raise InputError(f"pooling_factors: {expected}, got {short_repr(pooling_factors)}")
        if len(pooling_factors) != len(tables):
            expected = f"expected one for each of {len(tables)} tables"
            raise InputError(f"pooling_factors: {expected}, got {len(pooling_factors)}")
        factors = {table.name: factor for table, factor in zip(tables, pooling_factors, strict=True)}
    return {name: Access(factor, UniformIds()) for name, factor in factors.items()}


def _access_of_sample(
    tables: list[ModelTable], sample: KeyedJaggedTensor | Mapping[str, Bags] | IdStream, batch_size: int
) -> dict[str, Access]:
    """Return the accesses of a sample. A sample that is smaller than a batch counts as a batch, without reuse."""
    if isinstance(sample, KeyedJaggedTensor):
        sample = {
            feature: Bags(*(part.cpu().numpy().astype(np.int64) for part in (jagged.values(), jagged.lengths())))
            for feature, jagged in sample.to_dict().items()
        }
    found: dict[str, FeatureStatistics] = {}
    for batch in _batches(tables, sample, batch_size):
        for table in tables:
            bags = _table_bags(table, batch)
            if table.name not in found:
                found[table.name] = FeatureStatistics(table.config.num_embeddings, len(bags.lengths))
            found[table.name].add(bags)
    if not found:  # the stream is shorter than a batch
        if not isinstance(sample, RecordedStream):
            raise InputError(f"sample: expected at least one batch of {batch_size} samples: give more")
        whole = {feature: sample.read(feature) for table in tables for feature in table.config.feature_names}
        return _access_of_sample(tables, whole, batch_size)
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
    """Yield the bags of all features of tables, batch by batch."""
    features = [(feature, table) for table in tables for feature in table.config.feature_names]
    known = sample.features if isinstance(sample, IdStream) else tuple(sample)
    for feature, table in features:
        if feature not in known:
            raise InputError(f"the log lacks feature '{feature}' of table '{table.name}': {closest(feature, known)}")
    if isinstance(sample, IdStream):
        yield from sample.batches(batch_size, [feature for feature, _ in features])
        return
    bags = {feature: _checked_bags(table, feature, sample) for feature, table in features}
    count = len(next(iter(bags.values())).lengths)
    size = min(batch_size, count)
    for number in range(count // size):
        yield {feature: of_one.samples(number * size, size) for feature, of_one in bags.items()}


def _checked_bags(table: ModelTable, feature: str, sample: Mapping[str, Bags]) -> Bags:
    """Return the bags of a feature; raises `InputError` unless all are there, as many as the first feature's."""
    bag = sample[feature]
    if not len(bag.lengths) or int(bag.lengths.sum()) != len(bag.indices):
        raise InputError(
            f"sample of feature '{feature}': {len(bag.lengths)} lengths add up to {int(bag.lengths.sum())}, but there "
            f"are {len(bag.indices)} ids; expected at least one sample, and as many ids as lengths say"
        )
    others = len(sample[table.config.feature_names[0]].lengths)
    if len(bag.lengths) != others:
        raise InputError(f"table '{table.name}': feature '{feature}' has {len(bag.lengths)} samples, not {others}")
    return bag


def _table_bags(table: ModelTable, batch: Mapping[str, Bags]) -> Bags:
    """Return the ids of all features of a table by sample; raises `InputError` for ids out of range."""
    rows = table.config.num_embeddings
    of_features = [batch[feature] for feature in table.config.feature_names]
    for feature, bags in zip(table.config.feature_names, of_features, strict=True):
        wrong = bags.indices[(bags.indices < 0) | (bags.indices >= rows)]
        if len(wrong):
            raise InputError(
                f"sample of feature '{feature}': id {wrong[0]} is not a row of table '{table.name}' ({rows} rows), "
                f"one of {len(wrong)} such ids of {len(bags.indices)} in a batch: give it more rows, or ids modulo its "
                "rows if the job does (hash_size of open_stream)"
            )
    if len(of_features) == 1:
        return of_features[0]
    samples = np.concatenate([np.repeat(np.arange(len(bags.lengths)), bags.lengths) for bags in of_features])
    indices = np.concatenate([bags.indices for bags in of_features])[np.argsort(samples, kind="stable")]
    return Bags(indices, np.sum([bags.lengths for bags in of_features], axis=0))
