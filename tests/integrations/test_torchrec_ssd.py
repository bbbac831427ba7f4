"""Kernel key_value out to TorchRec and back, in the constraints of a planner, and what TorchRec makes of its cache."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

pytest.importorskip("torchrec.modules")

from torchrec.distributed.embedding_sharding import group_tables
from torchrec.distributed.embedding_types import EmbeddingComputeKernel, ShardedEmbeddingTable
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import CacheParams, KeyValueParams
from torchrec.modules.embedding_configs import DataType, PoolingType
from torchrec_toys import MARKS, Toy

from shardgym import InputError, NoFeasiblePlanError, Shard, ShardingPlan, ShardingTask, Topology
from shardgym.torchrec import (
    PlannerSettings,
    ShardGymPlanner,
    export_plan,
    from_torchrec,
    import_plan,
    load,
    save,
    task_from_model,
    to_torchrec,
    topology_from_torchrec,
)

pytestmark = MARKS

GPUS = Topology(4, memory_bytes=2**20, device="a100", fast_domain_size=2, ssd_bytes=2**20)


@pytest.fixture
def task() -> ShardingTask:
    return dataclasses.replace(task_from_model(Toy(), GPUS, 64), optimizer="rowwise_adagrad")


def plan_of(task: ShardingTask, share: float) -> ShardingPlan:
    """One table in halves on SSDs, the others on a device."""
    users, *others = task.tables
    halves = [Shard(users.name, (0, 100), (8 * i, 8 * i + 8), i, "key_value", share) for i in range(2)]
    return ShardingPlan.of(task, [*halves, *(Shard.whole(table, 3) for table in others)])


def test_rows_on_ssds_leave_and_come_back(task: ShardingTask, tmp_path: Path) -> None:
    plan = plan_of(task, 0.5)
    exported = export_plan(plan, task, Toy())
    assert any("'users.id' is on SSDs with another cache_load_factor than 0.2" in note for note in exported.notes)
    theirs = exported.sharding_plan
    users = theirs.plan["users"]
    assert (users["id"].compute_kernel, users["id"].cache_params) == ("key_value", CacheParams(load_factor=0.5))
    assert from_torchrec(theirs, task) == plan
    save(theirs, tmp_path / "plan.json")
    assert from_torchrec(load(tmp_path / "plan.json", Toy()), task) == plan
    users["id"] = dataclasses.replace(users["id"], cache_params=None)
    assert from_torchrec(theirs, task) == plan_of(task, 0.2)
    assert not any("SSDs" in note for note in export_plan(plan_of(task, 0.2), task).notes)
    with pytest.raises(InputError, match="kernel key_value, which FBGEMM has for GPUs alone"):
        to_torchrec(plan, task, device_type="cpu")


def test_caches_that_plans_do_not_hold_are_named(task: ShardingTask) -> None:
    theirs = to_torchrec(plan_of(task, 0.2), task)
    users = theirs.plan["users"]
    users["id"] = dataclasses.replace(users["id"], key_value_params=KeyValueParams(ssd_storage_directory="/data"))
    assert import_plan(theirs, task).remarks == []
    users["id"] = dataclasses.replace(users["id"], key_value_params=KeyValueParams(max_l1_cache_size=3))
    imported = import_plan(theirs, task)
    assert imported.plan == plan_of(task, 0.2)
    assert imported.remarks == [
        "max_l1_cache_size, a limit for all caches of a rank, of table 'users.id' is left out: plans do not hold it"
    ]
    with pytest.raises(InputError, match="max_l1_cache_size"):
        import_plan(theirs, task, strict=True)


def test_torchrec_forgets_the_share_of_a_cache() -> None:
    """What the note of an export says; a version that keeps it needs no such note."""
    table = ShardedEmbeddingTable(
        name="t", num_embeddings=1000, embedding_dim=16, local_rows=1000, local_cols=16, embedding_names=["t"],
        feature_names=["t"], data_type=DataType.FP32, pooling=PoolingType.SUM,
        compute_kernel=EmbeddingComputeKernel.KEY_VALUE, fused_params={"cache_load_factor": 0.5},
    )  # fmt: skip
    ((group,),) = group_tables([[table]])
    assert "cache_load_factor" not in (group.fused_params or {})


@pytest.mark.parametrize("params", [None, KeyValueParams(ssd_storage_directory="/data@local_rank")])
def test_the_planner_obeys(params: KeyValueParams | None, caplog: pytest.LogCaptureFixture) -> None:
    asked = {
        "users.id": ParameterConstraints(
            compute_kernels=["key_value"], key_value_params=params, sharding_types=["table_wise"]
        ),
        "towers.items.id": ParameterConstraints(compute_kernels=["fused", "key_value"], sharding_types=["table_wise"]),
    }
    settings = PlannerSettings(strict=True, optimizer="rowwise_adagrad")
    planner = ShardGymPlanner(GPUS, 16, asked, settings)
    found = planner.plan(Toy()).plan
    users = found["users"]["id"]
    assert (users.compute_kernel, users.cache_params) == ("key_value", CacheParams(load_factor=0.2))
    assert users.key_value_params == params
    assert found["towers.items"]["id"].compute_kernel == "fused"
    assert planner.last is not None
    assert planner.last.cost.feasible
    assert caplog.messages == []


def test_the_planner_puts_no_other_tables_on_ssds() -> None:
    """As TorchRec's own, which has the kernel only where constraints ask for it."""
    small = dataclasses.replace(GPUS, memory_bytes=(1000,) * 4)
    settings = PlannerSettings(strict=True, optimizer="rowwise_adagrad")
    with pytest.raises(NoFeasiblePlanError):
        ShardGymPlanner(small, 16, settings=settings).plan(Toy())
    names = "users.id", "users.country", "towers.items.id"
    asked = dict.fromkeys(names, ParameterConstraints(compute_kernels=["key_value"]))
    roomier = dataclasses.replace(small, memory_bytes=(4000,) * 4)
    planner = ShardGymPlanner(roomier, 16, asked, settings)
    planner.plan(Toy())
    assert planner.last is not None
    assert {shard.compute_kernel for shard in planner.last.plan.shards} == {"key_value"}


def test_ssds_of_torchrecs_topology() -> None:
    assert topology_from_torchrec(TorchRecTopology(2, "cuda", ssd_cap=2**30)).ssd_bytes == 2**30
    assert topology_from_torchrec(TorchRecTopology(2, "cpu")).ssd_bytes == 0
