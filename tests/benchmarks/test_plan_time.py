"""Which sizes a solver is timed on."""

import json
import sys


def test_a_solver_that_is_slow_or_finds_no_plan_is_left_out_of_larger_sizes(tool, monkeypatch, capsys):
    slow = ["--solver", "lpt", "--solver", "exhaustive,limit=10", "--devices", "2", "--repeats", "1", "--json"]
    monkeypatch.setattr(sys, "argv", ["plan_time.py", *slow, "--tables", "2", "5", "7", "--limit", "1e-9"])
    tool.main()
    lpt, exhaustive = json.loads(capsys.readouterr().out)
    assert lpt.keys() == exhaustive.keys() == {"devices", "solver", "2 tables"}
    assert tool.plan_s("exhaustive,limit=10", 5, 2, tool.make_cost("roofline"), 1) is None
