"""docs/solvers.md names every registered solver, and no other."""

import re
from pathlib import Path

import pytest

from shardgym.evaluation.solver import solver_names

pytestmark = pytest.mark.repository


def test_every_registered_solver_has_a_row():
    text = (Path(__file__).parents[2] / "docs" / "solvers.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]* \| [^|]+ \| [^|]+ \|$", text, flags=re.MULTILINE)
    assert sorted(rows) == sorted(set(rows))
    assert set(rows) == set(solver_names())
