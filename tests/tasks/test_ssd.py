"""Shards whose rows are on an SSD: records, bytes in both memories, and what is wrong with plans."""

import dataclasses
import json

import pytest

from shardgym.cli import main
from shardgym.cli.plan_files import plan_to_csv
from shardgym.costs.base import make_cost
from shardgym.costs.rendering.plan_view import render_plan
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.plans.feasibility import check_possible, plan_problems
from shardgym.plans.migration import migration
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology

#: Each device has room for 1,000 rows of "a" with their states, and each SSD for the weights of a table and a half.
TASK = ShardingTask(
    (EmbeddingTable("a", 1000, 16), EmbeddingTable("b", 1000, 16)),
    Topology(num_devices=2, memory_bytes=68_000, device="a100", ssd_bytes=100_000),
    batch_size=64,
    optimizer="rowwise_adagrad",
)
A, B = (Shard(name, (0, 1000), (0, 16), 0) for name in "ab")


def on_ssd(shard, share=0.25, **changes):
    return dataclasses.replace(shard, compute_kernel="key_value", cache_load_factor=share, **changes)


def test_topologies_without_ssds_are_written_as_before():
    written = Topology(num_devices=1, memory_bytes=1).to_json()
    assert "ssd" not in written
    assert '"ssd":"intel-p4500-4tb"' in dataclasses.replace(TASK.topology, ssd="intel-p4500-4tb").to_json()
    assert TASK.topology.devices_alone == dataclasses.replace(TASK.topology, ssd_bytes=0)


def test_round_trip():
    plan = ShardingPlan.of(TASK, [on_ssd(A), B])
    assert ShardingPlan.from_json(plan.to_json()) == plan
    assert ShardingTask.from_json(TASK.to_json()) == TASK
    assert plan.digest != ShardingPlan.of(TASK, [A, B]).digest
    assert plan.kind_of("a", TASK) == "table_wise"
    assert (plan.leaves_devices, plan.uses_host_memory) == (True, False)
    with pytest.raises(InputError, match="in the memory of hosts or on SSDs, which CSV cannot say"):
        plan_to_csv(TASK, plan)


def test_bytes_in_both_memories():
    # A quarter of the rows, 16 bytes for each of them, and the states of all rows.
    assert on_ssd(A).bytes(TASK) == 16_000 + 250 * 16 + 4_000
    assert (on_ssd(A).ssd_bytes(TASK), on_ssd(A).host_bytes(TASK), A.ssd_bytes(TASK)) == (64_000, 0, 0)
    adam = dataclasses.replace(TASK, optimizer="adam", precision="fp16")
    assert (on_ssd(A).bytes(adam), on_ssd(A).ssd_bytes(adam)) == (8_000 + 250 * 16 + 2 * 64_000, 32_000)
    plan = ShardingPlan.of(TASK, [A, on_ssd(B, devices=(1,))])
    assert plan.bytes_per_ssd(TASK) == [0, 64_000]
    assert plan.bytes_per_device(TASK) == [68_000, 24_000]
    assert plan.bytes_per_host(TASK) == [0]
    plan.validate(TASK)


def test_an_ssd_overflows_by_name():
    (problem,) = plan_problems(TASK, [on_ssd(A), on_ssd(B)])
    assert problem == (
        "the SSD of device 0 holds 128000 bytes, 28000 more than its 100000; largest of its 2 shards: 'b' 64000, "
        "'a' 64000"
    )
    assert not plan_problems(TASK, [on_ssd(A), on_ssd(B, devices=(1,))])
    without = dataclasses.replace(TASK, topology=TASK.topology.devices_alone)
    (problem,) = plan_problems(without, [on_ssd(A), dataclasses.replace(B, devices=(1,))])
    assert "64000 more than its 0: the topology has none, give ssd_bytes or use kernel fused" in problem


def test_what_fbgemm_cannot_do_is_a_problem():
    sgd = dataclasses.replace(TASK, optimizer="exact_sgd")
    (problem,) = plan_problems(sgd, [on_ssd(A), dataclasses.replace(B, devices=(1,))])
    assert problem == (
        "table 'a' has kernel key_value and optimiser exact_sgd: FBGEMM trains rows on SSDs with rowwise_adagrad "
        "or adam"
    )
    (problem,) = plan_problems(TASK, [on_ssd(A, devices=(0, 1)), on_ssd(B)])[:1]
    assert "has rows on an SSD (kernel key_value) and is held by devices 0, 1: expected one device" in problem


def test_what_devices_cannot_hold_names_ssds():
    small = dataclasses.replace(TASK, topology=dataclasses.replace(TASK.topology, memory_bytes=(20_000,) * 2))
    with pytest.raises(NoFeasiblePlanError, match="or a solver that uses the 100000 of each SSD, as neuroshard_plus"):
        check_possible(small)
    check_possible(small, on_ssd=True)
    tiny = dataclasses.replace(small, topology=dataclasses.replace(small.topology, ssd_bytes=40_000))
    with pytest.raises(NoFeasiblePlanError, match="the hosts 0 and the SSDs 80000: 16000 bytes too few"):
        check_possible(tiny, on_ssd=True)


@pytest.mark.parametrize("name", ["simulator", "torchrec_rating"])
def test_costs_that_do_not_know_ssds_refuse_them(name):
    plan = ShardingPlan.of(TASK, [on_ssd(A), dataclasses.replace(B, devices=(1,))])
    task = dataclasses.replace(TASK, topology=dataclasses.replace(TASK.topology, device="cpu-core"))
    plan = ShardingPlan.of(task, plan.shards)
    (cost,) = make_cost(name).evaluate(task, [plan])
    assert cost.reason is not None
    assert "prices no SSDs, and table 'a' has kernel key_value on device 0: 'gpu' and 'roofline' do" in cost.reason


def test_plans_are_shown_with_their_ssds():
    plan = ShardingPlan.of(TASK, [on_ssd(A), dataclasses.replace(B, devices=(1,))])
    text = render_plan(TASK, plan, width=200)
    assert "shards: 1 key_value, 1 fused" in text
    assert "device 0 holds 62.5 KiB on its SSD of 97.7 KiB (64.0 %)" in text
    assert "host 0" not in text


def test_rows_that_change_their_memory_move():
    kept = ShardingPlan.of(TASK, [on_ssd(A), dataclasses.replace(B, devices=(1,))])
    moved = ShardingPlan.of(TASK, [A, dataclasses.replace(B, devices=(1,))])
    assert migration(TASK, kept, moved).bytes_by_link["host"] == A.bytes(TASK)


def test_a_page_of_a_plan_has_its_ssds(tmp_path, capsys):
    for name, record in (("task", TASK), ("plan", ShardingPlan.of(TASK, [on_ssd(A), B]))):
        (tmp_path / f"{name}.json").write_text(record.to_json())
    names = [str(tmp_path / f"{name}.json") for name in ("task", "plan")]
    main(["plan", "show", *names, "--json"])
    page = json.loads(capsys.readouterr().out)
    assert page["ssds"] == [
        {"device": 0, "used_bytes": 64_000, "ssd_bytes": 100_000},
        {"device": 1, "used_bytes": 0, "ssd_bytes": 100_000},
    ]
    assert "hosts" not in page


def test_notes_say_that_nothing_was_held_against_ssds():
    (cost,) = make_cost("gpu").evaluate(
        TASK, [ShardingPlan.of(TASK, [on_ssd(A), dataclasses.replace(B, devices=(1,))])]
    )
    assert "gpu was held against no lookups of rows on SSDs: they are priced by data sheets of drives" in cost.notes
