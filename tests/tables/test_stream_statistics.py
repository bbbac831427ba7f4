"""What is counted in batches: distinct rows of batches and ranks, reuse, ranges, runs; and what is fitted to it."""

from __future__ import annotations

import numpy as np
import pytest

from shardgym import DrawnStream, EmbeddingTable, InputError, RangeIds, UniformIds, ZipfIds
from shardgym.tables.bags import Bags, ReuseCounts
from shardgym.tables.repeats import mean_run_length
from shardgym.tables.row_access import access_share
from shardgym.tables.streams.fit import fit_ids
from shardgym.tables.streams.statistics import FeatureStatistics

RNG = np.random.default_rng(0)


def random_batches(count, samples, rows, most):
    for _ in range(count):
        lengths = RNG.integers(0, most + 1, samples)
        yield Bags(np.minimum(RNG.geometric(0.02, int(lengths.sum())) - 1, rows - 1), lengths)


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_counts_are_those_of_counting_one_by_one(ranks):
    batches = list(random_batches(5, 30, 400, 6))
    found = FeatureStatistics(400, 30, ranks, frequencies=True)
    for bags in batches:
        found.add(bags)
    ids = np.concatenate([bags.indices for bags in batches])
    assert (found.batches, found.samples, found.ids) == (5, 150, len(ids))
    assert found.pooling_factor == len(ids) / 150
    assert found.distinct == sum(len(set(bags.indices.tolist())) for bags in batches)
    of_ranks = 0
    for indices, lengths in batches:
        rank_of_sample = [rank for rank in range(ranks) for _ in range(rank * 30 // ranks, (rank + 1) * 30 // ranks)]
        of_ranks += len({*zip(np.repeat(rank_of_sample, lengths).tolist(), indices.tolist(), strict=True)})
    assert found.rank_distinct == of_ranks
    assert found.distinct_share == found.distinct / len(ids)
    assert found.rank_distinct_share == of_ranks / len(ids)
    reuse = ReuseCounts()
    for bags in batches:
        reuse.add(ReuseCounts.of(bags.indices))
    assert found.reuse.row_shares() == reuse.row_shares()
    assert found.run_length == pytest.approx(np.mean([mean_run_length(*bags) for bags in batches]), abs=0.005)
    counts = np.bincount(ids, minlength=400)
    assert found.frequencies.hottest(400).counts.tolist() == sorted(counts[counts > 0].tolist(), reverse=True)
    assert found.lengths == "poisson"


def test_lookups_and_distinct_rows_lie_in_ranges():
    found = FeatureStatistics(400, 30)
    batches = list(random_batches(4, 30, 400, 6))
    for bags in batches:
        found.add(bags)
    bounds = np.arange(193) * 400 // 192
    lookups = sum(np.histogram(bags.indices, bounds)[0] for bags in batches)
    distinct = sum(np.histogram(np.unique(bags.indices), bounds)[0] for bags in batches)
    assert found.ranges.lookups == pytest.approx(lookups / lookups.sum(), abs=1e-6)
    assert found.ranges.distinct == pytest.approx(distinct / distinct.sum(), abs=1e-6)
    assert found.lookup_shares(1) == ()
    halves = [(np.concatenate([bags.indices for bags in batches]) < 200).mean()]
    assert found.lookup_shares(2)[0] == pytest.approx(halves[0], abs=1e-6)
    assert len(found.lookup_shares(100)) == 96


def test_ranges_are_judged_without_their_hottest_row():
    found = FeatureStatistics(192, 4)
    for _ in range(2):
        found.add(Bags(np.array([0, 0, 0, 1, 191, 191]), np.array([3, 1, 0, 2])))
    assert found.lookup_shares(2) == (0.666667, 0.333333)
    assert found.lookup_shares(2, without_hottest=True) == (1.0, 0.0)


def test_batches_without_ids_are_counted():
    found = FeatureStatistics(100, 3, 3, frequencies=True, checksum=True)
    found.add(Bags(np.zeros(0, dtype=np.int64), np.zeros(3, dtype=np.int64)))
    assert (found.pooling_factor, found.distinct_share, found.rank_distinct_share) == (0, 0, 0)
    assert found.reuse.row_shares() == (0,) * 17
    assert found.run_length == 1
    assert set(found.ranges.lookups) == {0}
    assert found.frequencies.hottest(3).rows.tolist() == []
    assert fit_ids(found) == UniformIds()


def test_checksums_do_not_depend_on_batches():
    bags = next(random_batches(1, 30, 400, 6))
    sums = []
    for size in (30, 10, 5):
        found = FeatureStatistics(400, size, checksum=True)
        for first in range(0, 30, size):
            found.add(bags.samples(first, size))
        sums.append(found.sha256)
    assert len(set(sums)) == 1
    other = FeatureStatistics(400, 30, checksum=True)
    other.add(Bags(bags.indices, bags.lengths[::-1].copy()))
    assert other.sha256 != sums[0]
    with pytest.raises(InputError, match="without a checksum"):
        _ = FeatureStatistics(400, 30).sha256


def counted(table, batches=4):
    return DrawnStream([table], samples=4096 * batches, seed=1).statistics(4096)[table.name]


@pytest.mark.parametrize(("s", "q", "rows"), [(1.1, 0.0, 10**6), (1.3, 1000.0, 10**6), (1.05, 30.0, 10**5)])
@pytest.mark.parametrize("order", ["scattered", "by_frequency"])
def test_a_fitted_law_is_that_of_the_draws(s, q, rows, order):
    truth = EmbeddingTable("t", rows, 4, 8.0, ZipfIds(s, q, lengths="poisson", row_order=order))
    found = counted(truth)
    law = fit_ids(found)
    assert isinstance(law, ZipfIds)
    assert (law.row_order, law.lengths) == (order, "poisson")
    assert law.s == pytest.approx(s, abs=0.03)
    assert law.q == pytest.approx(q, rel=0.25, abs=1.0)
    drawn = counted(EmbeddingTable("u", rows, 4, found.pooling_factor, law))
    assert drawn.distinct_share == pytest.approx(found.distinct_share, rel=0.02)
    assert drawn.reuse.access_shares() == pytest.approx(found.reuse.access_shares(), abs=0.02)


def test_rows_in_blocks_are_fitted_by_range():
    truth = EmbeddingTable("t", 10**5, 4, 8.0, ZipfIds(1.1, row_order="blocks", block_rows=10_000))
    law = fit_ids(counted(truth))
    assert isinstance(law, RangeIds)
    fitted = EmbeddingTable("u", 10**5, 4, 8.0, law)
    for start in range(0, 10**5, 25_000):
        share = access_share(truth, start, start + 25_000)
        assert access_share(fitted, start, start + 25_000) == pytest.approx(share, abs=0.01)


def test_even_ids_are_uniform_or_nearly():
    law = fit_ids(counted(EmbeddingTable("t", 10**5, 4, 8.0)))
    assert isinstance(law, UniformIds) or law.s < 0.1
    assert law.lengths == "fixed"


def test_runs_are_fitted_without_a_shift():
    truth = EmbeddingTable("t", 10**5, 4, 8.0, ZipfIds(1.05, 100.0), run_length=4)
    found = counted(truth)
    assert found.run_length > 2
    law = fit_ids(found)
    assert isinstance(law, ZipfIds)
    assert law.q == 0
