"""Every registered solver keeps every promise."""

import pytest

from shardgym.evaluation.conformance import check_solver
from shardgym.evaluation.solver import solver_names


@pytest.mark.parametrize("name", solver_names(installed_only=True))
def test_registered_solver_conforms(name):
    report = check_solver(name, time_limit_s=0.3)
    assert report.ok, "\n" + report.table()
