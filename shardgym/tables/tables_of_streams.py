"""Tables and pools made from streams of ids, and streams drawn from tables."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shardgym.errors import InputError
from shardgym.tables.bags import Bags
from shardgym.tables.ids import draw_bags
from shardgym.tables.row_access import distinct_rows
from shardgym.tables.streams.statistics import FeatureStatistics
from shardgym.tables.streams.stream import MOST_RECORDED_IDS, IdStream, RecordedStream
from shardgym.tables.table import (
    EmbeddingTable,
    IdDistribution,
    RangeIds,
    RecordedIds,
    TablePool,
    UniformIds,
    check_distinct_names,
)

#: Width of every table of a stream or a pool that has none, until somebody gives one.
PLACEHOLDER_DIM = 16

#: Ids in a range of rows, on average, from which its share is taken: even shares then vary by a tenth.
_IDS_PER_RANGE = 100
#: Largest exponent that is fitted; and the smallest, below which rows of a range count as equally popular.
_MOST_SKEW = 5.0
_LEAST_SKEW = 0.01


class DrawnStream(IdStream):
    """A stream of ids that tables draw from their laws. Another batch size draws other ids.

    Args:
        tables: each is a feature of the stream, under its name.
        samples: number of samples of the stream.
        seed: seed of the draws.

    Raises:
        ValueError: two tables have the same name.
    """

    def __init__(self, tables: Sequence[EmbeddingTable], samples: int, seed: int = 0) -> None:
        check_distinct_names(tables)
        self._tables = {table.name: table for table in tables}
        self.name = "drawn ids"
        self.features = tuple(self._tables)
        self._samples = samples
        self._seed = seed

    def batches(self, batch_size: int, features: Sequence[str] | None = None) -> Iterator[dict[str, Bags]]:
        """Yield whole batches, ids by feature; see `IdStream`."""
        tables = [self._tables[feature] for feature in self.checked(features)]
        for batch in range(self._samples // batch_size):
            yield {table.name: draw_bags(table, batch_size, seed=self._seed, batch=batch) for table in tables}

    def rows(self, features: Sequence[str] | None = None) -> dict[str, int]:
        """Return the rows of tables."""
        return {feature: self._tables[feature].num_embeddings for feature in self.checked(features)}


def pool_of_stream(
    stream: IdStream,
    batch_size: int | None = None,
    *,
    embedding_dim: int | Mapping[str, int] = PLACEHOLDER_DIM,
    fit: bool = False,
) -> TablePool:
    """Make a pool with a table for each feature of a stream.

    Rows, ids per sample, reuse of rows in batches and run lengths are counted. To measure with the recorded ids later,
    list the folder of their file in the environment variable `SHARDGYM_DATA`.

    Args:
        stream: the ids.
        batch_size: samples per batch; None: as the source says.
        embedding_dim: width of all tables, or by feature.
        fit: whether tables draw ids from a fitted law instead of using the recorded ones.

    Raises:
        InputError: there is no batch size, no whole batch or no id; without `fit`, ids are in no file or too many to
            keep; or `embedding_dim` names an unknown feature.
    """
    batch_size = stream.batch_size if batch_size is None else batch_size
    if batch_size is None:
        raise InputError(f"{stream.name}: has no batch size: pass batch_size, the samples of a step over all devices")
    return pool_of_statistics(stream, stream.statistics(batch_size, checksum=not fit), embedding_dim, fit)


def pool_of_statistics(
    stream: IdStream, statistics: Mapping[str, FeatureStatistics], embedding_dim: int | Mapping[str, int], fit: bool
) -> TablePool:
    """Make a table of each feature that was counted, with a checksum unless `fit`; see `pool_of_stream`."""
    widths = dict(embedding_dim) if isinstance(embedding_dim, Mapping) else dict.fromkeys(statistics, embedding_dim)
    stream.checked(tuple(widths))
    tables = []
    for feature, found in statistics.items():
        if feature not in widths:
            raise InputError(f"embedding_dim: no width for feature '{feature}', expected one per feature")
        fields = {
            "name": feature,
            "num_embeddings": found.rows,
            "embedding_dim": widths[feature],
            "pooling_factor": found.pooling_factor,
            "ids": fit_ids(found) if fit else _recorded_ids(stream, feature, found),
            "reuse_histogram": found.reuse.row_shares(),
            "run_length": found.run_length,
        }
        tables.append(EmbeddingTable.from_dict(fields, f"{stream.name}, feature '{feature}'"))
    batch_size = next(iter(statistics.values())).batch_size
    fields = {"name": Path(stream.name).name, "batch_size": batch_size, "tables": tuple(tables)}
    return TablePool.from_dict(fields, stream.name)


def _recorded_ids(stream: IdStream, feature: str, found: FeatureStatistics) -> IdDistribution:
    """Return ids that are read again where a table is measured."""
    if not isinstance(stream, RecordedStream):
        raise InputError(f"{stream.name}: not in a file, expected fit=True")
    if found.ids > MOST_RECORDED_IDS:
        raise InputError(
            f"{stream.name}: feature '{feature}' has {found.ids} ids, more than the limit of {MOST_RECORDED_IDS}: use "
            "fewer samples, or a fitted distribution (fit=True, --fit)"
        )
    ranges = found.ranges
    return RecordedIds(
        stream.path.name,
        feature,
        found.samples,
        found.batch_size,
        found.sha256,
        hash_size=stream.hash_sizes.get(feature),
        range_shares=ranges.lookups,
        range_distinct=ranges.distinct,
    )


def fit_ids(found: FeatureStatistics) -> UniformIds | RangeIds:
    """Return the law of ids that is expected to touch as many distinct rows in a batch as a stream does.

    It has the stream's shares of ranges of rows, and inside each a Zipf law, whose exponent is fitted.

    Args:
        found: statistics of one feature.
    """
    if found.ids == 0:
        return UniformIds(lengths=found.lengths)
    law = RangeIds(found.lookup_shares(found.ids // _IDS_PER_RANGE), lengths=found.lengths)
    probe = EmbeddingTable("fitted", found.rows, 4, found.pooling_factor, run_length=found.run_length)
    distinct = found.distinct / found.batches

    def excess(s: float) -> float:
        """Distinct rows that the law is expected to touch more than the stream; falls with s."""
        ids = dataclasses.replace(law, s=s)
        return distinct_rows(dataclasses.replace(probe, ids=ids), found.batch_size) - distinct

    if excess(_LEAST_SKEW) <= 0:
        return law
    low = 0.0
    high = _MOST_SKEW
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return dataclasses.replace(law, s=round((low + high) / 2, 4))
