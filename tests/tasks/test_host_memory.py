"""Shards whose rows are in the memory of a host: records, bytes in both memories, and what is wrong with plans."""

import dataclasses

import pytest

from shardgym import EmbeddingTable, InputError, NoFeasiblePlanError, Shard, ShardingPlan, ShardingTask, make_cost
from shardgym.costs.rendering.plan_view import render_diff, render_plan
from shardgym.plans.feasibility import check_possible, plan_problems
from shardgym.tasks.topology import Topology

HOST_BYTES = 100_000
#: Two hosts of two devices; each device has room for 1,000 rows of "a", each host for all but one table and a half.
TASK = ShardingTask(
    (EmbeddingTable("a", 1000, 16), EmbeddingTable("b", 1000, 16)),
    Topology(num_devices=4, memory_bytes=64_000, device="a100", fast_domain_size=2, host_memory_bytes=HOST_BYTES),
    batch_size=64,
)
WHOLE = (0, 1000), (0, 16)
A, B = (Shard(name, *WHOLE, 0) for name in "ab")


def in_host(shard, share=0.0):
    kernel = "fused_uvm_caching" if share else "fused_uvm"
    return dataclasses.replace(shard, compute_kernel=kernel, cache_load_factor=share)


@pytest.mark.parametrize("shard", [in_host(A), in_host(A, 0.25)])
def test_kernels_are_written_where_they_are_not_fused(shard):
    assert A.to_json() == '{"columns":[0,16],"devices":[0],"rows":[0,1000],"table":"a"}'
    assert not {"host_memory_bytes", "host_bandwidth"} & Topology(num_devices=1, memory_bytes=1).to_dict().keys()
    plan = ShardingPlan.of(TASK, [shard, B])
    assert ShardingPlan.from_json(plan.to_json()) == plan
    assert plan.digest != ShardingPlan.of(TASK, [A, B]).digest
    assert ShardingTask.from_json(TASK.to_json()) == TASK


@pytest.mark.parametrize(
    ("kernel", "share", "message"),
    [
        ("fused_uvm_caching", 0.0, "cache_load_factor > 0 if and only if compute_kernel is 'fused_uvm_caching'"),
        ("fused", 0.5, "cache_load_factor > 0 if and only if compute_kernel is 'fused_uvm_caching'"),
        ("ssd_virtual_table", 0.0, "compute_kernel: Input should be 'fused', 'fused_uvm' or 'fused_uvm_caching'"),
    ],
)
def test_a_cache_needs_a_share_and_the_other_way_round(kernel, share, message):
    with pytest.raises(InputError, match=message):
        Shard("a", *WHOLE, 0, kernel, share)


def test_rows_under_different_kernels_stay_apart():
    hot = dataclasses.replace(A, rows=(0, 100))
    cold = dataclasses.replace(in_host(A), rows=(100, 400))
    rest = dataclasses.replace(cold, rows=(400, 1000))
    plan = ShardingPlan.of(TASK, [hot, cold, rest, B])
    assert [shard.rows for shard in plan.of_table("a")] == [(0, 100), (100, 1000)]
    assert plan.kind_of("a", TASK) == "table_wise"


def test_bytes_in_both_memories():
    assert (A.bytes(TASK), A.host_bytes(TASK)) == (64_000, 0)
    assert (in_host(A).bytes(TASK), in_host(A).host_bytes(TASK)) == (0, 64_000)
    # A quarter of the rows, 16 bytes for each of them, and 4 for every row.
    assert in_host(A, 0.25).bytes(TASK) == 16_000 + 250 * 16 + 4_000
    assert in_host(A, 0.25).host_bytes(TASK) == 64_000
    with_adam = dataclasses.replace(TASK, optimizer="adam")
    assert in_host(A, 0.25).bytes(with_adam) == 24_000
    assert in_host(A).host_bytes(with_adam) == 3 * 64_000
    plan = ShardingPlan.of(TASK, [A, dataclasses.replace(in_host(B), devices=(3,))])
    assert plan.bytes_per_device(TASK) == [64_000, 0, 0, 0]
    assert plan.bytes_per_host(TASK) == [0, 64_000]
    assert plan.memory_per_device(TASK)[3].total == 0
    plan.validate(TASK)


def test_both_memories_overflow_by_name():
    fits = in_host(B)
    (problem,) = plan_problems(TASK, [in_host(A), fits])
    assert problem.startswith("the memory of host 0 holds 128000 bytes, 28000 more than its 100000; ")
    assert problem.endswith("largest of its shards: 'b' 64000, 'a' 64000")
    assert not plan_problems(TASK, [in_host(A), dataclasses.replace(fits, devices=(2,))])
    (problem,) = plan_problems(TASK, [in_host(A, 0.9), B])
    assert problem.startswith("device 0 holds 140000")
    without = dataclasses.replace(TASK, topology=dataclasses.replace(TASK.topology, host_memory_bytes=0))
    (problem,) = plan_problems(without, [in_host(A), B])
    assert "64000 more than its 0: set host_memory_bytes of the topology, or use kernel fused" in problem


def test_copies_are_in_the_memory_of_devices():
    everywhere = dataclasses.replace(in_host(A), devices=(0, 1, 2, 3))
    problems = plan_problems(TASK, [everywhere, dataclasses.replace(B, devices=(1,))])
    assert any("0, 1, 2, 3 in host memory (kernel fused_uvm): expected one device" in text for text in problems)


def test_what_devices_cannot_hold_names_the_memory_of_hosts():
    small = dataclasses.replace(TASK, topology=dataclasses.replace(TASK.topology, memory_bytes=(8000,) * 4))
    with pytest.raises(
        NoFeasiblePlanError, match="a solver that uses the 100000 of each host, such as neuroshard_plus with cost gpu"
    ):
        check_possible(small)


def test_costs_that_do_not_know_host_memory_refuse_it():
    plan = ShardingPlan.of(TASK, [in_host(A), dataclasses.replace(B, devices=(1,))])
    (cost,) = make_cost("torchrec_rating").evaluate(TASK, [plan])
    assert cost.reason == (
        "cost 'torchrec_rating' does not price host memory, but table 'a' has kernel fused_uvm on device 0: "
        "use 'gpu' or 'roofline'"
    )


def test_plans_are_shown_with_both_memories():
    plan = ShardingPlan.of(TASK, [in_host(A, 0.25), dataclasses.replace(B, devices=(1,))])
    text = render_plan(TASK, plan, width=200)
    assert "shards: 1 fused_uvm_caching, 1 fused" in text
    assert "host 0 holds 62.5 KiB in its memory of 97.7 KiB (64.0 %)" in text
    other = ShardingPlan.of(TASK, [A, dataclasses.replace(B, devices=(1,))])
    text = render_diff(TASK, plan, other, width=200)
    assert "columns [0, 16) on device 0 (fused_uvm_caching 0.25) -> rows [0, 1000) columns [0, 16) on device 0" in text
    assert "0 tables moved, 1 cut differently" in text
