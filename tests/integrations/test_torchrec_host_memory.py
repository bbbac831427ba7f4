"""Kernels fused_uvm and fused_uvm_caching out to TorchRec and back, and in the constraints of a planner."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

pytest.importorskip("torchrec.modules")

from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import CacheParams
from torchrec_toys import MARKS, Toy

from shardgym import InputError, NoFeasiblePlanError, Shard, ShardingPlan, ShardingTask, Topology
from shardgym.torchrec import (
    PlannerSettings,
    ShardGymPlanner,
    from_torchrec,
    load,
    save,
    task_from_model,
    to_torchrec,
    topology_from_torchrec,
)

pytestmark = MARKS

GPUS = Topology(4, memory_bytes=2**20, device="a100", fast_domain_size=2, host_memory_bytes=2**20)


@pytest.fixture
def task() -> ShardingTask:
    return task_from_model(Toy(), GPUS, 64)


def plan_of(task: ShardingTask) -> ShardingPlan:
    """One table in halves with a cache for each, one in the memory of a host, one on a device."""
    users, country, items = task.tables
    halves = [
        Shard(users.name, (0, 100), (8 * i, 8 * i + 8), i, "fused_uvm_caching", cache_load_factor=0.3) for i in range(2)
    ]
    host = dataclasses.replace(Shard.whole(country, 2), compute_kernel="fused_uvm")
    return ShardingPlan.of(task, [*halves, host, Shard.whole(items, 3)])


def test_kernels_and_caches_leave_and_come_back(task: ShardingTask, tmp_path: Path) -> None:
    plan = plan_of(task)
    theirs = to_torchrec(plan, task, Toy())
    users = theirs.plan["users"]
    assert (users["id"].compute_kernel, users["id"].cache_params) == ("fused_uvm_caching", CacheParams(load_factor=0.3))
    assert (users["country"].compute_kernel, users["country"].cache_params) == ("fused_uvm", None)
    assert from_torchrec(theirs, task) == plan
    save(theirs, tmp_path / "plan.json")
    assert from_torchrec(load(tmp_path / "plan.json", Toy()), task) == plan
    users["id"] = dataclasses.replace(users["id"], cache_params=None)
    assert {shard.cache_load_factor for shard in from_torchrec(theirs, task).of_table("users.id")} == {0.2}


def test_one_table_has_one_kernel_in_torchrec(task: ShardingTask) -> None:
    users, *others = task.tables
    hot = Shard(users.name, (0, 10), (0, 16), 0)
    cold = Shard(users.name, (10, 100), (0, 16), 0, "fused_uvm")
    plan = ShardingPlan.of(task, [hot, cold, *(Shard.whole(table, 1) for table in others)])
    with pytest.raises(InputError, match=r"'users.id' has kernel fused with rows \[0, 10\).*, and fused_uvm with rows"):
        to_torchrec(plan, task)
    with pytest.raises(InputError, match="which FBGEMM has for GPUs alone: export for device_type='cuda'"):
        to_torchrec(plan_of(task), task, device_type="cpu")


@pytest.mark.parametrize("params", [None, CacheParams(load_factor=0.5, reserved_memory=1.0)])
def test_the_planner_obeys_kernels(params: CacheParams | None, caplog: pytest.LogCaptureFixture) -> None:
    asked = {
        "users.id": ParameterConstraints(compute_kernels=["fused_uvm_caching"], cache_params=params),
        "users.country": ParameterConstraints(compute_kernels=["fused_uvm"], sharding_types=["column_wise"]),
        "towers.items.id": ParameterConstraints(compute_kernels=["fused", "fused_uvm"], sharding_types=["table_wise"]),
    }
    planner = ShardGymPlanner(GPUS, 16, asked, PlannerSettings("lpt", strict=True))
    found = planner.plan(Toy()).plan
    assert found["users"]["id"].compute_kernel == "fused_uvm_caching"
    expected = CacheParams(load_factor=0.2) if params is None else params
    assert found["users"]["id"].cache_params == expected
    assert found["users"]["country"].compute_kernel == "fused_uvm"
    assert found["towers.items"]["id"].compute_kernel == "fused"
    assert planner.last is not None
    assert planner.last.cost.feasible
    assert caplog.messages == []


def test_tables_that_devices_have_no_room_for_are_planned_where_they_are_asked_for() -> None:
    small = dataclasses.replace(GPUS, memory_bytes=(1000,) * 4)
    names = "users.id", "users.country", "towers.items.id"
    with pytest.raises(NoFeasiblePlanError):
        ShardGymPlanner(dataclasses.replace(small, host_memory_bytes=0), 16).plan(Toy())
    # Nobody said which tables: the solver, which could give parts of a table different kernels, gives each one.
    planner = ShardGymPlanner(small, 16, settings=PlannerSettings("neuroshard_plus", strict=True))
    found = planner.plan(Toy()).plan
    assert "fused_uvm" in {of.compute_kernel[:9] for module in found.values() for of in module.values()}
    asked = dict.fromkeys(names, ParameterConstraints(compute_kernels=["fused_uvm"]))
    planner = ShardGymPlanner(small, 16, asked, PlannerSettings(strict=True))
    planner.plan(Toy())
    assert planner.last is not None
    assert {shard.compute_kernel for shard in planner.last.plan.shards} == {"fused_uvm"}


def test_memory_and_bus_of_torchrecs_hosts() -> None:
    theirs = TorchRecTopology(8, "cuda", local_world_size=4, ddr_cap=2**30, hbm_to_ddr_mem_bw=1e7)
    ours = topology_from_torchrec(theirs)
    assert (ours.host_memory_bytes, ours.host_bandwidth) == (4 * 2**30, 1e10)
    assert topology_from_torchrec(TorchRecTopology(2, "cpu")).host_memory_bytes == 0
