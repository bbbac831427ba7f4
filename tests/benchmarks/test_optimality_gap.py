"""The benchmark of proven gaps, on a small task."""

import dataclasses

from shardgym import Topology


def test_gaps_of_all_solvers_are_over_one_bound(tool):
    task = tool.model_with_300_tables(8)
    task = dataclasses.replace(task, tables=task.tables[:8], topology=Topology.preset("dgx-h100", 4))
    rows = tool.gaps(task, 0.02)
    assert [row["solver"] for row in rows] == ["milp", *tool.OTHERS] * 2
    assert all(row["gap by roofline"] >= 0 and row["gap by gpu"] >= 0 for row in rows)
    bounds = {round(row["ms"] / (1 + row["gap by gpu"]), 6) for row in rows if row["planned by"] == "gpu"}
    assert len(bounds) == 1
