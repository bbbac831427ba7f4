"""Ids of a batch: drawn reproducibly by the law, scattered fairly over the rows, and counted."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from shardgym.tables.bags import ReuseCounts
from shardgym.tables.ids import HEAD_RANKS, ZipfLaw, draw_bags, draw_rows, expected_counts, scatter_ranks
from shardgym.tables.table import EmbeddingTable, UniformIds, ZipfIds


def table(ids=None, rows=1000, pooling=3.0, dim=8, name="t"):
    return EmbeddingTable(name, rows, dim, pooling, ids or ZipfIds(s=1.1, q=2.0, lengths="poisson"))


def test_the_same_seed_and_batch_give_the_same_bags():
    first, second = (draw_bags(table(), 500, seed=7, batch=2) for _ in range(2))
    np.testing.assert_array_equal(first.indices, second.indices)
    np.testing.assert_array_equal(first.lengths, second.lengths)


@pytest.mark.parametrize(
    "other",
    [
        lambda: draw_bags(table(), 500, seed=8),
        lambda: draw_bags(table(), 500, seed=7, batch=1),
        lambda: draw_bags(table(name="u"), 500, seed=7),
    ],
    ids=["seed", "batch", "name"],
)
def test_another_seed_batch_or_table_gives_other_bags(other):
    assert not np.array_equal(draw_bags(table(), 500, seed=7).indices[:500], other().indices[:500])


def test_column_shards_of_any_width_see_the_same_ids():
    wide, narrow = (draw_bags(table(dim=dim), 500, seed=7) for dim in (128, 4))
    np.testing.assert_array_equal(wide.indices, narrow.indices)


@pytest.mark.parametrize("ids", [UniformIds(), UniformIds(lengths="poisson"), ZipfIds(s=1.0), ZipfIds(s=0.3, q=50.0)])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 1000])
def test_bags_are_consistent_and_inside_the_table(ids, rows):
    bags = draw_bags(table(ids, rows=rows, pooling=2.5), 400, seed=0)
    assert bags.lengths.shape == (400,)
    assert bags.lengths.sum() == bags.indices.size > 0
    assert bags.indices.min() >= 0
    assert bags.indices.max() < rows


def test_fixed_lengths_spread_a_fractional_pooling_factor_evenly():
    lengths = draw_bags(table(UniformIds(), pooling=1.25), 8, seed=0).lengths
    assert lengths.sum() == 10
    assert set(lengths.tolist()) == {1, 2}
    assert draw_bags(table(UniformIds(), pooling=3.0), 5, seed=0).lengths.tolist() == [3] * 5


def test_poisson_lengths_have_mean_and_variance_of_the_pooling_factor():
    lengths = draw_bags(table(pooling=3.0), 65_536, seed=0).lengths
    assert lengths.mean() == pytest.approx(3.0, abs=5 * np.sqrt(3 / 65_536))
    assert lengths.var() == pytest.approx(3.0, rel=0.05)


def test_a_table_that_is_never_looked_up_has_no_ids():
    bags = draw_bags(table(pooling=0.0), 64, seed=0)
    assert bags.indices.size == 0
    assert not bags.lengths.any()


def test_row_frequencies_are_those_of_their_ranks():
    ids, rows, count = ZipfIds(s=1.1, q=2.0), 50, 400_000
    drawn = draw_rows(ids, rows, count, np.random.default_rng(0))
    weights = (np.arange(rows) + 1 + ids.q) ** -ids.s
    expected = count * weights / weights.sum()
    seen = np.bincount(drawn, minlength=rows)[scatter_ranks(np.arange(rows), rows)]
    assert (np.abs(seen - expected) < 6 * np.sqrt(expected)).all()


@pytest.mark.parametrize("rows", [*range(1, 10), 64, 127, 128, 65_537, 1_000_000])
def test_scattering_is_a_bijection(rows):
    np.testing.assert_array_equal(np.sort(scatter_ranks(np.arange(rows), rows)), np.arange(rows))


@pytest.mark.parametrize("rows", [2**31, 2**31 + 11, 10**12, 2**40])
def test_scattering_of_huge_tables_does_not_overflow(rows):
    ranks = np.unique(np.random.default_rng(0).integers(0, rows, 1000))
    scattered = scatter_ranks(ranks, rows)
    start, step = (int(x) for x in scatter_ranks(np.array([0, 1]), rows))
    assert scattered.tolist() == [(start + int(rank) * (step - start)) % rows for rank in ranks]
    assert np.unique(scattered).size == ranks.size


@pytest.mark.parametrize("rows", [1000, 2**20, 999_983, 2**40])
@pytest.mark.parametrize("leading", [64, 1000])
def test_every_eighth_of_the_rows_gets_its_share_of_the_most_popular_ones(rows, leading):
    eighths = scatter_ranks(np.arange(leading), rows) * 8 // rows
    shares = np.bincount(eighths, minlength=8)
    assert np.abs(shares - leading / 8).max() <= 3


def masses(s, q, rows):
    weights = (np.arange(rows) + 1.0 + q) ** -s
    return weights / weights.sum()


def test_a_law_worked_out_by_hand():
    # s = 1, q = 0, three rows: weights 1, 1/2, 1/3, so 6/11, 3/11, 2/11.
    law = ZipfLaw(1.0, 0.0, 3)
    np.testing.assert_allclose(law.cumulative(np.arange(4)), [0, 6 / 11, 9 / 11, 1])
    below_and_at = np.array([0.0, 6 / 11 - 1e-9, 6 / 11 + 1e-9, 9 / 11 + 1e-9, 1 - 1e-9])
    assert law.ranks(below_and_at).tolist() == [0, 0, 1, 2, 2]


@pytest.mark.parametrize(("s", "q"), [(0.0, 0.0), (0.5, 3.0), (1.0, 0.0), (1.0, -0.5), (1.3, 40.0), (3.0, -0.5)])
@pytest.mark.parametrize("rows", [1, 2, HEAD_RANKS, HEAD_RANKS + 1, 20_000])
def test_cumulative_is_the_sum_of_the_documented_masses(s, q, rows):
    expected = np.concatenate([[0.0], np.cumsum(masses(s, q, rows))])
    np.testing.assert_allclose(ZipfLaw(s, q, rows).cumulative(np.arange(rows + 1)), expected, atol=1e-6)


@pytest.mark.parametrize(("s", "q", "rows"), [(0.4, 0.0, 5000), (1.0, 0.3, 10**6), (1.7, 1000.0, 10**7)])
def test_ranks_invert_the_cumulative_law(s, q, rows):
    law = ZipfLaw(s, q, rows)
    uniforms = np.linspace(0, 1, 10_001)[:-1]
    ranks = law.ranks(uniforms)
    assert (np.diff(ranks) >= 0).all()
    assert (law.cumulative(ranks) <= uniforms + 1e-9).all()
    assert (uniforms <= law.cumulative(ranks + 1) + 1e-9).all()


@pytest.mark.parametrize(
    ("s", "q", "rows"),
    list(itertools.product([0, 1e-9, 0.5, 1 - 1e-13, 1, 2, 10], [-0.5, 0, 1e6, 1e12], [1, 2, 256, 257, 10**6, 2**40])),
)
def test_extreme_parameters_give_ranks_inside_the_table(s, q, rows):
    ends = np.array([0.0, 2.0**-53, 0.25, 0.5, 1 - 2.0**-20, np.nextafter(1, 0)])
    law = ZipfLaw(s, q, rows)
    ranks = law.ranks(ends)
    assert ranks[0] == 0
    assert ((ranks >= 0) & (ranks < rows)).all()
    assert (np.diff(ranks) >= 0).all()
    whole = law.cumulative(np.array([0, rows]))
    np.testing.assert_allclose(whole, [0, 1], atol=1e-12)


def repeated(*counts):
    """Row 0 occurs counts[0] times, row 1 counts[1] times, ..."""
    return np.repeat(np.arange(len(counts)), counts)


def test_rows_and_accesses_land_in_the_bin_of_their_count():
    # Counts 1, 1, 2, 3, 4, 5: bins 0, 0, 1, 2, 2, 3.
    counts = ReuseCounts.of(np.random.default_rng(0).permutation(repeated(1, 1, 2, 3, 4, 5)))
    assert counts.rows[:5].tolist() == [2, 1, 2, 1, 0]
    assert counts.accesses[:5].tolist() == [2, 2, 7, 5, 0]
    assert counts.row_shares()[:4] == pytest.approx((2 / 6, 1 / 6, 2 / 6, 1 / 6))
    assert counts.access_shares()[:4] == pytest.approx((2 / 16, 2 / 16, 7 / 16, 5 / 16))


@pytest.mark.parametrize("exponent", range(1, 17))
def test_bins_end_exactly_at_powers_of_two(exponent):
    at, after = ReuseCounts.of(repeated(2**exponent)), ReuseCounts.of(repeated(2**exponent + 1))
    assert at.rows.argmax() == min(exponent, 16)
    assert after.rows.argmax() == min(exponent + 1, 16)


def test_sparse_ids_are_counted_like_dense_ones():
    dense = repeated(1, 2, 3, 70)
    sparse = dense * 10**11 + 5
    np.testing.assert_array_equal(ReuseCounts.of(sparse).rows, ReuseCounts.of(dense).rows)
    np.testing.assert_array_equal(ReuseCounts.of(sparse).accesses, ReuseCounts.of(dense).accesses)


def test_an_unused_table_has_a_histogram_of_zeros():
    counts = ReuseCounts.of(np.zeros(0, dtype=np.int64))
    assert counts.row_shares() == counts.access_shares() == (0.0,) * 17


def test_adding_a_table_keeps_its_rows_distinct_from_the_others():
    total = ReuseCounts()
    for _ in range(2):
        total.add(ReuseCounts.of(repeated(1, 3)))
    assert total.rows.sum() == 4
    assert total.accesses.sum() == 8


@pytest.mark.parametrize(
    ("s", "q", "rows", "pooling"), [(1.0, 0.0, 300, 20.0), (1.1, 100.0, 300_000, 1.0), (0.6, 5.0, 50_000, 10.0)]
)
def test_expected_counts_are_those_of_a_real_draw(s, q, rows, pooling):
    expected = expected_counts(s, q, rows, pooling * 65_536)
    table = EmbeddingTable("t", rows, 4, pooling, ZipfIds(s=s, q=q, lengths="poisson"))
    drawn = ReuseCounts.of(draw_bags(table, 65_536, seed=0).indices)
    assert (np.abs(drawn.rows - expected[0]) < 6 * np.sqrt(expected[0] + 1) + 0.002 * rows).all()
    assert drawn.accesses.sum() == pytest.approx(expected[1].sum(), rel=0.01)
    assert np.abs(drawn.accesses - expected[1]).max() < 0.01 * drawn.accesses.sum()


@pytest.mark.parametrize("run_length", [1.0, 2.5])
@pytest.mark.parametrize("ids", [ZipfIds(1.1), ZipfIds(0.9, row_order="blocks", block_rows=7), UniformIds()])
def test_popularity_ranks_repeat_as_often_as_their_rows(ids, run_length):
    table = EmbeddingTable("t", 5_003, 8, 3.0, ids=ids, run_length=run_length)
    rows, ranks = (draw_bags(table, 512, seed=1, placed=placed).indices for placed in (True, False))
    assert (ReuseCounts.of(rows).rows == ReuseCounts.of(ranks).rows).all()
    assert isinstance(ids, UniformIds) or not np.array_equal(rows, ranks)
