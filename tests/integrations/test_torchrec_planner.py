"""The planner in place of TorchRec's: alone, and on all ranks of a group."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from ranks import GROUP_TIMEOUT_S, run_ranks
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec_toys import MARKS, Toy, collection, config, topology

from shardgym import InputError, NoFeasiblePlanError, Shard, ShardGymError, ShardingPlan, ShardingTask, Topology
from shardgym.torchrec import (
    PlannerSettings,
    Reserve,
    ShardGymPlanner,
    from_torchrec,
    topology_from_torchrec,
)

pytestmark = MARKS


class Broken:
    """A solver that fails in a way of its own."""

    def solve(self, task: ShardingTask, cost: Any, seed: int = 0) -> ShardingPlan:
        raise ZeroDivisionError("by zero")


class Reversed:
    """A solver of one's own."""

    def solve(self, task: ShardingTask, cost: Any, seed: int = 0) -> ShardingPlan:
        return ShardingPlan.table_wise(
            task, [(task.num_devices - 1 - i) % task.num_devices for i in range(task.num_tables)]
        )


class Halves:
    """Table "users.id" in two halves of 8 columns, the others whole on the first device."""

    def solve(self, task: ShardingTask, cost: Any, seed: int = 0) -> ShardingPlan:
        users, *others = task.tables
        halves = [Shard(users.name, (0, 100), (8 * i, 8 * i + 8), i) for i in range(2)]
        return ShardingPlan.of(task, [*halves, *(Shard.whole(table, 0) for table in others)])


def planner(
    solver: Any = "size_greedy", devices: int = 2, constraints: dict[str, Any] | None = None, seed: int = 0
) -> ShardGymPlanner:
    return ShardGymPlanner(topology(devices), 16, constraints, PlannerSettings(solver, seed=seed))


def test_a_plan_is_made_by_the_solver_that_was_named() -> None:
    ours = planner(Reversed(), constraints={"users.id": ParameterConstraints(pooling_factors=[5.0])})
    plan = ours.plan(Toy(), [EmbeddingBagCollectionSharder()])
    assert [plan.plan[p][t].ranks for p, t in (("users", "id"), ("users", "country"), ("towers.items", "id"))] == [
        [1], [0], [1],
    ]  # fmt: skip
    assert str(plan.plan["users"]["id"].sharding_spec.shards[0].placement) == "rank:1/cpu"
    assert ours.task is not None
    assert ours.task.batch_size == 32
    assert ours.task.table("users.id").pooling_factor == 5.0
    assert from_torchrec(plan, ours.task) == ours.solution


def test_torchrecs_topology_is_taken_as_it_is() -> None:
    theirs = TorchRecTopology(
        world_size=16, compute_device="cuda", hbm_cap=2**20, local_world_size=8,
        hbm_mem_bw=2e9, intra_host_bw=3e8, inter_host_bw=2.5e7,
    )  # fmt: skip
    ours = topology_from_torchrec(theirs)
    assert (ours.num_devices, ours.fast_domain_size, ours.device) == (16, 8, "a100")
    assert ours.memory_bytes == (2**20,) * 16
    assert (ours.intra_bandwidth, ours.inter_bandwidth) == (3e11, 2.5e10)
    assert topology_from_torchrec(TorchRecTopology(2, "cpu", ddr_cap=1000)).device == "cpu-core"
    plan = ShardGymPlanner(theirs, 16, settings=PlannerSettings("size_greedy")).plan(Toy())
    shards = [s for tables in plan.plan.values() for t in tables.values() for s in t.sharding_spec.shards]
    assert {str(s.placement) for s in shards} <= {f"rank:{r}/cuda:{r % 8}" for r in range(16)}
    with pytest.raises(InputError, match="'mtia'"):
        topology_from_torchrec(TorchRecTopology(2, "mtia"))


@pytest.mark.parametrize(
    ("given", "device", "cost"),
    [
        (TorchRecTopology(2, "cuda", hbm_cap=2**20), "v100", "gpu"),  # TorchRec's own default bandwidth
        (TorchRecTopology(2, "cpu", ddr_cap=2**20), "cpu-core", "roofline"),
        (Topology.preset("dgx-h100", 2), "h100", "gpu"),
        (topology(), "cpu-core", "roofline"),
    ],
)
def test_a_known_card_is_planned_by_the_cost_that_models_it(
    given: Any, device: str, cost: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "shardgym.torchrec")
    ShardGymPlanner(given, 16, settings=PlannerSettings("lpt")).plan(Toy())
    first, *remarks = caplog.messages
    assert first == f"LPT places 3 tables on 2 devices by cost '{cost}' of '{device}'"
    # Nobody said that the GPUs are of this kind.
    assert [remark.partition(":")[0] for remark in remarks] == ["the plan is for GPUs like 'v100'"] * (device == "v100")
    caplog.clear()
    ShardGymPlanner(given, 16, settings=PlannerSettings("lpt", "torchrec_rating")).plan(Toy())
    assert caplog.messages == [f"LPT places 3 tables on 2 devices by cost 'torchrec_rating' of '{device}'"]


