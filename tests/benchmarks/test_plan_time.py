"""Which sizes a solver is timed on, and what stands where there is no figure."""

import pytest

from shardgym import make_cost

pytestmark = pytest.mark.repository


@pytest.fixture
def plan_time(script):
    return script("plan_time")


def test_a_slow_solver_is_left_out_of_larger_sizes(plan_time, monkeypatch):
    asked = []

    def times(solver, tables, devices, cost, repeats, limit_s):
        asked.append(tables)
        return [0.1, 0.3, 0.2] if tables < 30 else [0.1, 2.0]

    monkeypatch.setattr(plan_time, "times", times)
    row = plan_time.row("lpt", [10, 30, 100], 4, None, 3, 1.0)
    assert row == {"devices": 4, "solver": "lpt", "10": 200.0, "30": "2,000*", "100": "-"}
    assert asked == [10, 30]


def test_a_solver_that_cannot_do_a_size_is_asked_for_the_next_one(plan_time, capsys):
    row = plan_time.row("exhaustive,limit=10", [2, 5], 2, make_cost("roofline"), 1, 60.0)
    assert isinstance(row["2"], float)
    assert row["5"] == "no plan"
    assert "placements" in capsys.readouterr().err
