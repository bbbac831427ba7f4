"""Which sizes a solver is timed on."""

import json
import sys

import pytest

pytestmark = pytest.mark.repository


def test_a_solver_that_is_slow_or_finds_no_plan_is_left_out_of_larger_sizes(script, monkeypatch, capsys):
    plan_time = script("plan_time")
    slow = ["--solver", "lpt", "--solver", "exhaustive,limit=10", "--devices", "2", "--repeats", "1", "--json"]
    monkeypatch.setattr(sys, "argv", ["plan_time.py", *slow, "--tables", "2", "5", "7", "--limit", "1e-9"])
    plan_time.main()
    lpt, exhaustive = json.loads(capsys.readouterr().out)
    assert lpt.keys() == exhaustive.keys() == {"devices", "solver", "2 tables"}
    assert plan_time.plan_s("exhaustive,limit=10", 5, 2, plan_time.make_cost("roofline"), 1) is None
