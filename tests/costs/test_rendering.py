"""Plans as text: every device and the worst, no line wider than the terminal, and the bottleneck of a step."""

import dataclasses
import re
from random import Random

import numpy as np
import pytest
from evaluation_toys import CountCost, toy_tasks

from shardgym import EmbeddingTable, PlanCost, Shard, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.costs.links import wait_ms
from shardgym.costs.rendering import render_diff, render_plan
from shardgym.costs.rendering.bottleneck import device_loads, find_bottleneck
from shardgym.costs.rendering.plan_view import table_changes
from shardgym.costs.shard_keys import output_widths

TASK = toy_tasks(1)[0]
HALVES = ShardingPlan.table_wise(TASK, [0, 0, 1, 1])
LOPSIDED = ShardingPlan.table_wise(TASK, [0, 0, 0, 1])


def count_cost(plan):
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


def test_a_plan_shows_every_device_with_memory_and_what_the_task_says_of_itself():
    task = dataclasses.replace(TASK, name="Ads; assumed: 1 id per sample; assumed: no state")
    text = render_plan(task, HALVES, width=120)
    assert "for task Ads: 4 tables in 4 shards on 2 devices, batch" in text
    assert "\nassumed: 1 id per sample\nassumed: no state\n\n" in text
    assert text.count("320 B  66.7 %") == 2
    assert render_diff(task, HALVES, LOPSIDED, width=100).startswith("task Ads: plan ")


def test_the_worst_devices_and_their_tables_are_named():
    """Device 0 holds 480 of 480 bytes and takes 3 ms, the other 1 ms; t2 is 3 of its 6 ids per sample."""
    text = render_plan(TASK, LOPSIDED, count_cost(LOPSIDED), width=100)
    assert "fullest: device 0, 100.0 % of its memory" in text
    assert "slowest: device 0, 3.000 ms" in text
    held_up = "is 2.000 ms longer than for the next device; its compute 3.000 ms, 1.50 times the mean; its exchange"
    assert f"bottleneck: device 0, the step {held_up} without" in " ".join(text.split())
    assert "tables responsible on device 0: 't2' 50 % (10 rows x 4 columns), 't1' 33 %" in text


def test_without_a_cost_the_busiest_device_is_that_with_most_lookups():
    """Columns times ids per sample: 4 x (1 + 2) on device 0, 4 x (3 + 4) on device 1."""
    assert "busiest: device 1, 1.40 times the mean" in render_plan(TASK, HALVES, width=100)


@pytest.mark.parametrize(("group_size", "own", "share"), [(None, (0,), 73), (2, (0, 2), 57)])
def test_holders_of_a_shard_share_its_samples(group_size, own, share):
    """Of 120 values of t0, each of four holders looks up 30; of 80 values of t1, one holder 80 and each of two 40."""
    tables = (EmbeddingTable("t0", 10, 12, pooling_factor=10), EmbeddingTable("t1", 10, 8, pooling_factor=10))
    task = ShardingTask(tables, Topology(num_devices=4, memory_bytes=2**20), batch_size=64)
    plan = ShardingPlan.of(task, [Shard.whole(tables[0], *range(4)), Shard.whole(tables[1], *own)], group_size)
    assert device_loads(task, plan) == [30 + 80 / len(own) if device in own else 30 for device in range(4)]
    assert f"tables responsible on device 0: 't1' {share} %" in render_plan(task, plan, width=100)


