"""Errors of differences: how they are counted, and that the package holds those of today's costs and records."""

import math

import pytest

from shardgym import InputError
from shardgym.costs.comparison import ERRORS, DifferenceErrors


def test_pairs_are_of_one_group_and_within_a_factor_of_two(tool):
    groups = [[(1.0, 10.0), (1.5, 11.0), (4.0, 50.0)], [(8.0, 3.0)]]
    (pair,) = tool.pairs_of(groups)
    assert pair == pytest.approx((math.log(1 / 1.5), math.log(10 / 11)))


def test_an_error_is_the_median_and_what_is_above_it_is_counted_apart(tool):
    off = {0.2: 0.01, 0.1: 0.02, 0.02: 0.03, 0.01: 0.04, -0.3: 0.05}
    pairs = [tool.Pair(predicted, predicted - error) for predicted, error in off.items()]
    found = tool.error_of_pairs("toy", "1", "cpu", "rows", pairs, "nothing")
    assert (found.error, found.pairs) == (0.03, 5)
    # Three are above it; of the others, 0.02 - 0.03 and 0.01 - 0.04 are below 0.
    assert (found.above, found.within) == (1.0, 0.0)
    with pytest.raises(InputError, match="cost 'toy': no pair of plans for rows on cpu"):
        tool.error_of_pairs("toy", "1", "cpu", "rows", [], "nothing")


def test_the_package_has_the_error_of_steps_of_all_sharding_types(tool):
    kept = {(one.cost, one.cuts): one for one in DifferenceErrors.load(ERRORS).errors if "all sharding" in one.against}
    assert {(one.cost, one.cuts): one for one in tool.by_kinds()} == kept
