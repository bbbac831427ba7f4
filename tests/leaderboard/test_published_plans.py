"""The committed boards of the simulated track: solvers still make the plans that are published under their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardgym.evaluation import verify

BOARDS = Path(__file__).parents[2] / "leaderboards"


@pytest.mark.slow
@pytest.mark.repository
@pytest.mark.parametrize("board", ["dlrm4-v1-simulator", "dlrm8-v1-simulator"])
def test_every_record_is_found_again(board):
    """Records, failures included, are scored and solved again; a board must be remade when a solver changes."""
    report = verify([BOARDS / board], solve=True)
    assert report.footer().splitlines()[1:] == []
    assert report.verdict == "verified"
