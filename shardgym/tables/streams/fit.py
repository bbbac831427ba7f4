"""The distribution of ids that is expected to do in a batch what those of a stream do."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable

import numpy as np

from shardgym.tables.ids import expected_counts
from shardgym.tables.row_access import access_share, distinct_rows
from shardgym.tables.row_ranges import range_bounds
from shardgym.tables.streams.statistics import FeatureStatistics
from shardgym.tables.table import EmbeddingTable, IdDistribution, RangeIds, UniformIds, ZipfIds

#: Largest exponent that is fitted; and the smallest, below which ids count as uniform.
_MOST_SKEW = 5.0
_LEAST_SKEW = 0.01
#: Ids in a range of rows, on average, from which its share is taken: even shares then vary by a tenth.
_IDS_PER_RANGE = 100
#: Rows of a range from which it is judged without its hottest one.
_ROWS_PER_RANGE = 64
#: Times the mean that the busiest range has at least, without its hottest row, where popular rows lie side by side:
#: by chance, some more of scattered ones may be in it.
_UNEVEN = 2.0
#: Share of the lookups that may lie in other ranges than by frequency for rows to count as sorted so.
_SORTED = 0.02
#: Shifts that are tried first, and how often the best is refined between its neighbours.
_SHIFTS = 12
_REFINEMENTS = 12
#: A shift has to lower the misfit at least to this part of that without one.
_WORTHWHILE = 0.9


def fit_ids(found: FeatureStatistics) -> UniformIds | ZipfIds | RangeIds:
    """Return the distribution that is expected to touch as many distinct rows in a batch as the stream does.

    It is a Zipf law, whose shift q is that with which the reuse of rows is nearest to the stream's: least squares over
    shares of rows and of lookups by how often a batch looks a row up. Where lookups of a row follow each other, so that
    reuse says little of popularity, there is no shift. Rows are scattered, or sorted by frequency. Where popular rows
    lie side by side in another order, it has the shares of ranges of rows, and a Zipf law without shift inside each.

    Args:
        found: statistics of one feature.
    """
    if found.ids == 0 or found.rows == 1:
        return UniformIds(lengths=found.lengths)
    ranges = _uneven_shares(found)
    zipf = ZipfIds(0.0, lengths=found.lengths, row_order="scattered" if ranges is None else "by_frequency")
    fitted = dataclasses.replace(zipf, s=_exponent(found, zipf))
    if ranges is None and fitted.s == 0:
        return UniformIds(lengths=found.lengths)
    if 0 < fitted.s < _MOST_SKEW and found.run_length == 1:
        fitted = _with_shift(found, fitted)
    if ranges is None or _are_shares_of(fitted, found.rows, ranges):
        return fitted
    by_range = RangeIds(ranges, lengths=found.lengths)
    return dataclasses.replace(by_range, s=_exponent(found, by_range))


def _exponent(found: FeatureStatistics, law: ZipfIds | RangeIds) -> float:
    """Return the s with which a law touches as many distinct rows as the stream; 0 or the largest where none does."""
    probe = EmbeddingTable("fitted", found.rows, 4, found.pooling_factor, run_length=found.run_length)
    distinct = found.distinct / found.batches

    def excess(s: float) -> float:
        """Distinct rows that the law is expected to touch more than the stream; falls with s."""
        ids: IdDistribution = dataclasses.replace(law, s=s)
        return distinct_rows(dataclasses.replace(probe, ids=ids), found.batch_size) - distinct

    if excess(_LEAST_SKEW) <= 0:
        return 0.0
    if excess(_MOST_SKEW) > 0:
        return _MOST_SKEW
    low = 0.0
    high = _MOST_SKEW
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return round((low + high) / 2, 4)


def _with_shift(found: FeatureStatistics, law: ZipfIds) -> ZipfIds:
    """Return the law with the shift with which rows are reused most nearly as in the stream."""
    seen = np.concatenate([found.reuse.row_shares(), found.reuse.access_shares()])

    @functools.cache
    def shifted(log_shift: float) -> ZipfIds:
        with_shift = dataclasses.replace(law, q=round(math.expm1(log_shift), 2))
        return dataclasses.replace(with_shift, s=_exponent(found, with_shift))

    @functools.cache
    def misfit(log_shift: float) -> float:
        tried = shifted(log_shift)
        expected = expected_counts(tried.s, tried.q, found.rows, found.ids / found.batches)
        shares = np.concatenate([part / part.sum() for part in expected])
        return float(((shares - seen) ** 2).sum())

    return shifted(_least(misfit, math.log1p(found.rows / 2)))


def _least(misfit: Callable[[float], float], most: float) -> float:
    """Return the number from 0 to `most` with the least misfit found; 0 where none is worth it."""
    tried = np.linspace(0.0, most, _SHIFTS + 1).tolist()
    step = most / _SHIFTS
    for _ in range(_REFINEMENTS):
        best = min(tried, key=misfit)
        step /= 2
        tried = [max(best - step, 0.0), best, min(best + step, most)]
    best = min(tried, key=misfit)
    return best if misfit(best) < _WORTHWHILE * misfit(0.0) else 0.0


def _uneven_shares(found: FeatureStatistics) -> tuple[float, ...] | None:
    """Return shares of ranges of rows where popular rows lie side by side; None otherwise.

    Scattered popular rows make some ranges uneven, too: each range is judged without its hottest row.
    """
    most = found.ids // _IDS_PER_RANGE
    others = found.lookup_shares(min(most, found.rows // _ROWS_PER_RANGE), without_hottest=True)
    uneven = max(others, default=0.0) * len(others) > _UNEVEN
    return found.lookup_shares(most) if uneven else None


def _are_shares_of(law: ZipfIds, rows: int, shares: tuple[float, ...]) -> bool:
    """Say whether lookups by a law would lie in ranges of rows as they do."""
    table = EmbeddingTable("fitted", rows, 4, ids=law)
    bounds = range_bounds(len(shares), rows).tolist()
    expected = [access_share(table, start, stop) for start, stop in itertools.pairwise(bounds)]
    return float(np.abs(np.subtract(expected, shares)).sum()) / 2 <= _SORTED
