"""RecShard: popular rows into the memory of devices, the others into that of hosts."""

import dataclasses

import numpy as np
import pytest

from baselines.greedy import LookupGreedy, SizeGreedy
from baselines.recshard.solver import RecShard
from neuroshard.row_splits import splits_of
from shardgym import EmbeddingTable, NoFeasiblePlanError, ShardingTask, Topology, UniformIds, ZipfIds, make_solver
from shardgym.costs import make_cost

COST = make_cost("gpu")


def task_of(tables, devices=2, fill=3.0, host_share=1.5, **options):
    """Devices that have room for one third of the tables, and hosts for all of them."""
    task = ShardingTask(tuple(tables), Topology.preset("dgx-a100", devices), 8192, **options)
    topology = dataclasses.replace(
        task.topology,
        memory_bytes=(int(task.total_bytes / fill / devices),) * devices,
        host_memory_bytes=int(task.total_bytes * host_share),
    )
    return dataclasses.replace(task, topology=topology)


def table(name, rows=200_000, s=1.1, order="by_frequency", width=64, pooling=10.0):
    return EmbeddingTable(name, rows, width, pooling, ZipfIds(s, row_order=order) if s else UniformIds())


def total_ms(task, plan, cost=COST):
    (answer,) = cost.evaluate(task, [plan])
    assert answer.feasible, answer.reason
    return answer.total_ms


def test_popular_rows_are_in_the_memory_of_devices():
    task = task_of([table(f"t{n}", s=0.7 + 0.1 * n) for n in range(6)])
    plan = RecShard().solve(task, COST)
    plan.validate(task)
    assert plan.leaves_devices
    for of in task.tables:
        assert plan.kind_of(of.name, task) == "table_wise"
        for shard in plan.of_table(of.name):
            assert (shard.compute_kernel == "fused") == (shard.rows[0] == 0)
    blind = [total_ms(task, solver.solve(task, COST)) for solver in (SizeGreedy(), LookupGreedy())]
    assert total_ms(task, plan) < min(blind) / 2


@pytest.mark.parametrize(("order", "row_cuts"), [("scattered", True), (None, True), ("by_frequency", False)])
def test_rows_in_no_known_order_get_caches(order, row_cuts):
    task = task_of([table(f"t{n}", order=order) for n in range(5)])
    plan = RecShard(row_cuts=row_cuts).solve(task, COST)
    assert all(shard.num_rows == 200_000 for shard in plan.shards)
    assert any(shard.cache_load_factor for shard in plan.shards)
    assert total_ms(task, plan) < total_ms(task, SizeGreedy().solve(task, COST))


def test_splits_save_less_and_less_per_byte():
    task = task_of([table("skewed"), table("uniform", s=0), table("anywhere", order=None), table("few", rows=3)])
    for splits in splits_of(task, COST.additive(), in_host=True, row_cuts=True):
        sizes, times = (np.array([getattr(s, name) for s in splits], dtype=float) for name in ("device_bytes", "ms"))
        assert (np.diff(sizes) > 0).all()
        assert (np.diff(times) < 0).all()
        assert (np.diff(np.diff(times) / np.diff(sizes)) > 0).all()
        assert splits[-1].shards[0].compute_kernel == "fused"
        assert splits[-1].host_bytes == 0


def test_hosts_have_a_limit_too():
    tables = [table(f"t{n}") for n in range(6)]
    tight = task_of(tables, fill=3.0, host_share=0.75)
    plan = RecShard().solve(tight, COST)
    plan.validate(tight)
    with pytest.raises(NoFeasiblePlanError, match=r"and all hosts \d+.*too few"):
        RecShard().solve(task_of(tables, fill=3.0, host_share=0.5), COST)


def test_without_memory_of_hosts_tables_are_placed_whole():
    task = task_of([table(f"t{n}", width=4 * (n + 1)) for n in range(6)], fill=0.6, host_share=0)
    for cost in (COST, make_cost("roofline")):
        plan = RecShard().solve(task, cost)
        assert {shard.compute_kernel for shard in plan.shards} == {"fused"}
        assert total_ms(task, plan, cost) <= 1.02 * total_ms(task, LookupGreedy().solve(task, cost), cost)


def test_a_plan_to_start_from_is_never_made_worse():
    task = task_of([table(f"t{n}") for n in range(4)])
    start = SizeGreedy().solve(task, COST)
    seen = []
    plan = RecShard().solve(
        task, COST, initial_plan=start, time_limit_s=0.0, observer=lambda found, ms: seen.append((found, ms))
    )
    assert total_ms(task, plan) <= total_ms(task, start)
    assert seen[0][0] == start
    assert seen[-1][0] == plan
    assert RecShard().solve(task, COST) == RecShard().solve(task, COST, seed=3)


def test_the_base_of_boards_uses_hosts_where_tables_exceed_the_devices_and_the_oracle_prices_them():
    task = task_of([table(f"t{n}") for n in range(6)])
    for name in ("lpt", "lpt_whole"):
        plan = make_solver(name).solve(task, COST)
        plan.validate(task)
        assert plan.leaves_devices
        with pytest.raises(NoFeasiblePlanError):
            make_solver(name).solve(task, make_cost("torchrec_rating"))
    roomy = task_of([table(f"t{n}") for n in range(3)], fill=0.9)  # where halves fit on devices
    assert not make_solver("lpt").solve(roomy, COST).leaves_devices


def test_greedy_rules_put_what_devices_have_no_room_for_into_the_memory_of_hosts():
    task = task_of([table(f"t{n}", rows=100_000 * (n + 1)) for n in range(6)])
    plan = SizeGreedy().solve(task, COST)
    plan.validate(task)
    kernels = {shard.table: shard.compute_kernel for shard in plan.shards}
    assert set(kernels.values()) == {"fused", "fused_uvm"}
    without = dataclasses.replace(task, topology=dataclasses.replace(task.topology, host_memory_bytes=0))
    with pytest.raises(NoFeasiblePlanError, match="fits on no device"):
        SizeGreedy().solve(without, COST)
