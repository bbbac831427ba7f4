"""The tool that compares what two judges say of the same solvers."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest

pd = pytest.importorskip("pandas", reason="needs the extra 'frame'")

pytestmark = pytest.mark.repository


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    return importlib.import_module("judges_compared")


def test_a_task_counts_where_both_solvers_solved_it_on_both_boards(tool):
    simulated = pd.DataFrame({"neuroshard_plus": [1.0, 1.0, 1.0, 1.0], "lpt": [2.0, 8.0, math.nan, 9.0]})
    measured = pd.DataFrame({"neuroshard_plus": [1.0, 2.0, 1.0], "lpt": [3.0, 6.0, 5.0]})
    number, (by_simulator, by_measurement) = tool.dearer([simulated, measured], "lpt")
    assert number == 2
    assert by_simulator == pytest.approx(3.0)  # the geometric mean of 2 and 8 is 4
    assert by_measurement == pytest.approx(2.0)


def test_a_board_of_the_repository_is_one_row(tool):
    header, _, row = tool.table(["tight4-v2"]).splitlines()
    assert "neuroshard: measured" in header
    assert row.startswith("| `tight4-v2`")
