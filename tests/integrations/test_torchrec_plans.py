"""Plans for TorchRec, plans of TorchRec, and files of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ParameterSharding
from torchrec.distributed.types import ShardingPlan as TorchRecPlan
from torchrec.modules.embedding_configs import PoolingType
from torchrec_toys import MARKS, Toy, collection, config, topology

from shardgym import InfeasiblePlanError, InputError, Shard, ShardingPlan, ShardingTask
from shardgym.torchrec import from_torchrec, load, model_from_task, save, task_from_model, to_torchrec

pytestmark = MARKS


@pytest.fixture
def task() -> ShardingTask:
    return task_from_model(Toy(), topology(4), 64)


def columns(name: str, rows: int, *pieces: tuple[int, int, int]) -> list[Shard]:
    return [Shard(name, (0, rows), (first, end), device) for first, end, device in pieces]


def by_rows(name: str, width: int, *pieces: tuple[int, int, int]) -> list[Shard]:
    return [Shard(name, (first, end), (0, width), device) for first, end, device in pieces]


#: Whole, cut into uneven columns with two pieces on one rank, and cut by rows.
def mixed(task: ShardingTask) -> ShardingPlan:
    return ShardingPlan.of(task, [
        *columns("users.id", 100, (0, 4, 3), (4, 12, 1), (12, 16, 3)),
        *by_rows("users.country", 8, (0, 5, 0), (5, 10, 1), (10, 15, 2), (15, 20, 3)),
        Shard.whole(task.table("towers.items.id"), 2),
    ])  # fmt: skip


def test_types_ranks_and_shards_are_what_the_plan_says(task: ShardingTask) -> None:
    plan = to_torchrec(mixed(task), task, Toy(), ranks_per_host=2).plan
    assert list(plan) == ["users", "towers.items"]
    user = plan["users"]["id"]
    assert (user.sharding_type, user.compute_kernel, user.ranks) == ("column_wise", "fused", [3, 1, 3])
    assert [(s.shard_offsets, s.shard_sizes, str(s.placement)) for s in user.sharding_spec.shards] == [
        ([0, 0], [100, 4], "rank:3/cuda:1"),
        ([0, 4], [100, 8], "rank:1/cuda:1"),
        ([0, 12], [100, 4], "rank:3/cuda:1"),
    ]
    assert (plan["users"]["country"].sharding_type, plan["users"]["country"].ranks) == ("row_wise", [0, 1, 2, 3])
    assert (plan["towers.items"]["id"].sharding_type, plan["towers.items"]["id"].ranks) == ("table_wise", [2])


def test_ranks_of_a_host_are_the_fast_domain_by_default(task: ShardingTask) -> None:
    task = dataclasses.replace(task, topology=dataclasses.replace(task.topology, fast_domain_size=2))
    exported = to_torchrec(mixed(task), task)
    assert str(exported.plan["towers.items"]["id"].sharding_spec.shards[0].placement) == "rank:2/cuda:0"


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_there_and_back_gives_the_same_plan(task: ShardingTask, device_type: str, tmp_path: Path) -> None:
    plan = mixed(task)
    exported = to_torchrec(plan, task, device_type=device_type)
    assert from_torchrec(exported, task) == plan
    save(exported, tmp_path / "plan.json")
    assert load(tmp_path / "plan.json").plan == exported.plan
    kinds = {str(s.placement).partition("/")[2][:4] for s in exported.plan["users"]["id"].sharding_spec.shards}
    assert kinds == {device_type}


def test_equal_pieces_on_one_host_are_table_row_wise(task: ShardingTask) -> None:
    shards = [s for s in mixed(task).shards if s.table != "users.country"]
    plan = ShardingPlan.of(task, [*shards, *by_rows("users.country", 8, (0, 10, 2), (10, 20, 3))])
    assert to_torchrec(plan, task, ranks_per_host=2).plan["users"]["country"].sharding_type == "table_row_wise"
    uneven = ShardingPlan.of(task, [*shards, *by_rows("users.country", 8, (0, 9, 2), (9, 20, 3))])
    for wrong, per_host in ((plan, 4), (uneven, 2)):
        with pytest.raises(InputError, match=r"'users.country' is cut by rows over devices 2, 3"):
            to_torchrec(wrong, task, ranks_per_host=per_host)


def test_unequal_pieces_by_rows_are_refused(task: ShardingTask) -> None:
    """TorchRec would accept them and send ids to the wrong ranks."""
    shards = [s for s in mixed(task).shards if s.table != "users.country"]
    plan = ShardingPlan.of(
        task, [*shards, *by_rows("users.country", 8, (0, 4, 0), (4, 10, 1), (10, 15, 2), (15, 20, 3))]
    )
    with pytest.raises(InputError, match="over devices 0, 1, 2, 3: TorchRec needs pieces of"):
        to_torchrec(plan, task)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (((0, 4, 3), (4, 12, 1), (12, 16, 3)), [(0, 4, 3), (4, 12, 1), (12, 16, 3)]),
        (((0, 4, 2), (4, 12, 2), (12, 16, 0)), [(0, 12, 2), (12, 16, 0)]),
        (((0, 8, 2), (8, 12, 1), (12, 16, 2)), [(0, 4, 2), (4, 8, 2), (8, 12, 1), (12, 16, 2)]),
    ],
    ids=["one width stays", "neighbours are joined", "others are cut"],
)
def test_pieces_on_one_rank_get_one_width(
    task: ShardingTask, pieces: tuple[tuple[int, int, int], ...], expected: list[tuple[int, int, int]]
) -> None:
    """TorchRec fails on that rank alone otherwise."""
    shards = [s for s in mixed(task).shards if s.table != "users.id"]
    plan = ShardingPlan.of(task, [*shards, *columns("users.id", 100, *pieces)])
    exported = to_torchrec(plan, task).plan["users"]["id"]
    assert [(s.shard_offsets[1], s.shard_offsets[1] + s.shard_sizes[1]) for s in exported.sharding_spec.shards] == [
        (first, end) for first, end, _ in expected
    ]
    assert exported.ranks == [rank for *_, rank in expected]


def test_a_table_cut_both_ways_is_refused(task: ShardingTask) -> None:
    shards = [s for s in mixed(task).shards if s.table != "users.country"]
    corners = ((0, 0), (0, 4), (10, 0), (10, 4))
    grid = [Shard("users.country", (r, r + 10), (c, c + 4), device) for device, (r, c) in enumerate(corners)]
    with pytest.raises(InputError, match="cut by rows and by columns"):
        to_torchrec(ShardingPlan.of(task, [*shards, *grid]), task)


def test_plans_that_cannot_run_do_not_leave(task: ShardingTask) -> None:
    shards = mixed(task).shards
    with pytest.raises(InfeasiblePlanError, match="missing"):
        to_torchrec(ShardingPlan.of(task, shards[1:]), task)
    with pytest.raises(InfeasiblePlanError, match="on device 4"):
        to_torchrec(ShardingPlan.of(task, [dataclasses.replace(shards[0], devices=(4,)), *shards[1:]]), task)
    narrow = [*columns("users.id", 100, (0, 6, 0), (6, 16, 1)), *(s for s in shards if s.table != "users.id")]
    with pytest.raises(InfeasiblePlanError, match="divisible by 4"):
        to_torchrec(ShardingPlan.of(task, narrow), task)
    with pytest.raises(InputError, match="plan is for task"):
        to_torchrec(mixed(task), dataclasses.replace(task, batch_size=65))
    with pytest.raises(InputError, match="device_type"):
        to_torchrec(mixed(task), task, device_type="gpu")  # type: ignore[arg-type]


def test_a_plan_for_another_model_is_refused(task: ShardingTask) -> None:
    smaller = Toy()
    smaller.towers.items = collection(config("id", 49, 24))
    with pytest.raises(InputError, match=r"'towers.items.id' is 49 x 24 there, and 50 x 24 in the task"):
        to_torchrec(mixed(task), task, smaller)
    with pytest.raises(InputError, match=r"this one has no table 'users.id'"):
        to_torchrec(mixed(task), task, collection(config("id", 50, 24)))
    larger = Toy()
    larger.more = collection(config("id", 50, 24))
    with pytest.raises(InputError, match=r"no shard of table 'more.id'"):
        to_torchrec(mixed(task), task, larger)


def test_mean_pooling_next_to_row_wise_tables_is_refused(task: ShardingTask) -> None:
    with pytest.raises(InputError, match=r"mean-pooled table 'users.country' and row-wise table 'users.country'"):
        to_torchrec(mixed(task), task, Toy(pooling=PoolingType.MEAN))
    whole = ShardingPlan.table_wise(task, [0, 1, 2])
    to_torchrec(whole, task, Toy(pooling=PoolingType.MEAN))


def test_the_stock_planners_plans_can_be_read(task: ShardingTask) -> None:
    constraints = {
        name: ParameterConstraints(
            sharding_types=["table_wise", "column_wise"], compute_kernels=["fused"], min_partition=8
        )
        for name in ("id", "country")
    }
    planner = EmbeddingShardingPlanner(
        topology=TorchRecTopology(4, "cuda"),
        batch_size=16,
        constraints=constraints,
        storage_reservation=FixedPercentageStorageReservation(0.0),
    )
    stock = planner.plan(model_from_task(task), [EmbeddingBagCollectionSharder()])
    plan = from_torchrec(stock, task)
    plan.validate(task)
    for module, tables in to_torchrec(plan, task).plan.items():
        for name, sharding in tables.items():
            before = {(tuple(s.shard_offsets), str(s.placement)) for s in stock.plan[module][name].sharding_spec.shards}
            assert {(tuple(s.shard_offsets), str(s.placement)) for s in sharding.sharding_spec.shards} == before


def test_what_plans_cannot_say_is_refused(task: ShardingTask) -> None:
    exported = to_torchrec(mixed(task), task)
    with pytest.raises(InputError, match=r"no table 'towers.items.id'"):
        from_torchrec(TorchRecPlan({"users": exported.plan["users"]}), task)
    with pytest.raises(InputError, match=r"unknown table of the TorchRec plan 'other.id'"):
        from_torchrec(TorchRecPlan({**exported.plan, "other": exported.plan["users"]}), task)
    users = exported.plan["users"]
    users["country"] = dataclasses.replace(users["country"], compute_kernel="fused_uvm")
    with pytest.raises(InputError, match="kernel fused_uvm, which keeps rows outside"):
        from_torchrec(exported, task)
    users["country"] = ParameterSharding("data_parallel", "dense", [0, 1])
    with pytest.raises(InputError, match=r"replicated on every rank: .* sharding_types of table_wise"):
        from_torchrec(exported, task)
    with pytest.raises(InputError, match="sharding_plan: expected a ShardingPlan"):
        from_torchrec(mixed(task), task)


def test_shards_that_miss_columns_are_refused(task: ShardingTask) -> None:
    exported = to_torchrec(mixed(task), task)
    exported.plan["users"]["id"].sharding_spec.shards.pop()
    with pytest.raises(InfeasiblePlanError, match=r"columns \[12, 16\) of table 'users.id' are missing"):
        from_torchrec(exported, task)


def test_damaged_files_are_refused(task: ShardingTask, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save(to_torchrec(mixed(task), task), path)
    data = json.loads(path.read_text())
    data["modules"]["users"]["id"]["shards"][0]["placement"] = "cuda:0"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"users.id.shards.0.placement: expected text that matches"):
        load(path)
    path.write_text(mixed(task).to_json())
    with pytest.raises(InputError, match=r"this is a shardgym.plan/2, expected shardgym.torchrec_plan/1"):
        load(path)


def test_a_file_for_another_model_is_refused(task: ShardingTask, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save(to_torchrec(mixed(task), task), path)
    assert load(path, Toy()).plan == load(path).plan
    wider = Toy()
    wider.towers.items = collection(config("id", 50, 28))
    with pytest.raises(InputError, match=r"table 'towers.items.id' is 50 x 24 in the plan, 50 x 28 in the model"):
        load(path, wider)
    larger = Toy()
    larger.more = collection(config("id", 50, 24))
    with pytest.raises(InputError, match=r"table 'more.id' is only in the model"):
        load(path, larger)
    with pytest.raises(InputError, match=r"table 'users.id' is only in the plan"):
        load(path, Toy().towers)
