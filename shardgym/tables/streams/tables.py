"""Tables and pools made from streams of ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shardgym.arguments import check_instance
from shardgym.errors import InputError
from shardgym.tables.streams.files import MOST_RECORDED_IDS, RecordedStream
from shardgym.tables.streams.fit import fit_ids
from shardgym.tables.streams.statistics import FeatureStatistics
from shardgym.tables.streams.stream import IdStream
from shardgym.tables.table import EmbeddingTable, IdDistribution, RecordedIds, TablePool

#: Width of every table of a stream or a pool that has none, until somebody gives one.
PLACEHOLDER_DIM = 16


def pool_of_stream(
    stream: IdStream,
    batch_size: int | None = None,
    *,
    embedding_dim: int | Mapping[str, int] = PLACEHOLDER_DIM,
    fit: bool = False,
) -> TablePool:
    """Make a table of each feature of a stream.

    A table has the rows that its ids are of, their mean number per sample, the reuse of rows in batches, and run
    lengths. To measure with recorded ids later, put the folder of their file into the environment variable
    `SHARDGYM_DATA`.

    Args:
        stream: of ids.
        batch_size: samples per batch; those that the source says it holds when None.
        embedding_dim: width of all tables, or by feature.
        fit: whether ids of tables are drawn from a law that is fitted, rather than those that are recorded.

    Raises:
        InputError: no stream, no batch size, a stream that holds no whole batch, or no ids; ids that are drawn, or too
            many to be kept, without `fit`; or a width for a feature that is none.
    """
    check_instance("stream", stream, IdStream, "open_stream(path) opens a file")
    batch_size = stream.batch_size if batch_size is None else batch_size
    if batch_size is None:
        raise InputError(f"{stream.name}: says no batch size, expected one: the samples of a step over all devices")
    return pool_of_statistics(stream, stream.statistics(batch_size, checksum=not fit), embedding_dim, fit)


def pool_of_statistics(
    stream: IdStream, statistics: Mapping[str, FeatureStatistics], embedding_dim: int | Mapping[str, int], fit: bool
) -> TablePool:
    """Make a table of each feature that was counted; see `pool_of_stream`.

    Args:
        stream: of ids.
        statistics: of its features, with checksums unless `fit`.
        embedding_dim: width of all tables, or by feature.
        fit: whether ids are drawn from a law that is fitted.
    """
    widths = dict(embedding_dim) if isinstance(embedding_dim, Mapping) else dict.fromkeys(statistics, embedding_dim)
    stream.checked(tuple(widths))
    tables = []
    for feature, found in statistics.items():
        if feature not in widths:
            raise InputError(f"embedding_dim: has no width for feature '{feature}', expected one for each")
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
        raise InputError(f"{stream.name}: are in no file, expected fit=True")
    read_together = found.ids * stream.read_together
    if read_together > MOST_RECORDED_IDS:
        raise InputError(
            f"{stream.name}: {read_together} ids are read together to measure with feature '{feature}', expected at "
            f"most {MOST_RECORDED_IDS}: take fewer samples, or let ids be drawn from a fitted law (fit=True, --fit)"
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
