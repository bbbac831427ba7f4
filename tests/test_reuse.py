"""Reuse histograms, with counts small enough to check by hand."""

import numpy as np
import pytest

from shardgym.ids import ReuseCounts


def ids(*counts):
    """Row 0 occurs counts[0] times, row 1 counts[1] times, ..."""
    return np.repeat(np.arange(len(counts)), counts)


def test_rows_and_accesses_land_in_the_bin_of_their_count():
    # Counts 1, 1, 2, 3, 4, 5: bins 0, 0, 1, 2, 2, 3.
    counts = ReuseCounts.of(np.random.default_rng(0).permutation(ids(1, 1, 2, 3, 4, 5)))
    assert counts.rows[:5].tolist() == [2, 1, 2, 1, 0]
    assert counts.accesses[:5].tolist() == [2, 2, 7, 5, 0]
    assert counts.row_shares()[:4] == pytest.approx((2 / 6, 1 / 6, 2 / 6, 1 / 6))
    assert counts.access_shares()[:4] == pytest.approx((2 / 16, 2 / 16, 7 / 16, 5 / 16))


@pytest.mark.parametrize("exponent", range(1, 17))
def test_bins_end_exactly_at_powers_of_two(exponent):
    at, after = ReuseCounts.of(ids(2**exponent)), ReuseCounts.of(ids(2**exponent + 1))
    assert at.rows.argmax() == min(exponent, 16)
    assert after.rows.argmax() == min(exponent + 1, 16)


def test_sparse_ids_are_counted_like_dense_ones():
    dense = ids(1, 2, 3, 70)
    sparse = dense * 10**11 + 5
    np.testing.assert_array_equal(ReuseCounts.of(sparse).rows, ReuseCounts.of(dense).rows)
    np.testing.assert_array_equal(ReuseCounts.of(sparse).accesses, ReuseCounts.of(dense).accesses)


def test_an_unused_table_has_a_histogram_of_zeros():
    counts = ReuseCounts.of(np.zeros(0, dtype=np.int64))
    assert counts.row_shares() == counts.access_shares() == (0.0,) * 17


def test_adding_a_table_keeps_its_rows_distinct_from_the_others():
    total = ReuseCounts()
    for _ in range(2):
        total.add(ReuseCounts.of(ids(1, 3)))
    assert total.rows.sum() == 4
    assert total.accesses.sum() == 8
