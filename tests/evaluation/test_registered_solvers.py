"""Every registered solver keeps every promise."""

import pytest
from evaluation_toys import INSTALLED

from shardgym.evaluation.conformance import check_solver


@pytest.mark.parametrize("name", INSTALLED)
def test_registered_solver_conforms(name):
    report = check_solver(name, time_limit_s=0.3)
    assert report.ok, "\n" + report.table()
