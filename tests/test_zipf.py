"""The shifted Zipf law: its masses, and the ranks drawn from it."""

import itertools

import numpy as np
import pytest

from shardgym.ids import HEAD_RANKS, ZipfLaw


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


@pytest.mark.parametrize(("s", "q"), [(0.0, 0.0), (0.7, 10.0), (1.0, 0.0), (1.2, -0.5), (1.6, 300.0)])
@pytest.mark.parametrize("rows", [100, 1000])
def test_drawn_ranks_occur_as_often_as_the_documented_law_says(s, q, rows):
    count = 1_000_000
    ranks = ZipfLaw(s, q, rows).ranks(np.random.default_rng(0).random(count))
    expected = count * masses(s, q, rows)
    seen = np.bincount(ranks, minlength=rows)
    assert seen.size == rows
    # Poisson-like noise per rank; the sum of squares is chi-square distributed with `rows` degrees of freedom.
    chi_square = ((seen - expected) ** 2 / expected).sum()
    assert abs(chi_square - rows) < 6 * np.sqrt(2 * rows)


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


def test_a_large_shift_flattens_the_law_to_uniform():
    law = ZipfLaw(1.0, 1e12, 10**6)
    np.testing.assert_allclose(law.cumulative(np.array([10**5, 5 * 10**5])), [0.1, 0.5], atol=1e-5)
