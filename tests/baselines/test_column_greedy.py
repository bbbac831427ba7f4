"""Longest processing time first with cuts."""

import pytest
from baseline_tasks import task_of

from baselines.column_greedy import ColumnGreedy, halves, merged
from baselines.greedy import LPTWhole
from shardgym import make_cost
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard


@pytest.mark.parametrize(("columns", "expected"), [(16, [8, 8]), (12, [4, 8]), (8, [4, 4]), (4, [])])
def test_halves_are_of_widths_that_can_be_fused(columns, expected):
    parts = halves(Shard("t", (0, 10), (4, 4 + columns), 0))
    assert [part.num_columns for part in parts] == expected
    assert not parts or (parts[0].columns[0], parts[1].columns) == (4, (parts[0].columns[1], 4 + columns))


def test_one_large_table_is_cut_as_long_as_that_helps():
    task = task_of([(100_000, 64, 40.0), (1000, 8, 1.0)], (2**30,) * 4)
    cost = make_cost("roofline")
    found = []
    plan = ColumnGreedy().solve(task, cost, observer=lambda plan, ms: found.append((plan, ms)))
    lpt = cost.evaluate(task, [LPTWhole().solve(task, cost)])[0].total_ms
    assert found[0][1] == lpt
    assert found[-1][0] == plan
    assert [ms for _, ms in found] == sorted({ms for _, ms in found}, reverse=True)
    assert found[-1][1] < 0.7 * lpt
    assert len({shard.devices[0] for shard in plan.shards if shard.table == "t0"}) > 2


def test_pieces_on_one_device_become_one_shard():
    task = task_of([(10, 16, 1.0), (10, 4, 1.0)])
    plan = ShardingPlan.of(
        task,
        [
            Shard("t0", (0, 10), (0, 4), 0),
            Shard("t0", (0, 10), (4, 12), 1),
            Shard("t0", (0, 10), (12, 16), 0),
            Shard("t1", (0, 5), (0, 4), 0),
            Shard("t1", (5, 10), (0, 4), 0),
        ],
    )
    after = merged(task, plan)
    after.validate(task)
    assert [(s.table, s.columns, s.devices[0]) for s in after.shards if s.table == "t0"] == [
        ("t0", (0, 8), 0),
        ("t0", (8, 16), 1),
    ]
    assert len(after.shards) == 3  # rows that follow each other on a device are joined by every plan