@pytest.mark.parametrize(
    ("constraints", "named"),
    [
        ({"pooling_factors": [3.0]}, ""),
        ({"sharding_types": ["column_wise"], "compute_kernels": ["fused", "dense"], "min_partition": 8}, ""),
        (
            {"sharding_types": ["row_wise"], "min_partition": 12},
            "sharding_types of 'users.id', min_partition of 'users.id'",
        ),
        ({"compute_kernels": ["fused_uvm"]}, "compute_kernels of 'users.id'"),
        ({"output_dtype": DataType.FP16}, "output_dtype of 'users.id'"),
    ],
)
def test_constraints_that_the_plan_does_not_follow_are_named(
    constraints: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    planner(Halves(), constraints={"users.id": ParameterConstraints(**constraints)}).plan(Toy())
    assert [remark.partition("read: ")[2] for remark in caplog.messages] == [named] * bool(named)


def test_a_whole_table_is_table_wise_whatever_it_is_called(caplog: pytest.LogCaptureFixture) -> None:
    whole = {"country": ParameterConstraints(sharding_types=["table_wise"])}
    plan = planner(Halves(), constraints=whole).plan(Toy())
    assert plan.plan["users"]["country"].sharding_type == "column_wise"  # as the other table of the collection
    assert caplog.messages == []


def test_tables_with_the_same_constraint_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    by_rows = ParameterConstraints(sharding_types=["row_wise"])
    planner(constraints=dict.fromkeys(["users.id", "country", "towers.items.id"], by_rows)).plan(Toy())
    assert caplog.messages[0].endswith("read: sharding_types of 'users.id' and 2 more")


def test_devices_full_of_tables_are_named_unless_there_is_a_reserve(caplog: pytest.LogCaptureFixture) -> None:
    tables = 4 * (100 * 16 + 20 * 8 + 50 * 24)
    full, half = (TorchRecTopology(1, "cpu", ddr_cap=memory) for memory in (tables + 1000, 2 * tables))
    caplog.clear()  # TorchRec's own
    ShardGymPlanner(full, 16, settings=PlannerSettings("lpt")).plan(Toy())
    (remark,) = caplog.messages
    assert remark.startswith(
        f"tables take {100 * tables / (tables + 1000):.1f} % of the memory of device 0, and nothing"
    )
    caplog.clear()
    ShardGymPlanner(full, 16, settings=PlannerSettings("lpt", reserve=Reserve(0.0, 0.0, 0.0))).plan(Toy())
    ShardGymPlanner(half, 16, settings=PlannerSettings("lpt")).plan(Toy())
    assert caplog.messages == []


def test_the_sharders_optimizer_counts() -> None:
    ours = planner()
    ours.plan(Toy(), [EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.ADAM})])
    assert ours.task is not None
    assert ours.task.optimizer == "adam"
    with pytest.raises(InputError, match="optimizer lamb is none of EXACT_SGD"):
        ours.plan(Toy(), [EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.LAMB})])


def test_modules_that_would_silently_stay_whole_are_refused() -> None:
    model = nn.Module()
    model.bags = collection(config("a", 50, 8))
    rows = EmbeddingConfig(num_embeddings=50, embedding_dim=8, name="s", feature_names=["s"])
    model.sequences = EmbeddingCollection(tables=[rows], device="meta")
    with pytest.raises(InputError, match="'sequences' is a EmbeddingCollection, which ShardGym does not plan"):
        planner().plan(model)
    assert list(planner().plan(model, [EmbeddingBagCollectionSharder()]).plan) == ["bags"]
    with pytest.raises(InputError, match="expected EmbeddingBagCollectionSharder"):
        planner().plan(model, [])


def test_wrong_arguments_are_refused_when_the_planner_is_made() -> None:
    with pytest.raises(InputError, match="unknown solver"):
        planner("nonsense")
    with pytest.raises(InputError, match="topology: expected a Topology"):
        ShardGymPlanner("dgx-a100", 16)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="settings: expected a PlannerSettings"):
        ShardGymPlanner(topology(), 16, None, "lpt")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="seed -1"):
        planner(seed=-1)
    with pytest.raises(InputError, match="batch_size"):
        ShardGymPlanner(topology(), 0)


def test_without_a_group_there_is_no_collective_plan() -> None:
    with pytest.raises(InputError, match="needs a process group"):
        planner().collective_plan(Toy())


def test_all_ranks_get_the_plan_of_the_first() -> None:
    expected = planner("random").plan(Toy()).plan

    def collect(rank: int) -> bool:
        ours = planner("random", seed=rank)  # the plan must be that of rank 0
        return bool(ours.collective_plan(Toy(), None, dist.group.WORLD).plan == expected)

    assert run_ranks(2, collect) == [True, True]


@pytest.mark.parametrize(
    ("make_planner", "model", "kind", "message"),
    [
        (
            lambda: planner(Broken()),
            Toy(),
            ShardGymError,
            "planning failed on the first rank: ZeroDivisionError: by zero",
        ),
        (planner, nn.Linear(2, 2), InputError, "Linear has no EmbeddingBagCollection"),
        (planner, collection(config("a", 2**20, 8)), NoFeasiblePlanError, "a"),
        (lambda: planner(devices=3), Toy(), InputError, "the process group has 2 ranks, the topology 3 devices"),
    ],
)
def test_an_error_reaches_every_rank_at_once(make_planner: Any, model: nn.Module, kind: type, message: str) -> None:
    start = time.monotonic()
    first, second = run_ranks(2, lambda rank: make_planner().collective_plan(model))
    assert time.monotonic() - start < GROUP_TIMEOUT_S
    assert type(first) is type(second) is kind
    assert message in str(first)
    assert str(first) == str(second)
