"""Plans as text: every device shown, the worst named, and no line wider than the terminal."""

import pytest
from evaluation_toys import CountCost, toy_tasks

from shardgym import EmbeddingTable, PlanCost, Shard, ShardingPlan, ShardingTask, Topology
from shardgym.costs.rendering import render_diff, render_plan
from shardgym.costs.rendering.plan_view import table_changes

TASK = toy_tasks(1)[0]
HALVES = ShardingPlan.table_wise(TASK, [0, 0, 1, 1])
LOPSIDED = ShardingPlan.table_wise(TASK, [0, 0, 0, 1])


def cost_of(plan):
    return CountCost().evaluate(TASK, [plan])[0]


@pytest.mark.parametrize(
    ("hidden", "legend", "stacked"), [(False, "i ids, F fwd comp", "iiFFFF"), (True, "bars: F", "FFFFFF")]
)
def test_ids_are_the_first_part_of_a_bar_unless_they_are_hidden(hidden, legend, stacked):
    """Device 0 takes 1.5 ms, a third of it for ids."""
    cost = PlanCost([[0.5, 1.0, 0, 0, 0], [0.25, 0.5, 0, 0, 0]], "toy", "1", "toy", ids_hidden=hidden)
    text = render_plan(TASK, HALVES, cost, width=200)
    assert legend in text
    (line,) = (line for line in text.splitlines() if line.strip().startswith("0 "))
    assert line.split()[-1] == "".join(4 * mark for mark in stacked)


def test_a_plan_shows_every_device_with_memory():
    text = render_plan(TASK, HALVES, width=100)
    assert "4 tables in 4 shards on 2 devices" in text
    assert text.count("320 B  66.7 %") == 2


def test_the_worst_devices_and_their_tables_are_named():
    """Device 0 holds 480 of 480 bytes and takes 3 ms, the other 1 ms; t2 is 3 of its 6 ids per sample."""
    text = render_plan(TASK, LOPSIDED, cost_of(LOPSIDED), width=100)
    assert "fullest: device 0, 100.0 % of its memory" in text
    assert "slowest: device 0, 3.000 ms" in text
    held_up = (
        "bottleneck: device 0, the step is 2.000 ms longer than for the next device; "
        "its compute 3.000 ms, 1.50 times the mean; its exchange without waiting"
    )
    assert held_up in " ".join(text.split())
    assert "tables responsible on device 0: 't2' 50 % (10 rows x 4 columns), 't1' 33 %" in text


def test_without_a_cost_the_busiest_device_is_that_with_most_lookups():
    """Columns times ids per sample: 4 x (1 + 2) on device 0, 4 x (3 + 4) on device 1."""
    assert "busiest: device 1, 1.40 times the mean" in render_plan(TASK, HALVES, width=100)


@pytest.mark.parametrize("width", [60, 100, 160])
def test_no_line_is_wider_than_the_terminal(width):
    text = render_plan(TASK, HALVES, cost_of(HALVES), width=width)
    assert max(map(len, text.splitlines())) <= width


def test_an_infeasible_plan_is_drawn_with_its_problems():
    shards = [*LOPSIDED.shards[:3], Shard("ghost", (0, 1), (0, 4), 9), Shard("t3", (0, 5), (0, 4), 0)]
    text = " ".join(render_plan(TASK, ShardingPlan.of(TASK, shards), width=400).split())
    assert "problem: table 'ghost' is not in the task" in text
    assert "problem: rows [5, 10) columns [0, 4) of table 't3' are missing" in text
    assert "problem: device 0 holds 560 bytes, 80 more than its 480" in text


def test_idle_devices_are_counted():
    task = ShardingTask(TASK.tables, Topology(8, 1000), batch_size=64)
    text = render_plan(task, ShardingPlan.table_wise(task, [1, 1, 3, 3]), width=100)
    assert "idle: 6 of 8 devices hold nothing: 0, 2, 4-7" in text
    assert "idle" not in render_plan(TASK, HALVES, width=100)


def test_a_diff_tells_moves_from_other_cuts():
    halved = [Shard("t3", (0, 5), (0, 4), 0), Shard("t3", (5, 10), (0, 4), 1)]
    after = ShardingPlan.of(TASK, [*ShardingPlan.table_wise(TASK, [0, 0, 0, 1]).shards[:3], *halved])
    found = {change.table: change.is_move for change in table_changes(TASK, HALVES, after)}
    assert found == {"t2": True, "t3": False}
    text = render_diff(TASK, HALVES, after, width=200)
    assert "1 tables moved, 1 cut differently, 2 the same" in text
    assert "moved 't2': device 1 -> device 0" in text
    halves = "rows [0, 5) columns [0, 4) on device 0 + rows [5, 10) columns [0, 4) on device 1"
    assert f"cut   't3': rows [0, 10) columns [0, 4) on device 1 -> {halves}" in text


def test_a_diff_with_costs_says_which_is_better():
    text = render_diff(TASK, HALVES, LOPSIDED, (cost_of(HALVES), cost_of(LOPSIDED)), width=100)
    assert "A: 2.000 ms, slowest device 0. B: 3.000 ms, slowest device 0. B against A: +50.0 %." in text


@pytest.mark.parametrize(("listed", "moved", "more"), [(1, 1, True), (2, 2, False)])
def test_a_diff_lists_so_many_tables(listed, moved, more, monkeypatch):
    monkeypatch.setattr("shardgym.costs.rendering.plan_view.MAX_LISTED", listed)
    text = render_diff(TASK, HALVES, ShardingPlan.table_wise(TASK, [0, 1, 0, 1]), width=100)
    assert text.count("moved '") == moved
    assert ("... and 1 more; --json lists them" in text) == more


def test_a_diff_lists_the_first_pieces_of_a_table(monkeypatch):
    monkeypatch.setattr("shardgym.costs.rendering.plan_view.MAX_PIECES", 2)
    start = ShardingPlan.table_wise(TASK, [0, 0, 0, 0])
    pieces = [Shard("t3", (2 * n, 2 * n + 2), (0, 4), n % 2) for n in range(5)]
    cut = ShardingPlan.of(TASK, [*start.shards[:3], *pieces])
    two = "rows [0, 2) columns [0, 4) on device 0 + rows [2, 4) columns [0, 4) on device 1 and 3 more"
    assert f"columns [0, 4) on device 0 -> {two}" in render_diff(TASK, start, cut, width=200)


def test_kinds_are_counted_where_tables_are_not_all_whole():
    tables = tuple(EmbeddingTable(f"t{n}", 100, 8) for n in range(4))
    task = ShardingTask(tables, Topology(num_devices=4, memory_bytes=2**20), batch_size=64)
    held = [Shard.whole(table, n % 2, n % 2 + 2) for n, table in enumerate(tables[:3])]
    plan = ShardingPlan.of(task, [*held, Shard.whole(tables[3], 0, 1, 2, 3)], group_size=2)
    text = " ".join(render_plan(task, plan, width=100).split())
    assert "tables: 3 table_wise, 1 data_parallel, in groups of 2 devices" in text
    assert "tables:" not in render_plan(task, ShardingPlan.table_wise(task, [0, 1, 2, 3]), width=100)
    other = ShardingPlan.of(task, [*held, Shard.whole(tables[3], 1, 3)], group_size=2)
    assert "moved 't3': devices 0, 1, 2, 3 -> devices 1, 3" in render_diff(task, plan, other, width=100)
