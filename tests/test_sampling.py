"""Drawing bags: reproducible, in range, by the law, and fairly scattered over the rows."""

import numpy as np
import pytest

from shardgym.ids import ZipfLaw, draw_bags, draw_rows, scatter_ranks
from shardgym.table import EmbeddingTable, UniformIds, ZipfIds


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


def test_drawing_piece_by_piece_equals_drawing_at_once():
    ids, rows, count = ZipfIds(s=1.1, q=2.0), 12_345, 200_001
    pieces = draw_rows(ids, rows, count, np.random.default_rng(3))
    uniforms = np.random.default_rng(3).random(count)
    np.testing.assert_array_equal(pieces, scatter_ranks(ZipfLaw(ids.s, ids.q, rows).ranks(uniforms), rows))


@pytest.mark.parametrize("rows", [*range(1, 130), 1 << 16, 65_537, 999_983, 1_000_000])
def test_scattering_is_a_bijection(rows):
    np.testing.assert_array_equal(np.sort(scatter_ranks(np.arange(rows), rows)), np.arange(rows))


@pytest.mark.parametrize("rows", [2**31, 2**31 + 11, 10**12, 2**40])
def test_scattering_of_huge_tables_does_not_overflow(rows):
    ranks = np.unique(np.random.default_rng(0).integers(0, rows, 1000))
    scattered = scatter_ranks(ranks, rows)
    start, step = (int(x) for x in scatter_ranks(np.array([0, 1]), rows))
    assert scattered.tolist() == [(start + int(rank) * (step - start)) % rows for rank in ranks]
    assert np.unique(scattered).size == ranks.size


@pytest.mark.parametrize("rows", [1000, 2**20, 999_983, 20_000_000, 2**31 + 11, 2**40])
@pytest.mark.parametrize("leading", [64, 1000])
def test_every_eighth_of_the_rows_gets_its_share_of_the_most_popular_ones(rows, leading):
    eighths = scatter_ranks(np.arange(leading), rows) * 8 // rows
    shares = np.bincount(eighths, minlength=8)
    assert np.abs(shares - leading / 8).max() <= 3
