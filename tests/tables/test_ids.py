"""Ids of a batch: drawn reproducibly by the law, scattered fairly over the rows, and counted."""

import itertools

import numpy as np
import pytest

from shardgym.tables.bags import ReuseCounts
from shardgym.tables.ids import HEAD_RANKS, ZipfLaw, draw_bags, draw_rows, expected_counts, scatter_ranks
from shardgym.tables.table import EmbeddingTable, UniformIds, ZipfIds


def table(ids=None, rows=1000, pooling=3.0, dim=8, name="t"):
    return EmbeddingTable(name, rows, dim, pooling, ids or ZipfIds(s=1.1, q=2.0, lengths="poisson"))


def test_seed_batch_and_name_say_which_bags_are_drawn_whatever_the_width():
    first = draw_bags(table(), 500, seed=7, batch=2)
    for again in (draw_bags(table(), 500, seed=7, batch=2), draw_bags(table(dim=128), 500, seed=7, batch=2)):
        np.testing.assert_array_equal(first.indices, again.indices)
        np.testing.assert_array_equal(first.lengths, again.lengths)
    for changed, seed, batch in ((table(), 8, 2), (table(), 7, 1), (table(name="u"), 7, 2)):
        other = draw_bags(changed, 500, seed=seed, batch=batch)
        assert not np.array_equal(first.indices[:500], other.indices[:500])


@pytest.mark.parametrize("ids", [UniformIds(), UniformIds(lengths="poisson"), ZipfIds(s=1.0), ZipfIds(s=0.3, q=50.0)])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 1000])
def test_bags_are_consistent_and_inside_the_table(ids, rows):
    bags = draw_bags(table(ids, rows=rows, pooling=2.5), 400, seed=0)
    assert bags.lengths.shape == (400,)
    assert bags.lengths.sum() == bags.indices.size > 0
    assert bags.indices.min() >= 0
    assert bags.indices.max() < rows


def test_lengths_are_fixed_or_poissons():
    lengths = draw_bags(table(UniformIds(), pooling=1.25), 8, seed=0).lengths
    assert (lengths.sum(), set(lengths.tolist())) == (10, {1, 2})  # a fraction is spread evenly
    lengths = draw_bags(table(pooling=3.0), 65_536, seed=0).lengths
    assert lengths.mean() == pytest.approx(3.0, abs=5 * np.sqrt(3 / 65_536))
    assert lengths.var() == pytest.approx(3.0, rel=0.05)
    bags = draw_bags(table(pooling=0.0), 64, seed=0)
    assert (bags.indices.size, bags.lengths.any()) == (0, False)


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


@pytest.mark.parametrize(("s", "q"), [(0.0, 0.0), (0.5, 3.0), (1.0, 0.0), (1.0, -0.5), (1.3, 40.0), (3.0, -0.5)])
@pytest.mark.parametrize("rows", [1, 2, HEAD_RANKS, HEAD_RANKS + 1, 20_000])
def test_cumulative_is_the_sum_of_the_documented_masses(s, q, rows):
    expected = np.concatenate([[0.0], np.cumsum(masses(s, q, rows))])
    np.testing.assert_allclose(ZipfLaw(s, q, rows).cumulative(np.arange(rows + 1)), expected, atol=1e-6)


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
    assert (law.cumulative(ranks) <= ends + 1e-9).all()
    assert (ends <= law.cumulative(ranks + 1) + 1e-9).all()


def repeated(*counts):
    """Row 0 occurs counts[0] times, row 1 counts[1] times, ..."""
    return np.repeat(np.arange(len(counts)), counts)


def test_rows_and_accesses_land_in_the_bin_of_their_count():
    # Counts 1, 1, 2, 3, 4, 5: bins 0, 0, 1, 2, 2, 3.
    ids = np.random.default_rng(0).permutation(repeated(1, 1, 2, 3, 4, 5))
    counts = ReuseCounts.of(ids)
    assert counts.rows[:5].tolist() == [2, 1, 2, 1, 0]
    assert counts.accesses[:5].tolist() == [2, 2, 7, 5, 0]
    assert counts.row_shares()[:4] == pytest.approx((2 / 6, 1 / 6, 2 / 6, 1 / 6))
    assert counts.access_shares()[:4] == pytest.approx((2 / 16, 2 / 16, 7 / 16, 5 / 16))
    counts.add(ReuseCounts.of(ids * 10**11 + 5))  # sparse ids are counted likewise, as rows of their own
    assert (counts.rows[:5].tolist(), counts.accesses[:5].tolist()) == ([4, 2, 4, 2, 0], [4, 4, 14, 10, 0])
    ends = [ReuseCounts.of(repeated(2**16 + more)).rows.argmax() for more in (-(2**15), -(2**15) + 1, 0, 1)]
    assert ends == [15, 16, 16, 16]
    unused = ReuseCounts.of(np.zeros(0, dtype=np.int64))
    assert unused.row_shares() == unused.access_shares() == (0.0,) * 17


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