@pytest.mark.parametrize("width", [60, 100, 160])
def test_no_line_is_wider_than_the_terminal(width):
    text = render_plan(TASK, HALVES, count_cost(HALVES), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert ("time bars:" in text) == ("##" in text.partition("fullest")[0]) == (width > 60)


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


def test_a_diff_tells_moves_from_other_cuts_and_which_plan_is_better():
    halved = [Shard("t3", (0, 5), (0, 4), 0), Shard("t3", (5, 10), (0, 4), 1)]
    after = ShardingPlan.of(TASK, [*ShardingPlan.table_wise(TASK, [0, 0, 0, 1]).shards[:3], *halved])
    found = {change.table: change.is_move for change in table_changes(TASK, HALVES, after)}
    assert found == {"t2": True, "t3": False}
    text = render_diff(TASK, HALVES, after, width=200)
    assert "1 tables moved, 1 cut differently, 2 the same" in text
    assert "moved 't2': device 1 -> device 0" in text
    halves = "rows [0, 5) columns [0, 4) on device 0 + rows [5, 10) columns [0, 4) on device 1"
    assert f"cut   't3': rows [0, 10) columns [0, 4) on device 1 -> {halves}" in text
    text = render_diff(TASK, HALVES, LOPSIDED, (count_cost(HALVES), count_cost(LOPSIDED)), width=100)
    assert "A: 2.000 ms, slowest device 0. B: 3.000 ms, slowest device 0. B against A: +50.0 %." in text


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


ROOFLINE = make_cost("roofline")
WIDTHS = (16, 32, 64, 128)
THREE = ShardingTask(tuple(EmbeddingTable(f"t{n}", 10, 4) for n in range(3)), Topology(3, 2**20), batch_size=4)


def a_task(*, inter_bandwidth):
    """200 tables for 8 devices on 2 nodes; the slower the links between them, the less compute matters."""
    rng = Random(0)
    tables = tuple(
        EmbeddingTable(f"t{n}", rng.randrange(1000, 100_000), rng.choice(WIDTHS), pooling_factor=rng.uniform(1, 20))
        for n in range(200)
    )
    links = {"intra_bandwidth": 300e9, "inter_bandwidth": inter_bandwidth}
    topology = Topology(num_devices=8, memory_bytes=2**34, device="a100", fast_domain_size=4, **links)
    return ShardingTask(tables, topology, batch_size=65_536)


COMMUNICATION, COMPUTE = a_task(inter_bandwidth=2e9), a_task(inter_bandwidth=1e12)


def lopsided(task, by):
    """Dealt out by width, but for device 4 with more lookups, or device 7 with more columns, or both."""
    device_of = {table.name: n % 8 for n, table in enumerate(sorted(task.tables, key=lambda t: t.embedding_dim))}
    by_lookups = sorted(task.tables, key=lambda t: t.pooling_factor)
    if "lookups" in by:
        narrow = [table.name for table in by_lookups if table.embedding_dim == WIDTHS[0]]
        device_of |= dict.fromkeys(narrow[-25:], 4)
    if "sent" in by:
        wide = [table.name for table in by_lookups if table.embedding_dim == WIDTHS[-1] and device_of[table.name] != 4]
        device_of |= dict.fromkeys(wide[:6], 7)
    return ShardingPlan.table_wise(task, device_of)


def ms(task, plan):
    return ROOFLINE.evaluate(task, [plan])[0].total_ms


def best_move(task, plan, table):
    """Return the least cost with one table on another device."""
    device_of = {shard.table: shard.devices[0] for shard in plan.shards}
    others = [ShardingPlan.table_wise(task, device_of | {table: device}) for device in range(8)]
    return min(cost.total_ms for cost in ROOFLINE.evaluate(task, others))


@pytest.mark.parametrize(("task", "by", "device"), [(COMMUNICATION, "lookups and sent", 7), (COMPUTE, "lookups", 4)])
def test_moving_a_table_that_is_named_helps(task, by, device):
    """And no table of another device helps more than the best of the named."""
    plan = lopsided(task, by)
    text = " ".join(render_plan(task, plan, ROOFLINE.evaluate(task, [plan])[0], width=4000).split())
    found = re.search(rf"tables responsible on device {device}: (.*) of its (?:values )?{by.rpartition(' ')[2]}", text)
    named = re.findall(r"'(t\d+)'", found[1])
    gained = ms(task, plan) - min(best_move(task, plan, table) for table in named)
    elsewhere = [s.table for s in plan.shards if s.devices[0] != device][::5]
    assert gained > 0.01 * ms(task, plan)
    assert gained > ms(task, plan) - min(best_move(task, plan, table) for table in elsewhere)


def cost_of(compute, exchange, *, waits=True):
    """Return a cost with the wait in it that cost models count as forward communication, unless there is none."""
    compute, exchange = np.array(compute, dtype=float), np.array(exchange, dtype=float)
    forward_comm = exchange + wait_ms(compute + exchange) * waits
    columns = [np.zeros(len(compute)), compute / 4, forward_comm, exchange, compute * 3 / 4]
    return PlanCost(np.column_stack(columns), "toy", "1", "toy")


def test_the_device_that_the_others_wait_for_is_found_where_another_has_the_largest_sum():
    """Busy until the exchange 12, the next 7: 5 ms for device 1 alone. Device 2 has the largest sum, by 2 ms."""
    cost = cost_of([2, 10, 3], [1, 2, 4])
    found = find_bottleneck(cost, [4, 8, 16])
    assert (found.compute_ms.tolist(), found.exchange_ms.tolist()) == ([2, 10, 3], [2, 4, 8])
    assert cost.slowest_device == 2
    assert (found.device, found.margin_ms, found.cause) == (1, 5.0, "compute")
    text = render_plan(THREE, ShardingPlan.table_wise(THREE, [0, 1, 2]), cost, width=4000)
    assert "slowest: device 2, 16.000 ms, waiting 5.000 ms for the outputs of device 1" in text
    assert "bottleneck: device 1, the step is 5.000 ms longer than for the next device" in text
    alike = cost_of([2, 10, 9], [1, 2, 2.9998])
    text = render_plan(THREE, ShardingPlan.table_wise(THREE, [0, 1, 2]), alike, width=4000)
    assert "slowest: device 2, 15.000 ms\n" in text


@pytest.mark.parametrize("hardware", ["cpu-core", "a100"])
def test_a_cost_without_ids_says_by_its_times_when_devices_wait(hardware):
    """On a core, devices wait with the forward compute done; on a GPU, with all compute of a step."""
    cost = make_cost("roofline", hardware=hardware)
    plan = lopsided(COMPUTE, "lookups and sent")
    (found,) = cost.evaluate(COMPUTE, [plan])
    _, forward, forward_comm, backward_comm, backward = found.per_device.T
    busy = forward if hardware == "cpu-core" else forward + backward + backward_comm
    bottleneck = find_bottleneck(found, output_widths(COMPUTE, plan))
    assert bottleneck.wait_ms == pytest.approx(wait_ms(busy))
    assert bottleneck.exchange_ms == pytest.approx(forward_comm - wait_ms(busy) + backward_comm)
    # On a core all leave with the last one, and what is no wait is the same for all of them.
    assert np.ptp(bottleneck.exchange_ms) < 1e-9 or hardware == "a100"
    last, slowest_after = int(busy.argmax()), int((found.device_ms - bottleneck.wait_ms - busy).argmax())
    assert bottleneck.device in (last, slowest_after)


def test_an_exchange_that_its_columns_do_not_explain_is_told_as_such():
    """A device that holds little and receives much, e.g. one alone on its node."""
    assert find_bottleneck(cost_of([5, 5, 5], [1, 1, 9]), [40, 40, 4]).cause == "other"
    assert find_bottleneck(cost_of([5, 5, 5], [1, 1, 9]), [4, 4, 40]).cause == "sent"
    copied = dataclasses.replace(THREE, tables=(*THREE.tables, EmbeddingTable("copied", 10, 64)))
    shards = [*map(Shard.whole, THREE.tables, (0, 1, 2)), Shard.whole(copied.tables[3], 0, 1, 2)]
    text = render_plan(copied, ShardingPlan.of(copied, shards), cost_of([5, 5, 5], [1, 1, 9]), width=4000)
    assert "tables responsible on device 2: 't2' 100 % (10 rows x 4 columns) of its values sent" in text


def test_devices_that_are_even_are_said_to_be():
    """Two that hold up the step alike are not: each of them does more than the mean device."""
    assert "devices are even within 1 % of the step" in even([5.0, 5.01, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0])
    assert "bottleneck: no device, devices are even" in (text := even([5.0] * 8))
    assert "tables responsible" not in text
    text = even([5.0, 9.0, 9.0, 5.0, 5.0, 5.0, 5.0, 5.0])
    assert "bottleneck: device 1; its compute 9.000 ms, 1.50" in text
    assert "its compute sets it apart" in text


def even(compute):
    plan = lopsided(COMPUTE, "")
    return " ".join(render_plan(COMPUTE, plan, cost_of(compute, [2.0] * 8), width=4000).split())


def test_costs_without_a_wait_are_held_up_by_the_largest_sum():
    """Device 1 takes 12 ms and device 2 takes 11: no part of an exchange is a wait."""
    found = find_bottleneck(cost_of([2, 10, 3], [1, 1, 4], waits=False), [4, 8, 16])
    assert (found.device, found.margin_ms, found.wait_ms.tolist()) == (1, 1.0, [0, 0, 0])
    assert found.exchange_ms.tolist() == [2, 2, 8]
