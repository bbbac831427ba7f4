"""Solvers still make the plans that they made when these were written down."""

from __future__ import annotations

import pytest
from golden_plans import SUITES, differences


def test_plans_of_the_first_tasks_are_the_same():
    assert differences((suite, 3) for suite in SUITES) == []


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_all_plans_are_the_same(suite):
    assert differences([(suite, SUITES[suite])]) == []
