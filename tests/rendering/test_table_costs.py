"""What tables cost, checked against plans without them, and what a cut brings, against plans with it."""

from __future__ import annotations

import dataclasses
import json

import pytest
from evaluation_toys import CountCost

from shardgym import InputError, Shard, ShardingPlan, ShardingTask, Topology, load_suite, make_cost
from shardgym.cli import main
from shardgym.rendering.table_costs import TableCost, render_table_costs, table_costs
from shardgym.table import EmbeddingTable

ROOFLINE = make_cost("roofline")
TASK = load_suite("tiny-v1")[0]
PLAN = ShardingPlan.table_wise(TASK, [n % 2 for n in range(TASK.num_tables)])
COST = ROOFLINE.evaluate(TASK, [PLAN])[0]


def test_a_table_costs_what_its_device_computes_less_without_it():
    costs = table_costs(TASK, PLAN, ROOFLINE, COST)
    assert [cost.ms for cost in costs] == sorted((cost.ms for cost in costs), reverse=True)
    assert {cost.table for cost in costs} == {table.name for table in TASK.tables}
    found = costs[0]
    (device,) = found.devices
    rest = dataclasses.replace(TASK, tables=tuple(table for table in TASK.tables if table.name != found.table))
    without = ShardingPlan.of(rest, [shard for shard in PLAN.shards if shard.table != found.table])
    computes = [cost.per_device[device, [1, 4]].sum() for cost in (COST, *ROOFLINE.evaluate(rest, [without]))]
    assert found.ms == pytest.approx(computes[0] - computes[1])
    assert found.size_bytes == TASK.table_bytes(TASK.table(found.table))


def test_one_more_cut_is_the_best_of_those_that_move_half_of_a_shard():
    """Two tables on one of three devices; the wide one is worth cutting, the one of 4 columns cannot be."""
    tables = (EmbeddingTable("wide", 100, 64, 50.0), EmbeddingTable("narrow", 100, 4, 50.0))
    task = ShardingTask(tables, Topology.preset("dgx-a100", 3), batch_size=4096)
    plan = ShardingPlan.table_wise(task, [1, 1])
    rating = make_cost("torchrec_rating")
    (cost,) = rating.evaluate(task, [plan])
    wide, narrow = table_costs(task, plan, rating, cost)
    cut = [
        Shard("wide", (0, 100), (0, 32), 0),
        Shard("wide", (0, 100), (32, 64), 1),
        Shard("narrow", (0, 100), (0, 4), 1),
    ]
    (after,) = rating.evaluate(task, [ShardingPlan.of(task, cut)])
    assert (wide.table, wide.after_cut_ms) == ("wide", pytest.approx(after.total_ms))
    assert narrow.after_cut_ms is None
    text = render_table_costs([wide, narrow], cost, 1, width=400)
    assert text.splitlines()[2].split()[-2:] == [f"{100 * (after.total_ms / cost.total_ms - 1):+.1f}", "%"]
    assert "without the table, modelled" in text


def test_many_tables_are_not_all_listed():
    costs = [TableCost(f"t{n}", (0,), 4, 1.0, None, ("fused",)) for n in range(23)]
    assert "... and 3 more tables that cost less; --json has all" in render_table_costs(costs, COST, 0, width=80)


def test_kernels_are_listed_where_rows_are_elsewhere_than_on_devices():
    on_device = TableCost("hot", (0,), 4, 1.0, None, ("fused",))
    on_ssd = TableCost("cold", (1,), 4, 1.0, None, ("fused", "key_value"))
    assert "kernel" not in render_table_costs([on_device], COST, 0, width=80)
    assert "fused, key_value" in render_table_costs([on_device, on_ssd], COST, 0, width=80)


def test_a_cost_that_scores_whole_plans_says_so():
    with pytest.raises(InputError, match="scores whole plans only: what tables cost needs one that adds up"):
        table_costs(TASK, PLAN, CountCost(), COST)


def test_the_command_lists_tables_and_gives_them_to_machines(tmp_path, capsys):
    path = tmp_path / "plan.json"
    path.write_text(PLAN.to_json())
    show = ["plan", "show", "tiny-v1/0", str(path), "--tables"]
    assert main([*show, "--cost", "roofline"]) == 0
    assert "one more cut" in capsys.readouterr().out
    assert main([*show, "--cost", "roofline", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tables"]) == TASK.num_tables
    assert main(show) == 2
    assert "--tables lists what tables cost: give --cost, too" in capsys.readouterr().err
