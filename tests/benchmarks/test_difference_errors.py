"""Errors of differences: how they are counted, and that the package holds those of today's costs and records."""

from __future__ import annotations

import math

import pytest

from shardgym import make_cost
from shardgym.costs.comparison import ERRORS, DifferenceErrors
from shardgym.errors import InputError

pytestmark = pytest.mark.repository


def test_pairs_are_of_one_group_and_within_a_factor_of_two(script):
    module = script("difference_errors")
    groups = [[(1.0, 10.0), (1.5, 11.0), (4.0, 50.0)], [(8.0, 3.0)]]
    (pair,) = module.pairs_of(groups)
    assert pair == pytest.approx((math.log(1 / 1.5), math.log(10 / 11)))


def test_an_error_is_the_median_and_what_is_above_it_is_counted_apart(script):
    module = script("difference_errors")
    off = {0.2: 0.01, 0.1: 0.02, 0.02: 0.03, 0.01: 0.04, -0.3: 0.05}
    pairs = [module.Pair(predicted, predicted - error) for predicted, error in off.items()]
    found = module.error_of_pairs("toy", "1", "cpu", "rows", pairs, "nothing")
    assert (found.error, found.pairs) == (0.03, 5)
    # Three are above it; of the others, 0.02 - 0.03 and 0.01 - 0.04 are below 0.
    assert (found.above, found.within) == (1.0, 0.0)
    with pytest.raises(InputError, match="cost 'toy': no pair of plans for rows on cpu"):
        module.error_of_pairs("toy", "1", "cpu", "rows", [], "nothing")


def test_the_package_has_the_errors_of_todays_costs(script):
    """To 2 %: another version of SciPy may stop a fit a little elsewhere. Of `replay`, which is slow, the version."""
    module = script("difference_errors")
    kept = {(one.cost, one.version, one.devices, one.cuts): one for one in DifferenceErrors.load(ERRORS).errors}
    costs = [make_cost(name, **settings) for name, settings in module.PREDICTING if name != "replay"]
    now = [*module.on_boards(costs), *module.by_kinds(), *module.published()]
    remedy = "run python benchmarks/difference_errors.py --write"
    of_replay = ("replay", make_cost("replay").version, "cpu", "columns")
    assert set(kept) == {of_replay, *((one.cost, one.version, one.devices, one.cuts) for one in now)}, remedy
    for one in now:
        there = kept[one.cost, one.version, one.devices, one.cuts]
        assert (there.error, there.pairs) == (pytest.approx(one.error, rel=0.02), one.pairs), remedy


@pytest.mark.slow
def test_the_package_has_the_error_of_replay(script):
    (now,) = script("difference_errors").on_boards([make_cost("replay")])
    (kept,) = [one for one in DifferenceErrors.load(ERRORS).errors if one.cost == "replay"]
    assert (kept.error, kept.pairs) == (pytest.approx(now.error, rel=0.02), now.pairs)
