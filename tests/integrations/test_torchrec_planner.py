"""The planner in place of TorchRec's: alone, and on all ranks of a group."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from ranks import GROUP_TIMEOUT_S, run_ranks
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import BoundsCheckMode, CacheParams, KeyValueParams
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec_toys import MARKS, Toy, collection, config, topology

from shardgym import (
    EmbeddingTable,
    InputError,
    NoFeasiblePlanError,
    Shard,
    ShardGymError,
    ShardingPlan,
    ShardingTask,
    Topology,
    make_cost,
    make_solver,
)  # fmt: skip
from shardgym.torchrec import (
    PlannerSettings,
    Reserve,
    ShardGymPlanner,
    from_torchrec,
    topology_from_torchrec,
)
from shardgym.torchrec.following import Rule, follow

pytestmark = MARKS


WHOLE: Any = frozenset(["table_wise"])


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


class ByRows:
    """One table cut evenly by rows over all devices, the others whole on the first device."""

    def __init__(self, name: str) -> None:
        self.name = name

    def solve(self, task: ShardingTask, cost: Any, seed: int = 0) -> ShardingPlan:
        table = task.table(self.name)
        block = table.num_embeddings // task.num_devices
        width = (0, table.embedding_dim)
        pieces = [Shard(table.name, (d * block, (d + 1) * block), width, d) for d in range(task.num_devices)]
        others = [Shard.whole(other, 0) for other in task.tables if other is not table]
        return ShardingPlan.of(task, [*pieces, *others])


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
    assert ours.last is not None
    task = ours.last.task
    assert task.batch_size == 32
    assert task.table("users.id").pooling_factor == 5.0
    assert from_torchrec(plan, task) == ours.last.plan
    assert ours.last.cost == make_cost("roofline").evaluate(task, [ours.last.plan])[0]


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
    ("field", "value", "message"),
    [
        ("sharding_types", ["column_wise"], ""),
        ("sharding_types", ["table_wise"], ""),
        ("sharding_types", ["row_wise", "column_wise"], ""),
        ("compute_kernels", ["fused", "dense"], ""),
        ("compute_kernels", ["fused_uvm"], "the plan has kernel fused, which keeps rows in the memory of the device"),
        ("min_partition", 8, ""),
        ("min_partition", 12, ""),
        ("pooling_factors", [3.0], ""),
        ("num_poolings", [2.0], ""),
        ("num_poolings", [1.5], "they make 1.5 bags per sample, tasks have whole numbers; 2 are counted"),
        ("batch_sizes", [16], ""),
        ("batch_sizes", [20], "they make 1.25 bags per sample, tasks have whole numbers; 1 are counted"),
        ("is_weighted", True, ""),
        ("cache_params", CacheParams(load_factor=0.5), "tables are kept whole in the memory of devices"),
        ("enforce_hbm", True, ""),
        ("stochastic_rounding", False, ""),
        ("bounds_check_mode", BoundsCheckMode.NONE, ""),
        ("feature_names", ["id_ids"], ""),
        ("feature_names", ["ids"], "the model's table has features id_ids"),
        ("output_dtype", DataType.FP32, ""),
        (
            "output_dtype",
            DataType.FP16,
            "a task communicates all tables in one precision, FP32, or FP16 where all tables ask for it",
        ),
        ("device_group", "cpu", ""),
        ("device_group", "cuda", "the topology's devices are of type cpu"),
        ("key_value_params", KeyValueParams(), "tables are kept whole in the memory of devices"),
        ("use_virtual_table", True, "tables are kept whole in the memory of devices"),
    ],
)
def test_each_field_of_constraints_is_followed_or_named(
    field: str, value: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    constraints = {"users.id": ParameterConstraints(**{field: value})}
    planner(Halves(), constraints=constraints).plan(Toy())
    assert caplog.messages == [f"{field} of 'users.id' is not followed: {message}"] * bool(message)
    strict = ShardGymPlanner(topology(), 16, constraints, PlannerSettings(Halves(), strict=True))
    if message:
        with pytest.raises(InputError, match=f"strict: {field} of 'users.id' is not followed: "):
            strict.plan(Toy())
        assert strict.last is None
    else:
        assert strict.plan(Toy())


def test_all_fields_of_constraints_are_tried_above() -> None:
    (marker,) = (m for m in test_each_field_of_constraints_is_followed_or_named.pytestmark if m.name == "parametrize")
    assert {field for field, *_ in marker.args[1]} == {field.name for field in dataclasses.fields(ParameterConstraints)}


def test_a_field_of_a_later_torchrec_is_named(caplog: pytest.LogCaptureFixture) -> None:
    later = dataclasses.make_dataclass("Later", [("color", str, "red")], bases=(ParameterConstraints,))
    planner("lpt", constraints={"users.id": later()}).plan(Toy())
    assert caplog.messages == ["color of 'users.id' is not followed: ShardGym does not know this field"]


def test_what_no_cost_depends_on_is_passed_on() -> None:
    asked = ParameterConstraints(
        enforce_hbm=True, stochastic_rounding=False, bounds_check_mode=BoundsCheckMode.NONE, output_dtype=DataType.FP16
    )
    ours = planner("lpt", constraints=dict.fromkeys(["users.id", "country", "towers.items.id"], asked))
    sharding = ours.plan(Toy()).plan["users"]["id"]
    assert (sharding.enforce_hbm, sharding.stochastic_rounding) == (True, False)
    assert (sharding.bounds_check_mode, sharding.output_dtype) == (BoundsCheckMode.NONE, DataType.FP16)
    assert ours.last is not None
    assert ours.last.task.precision == "fp16"


@pytest.mark.parametrize(
    ("types", "found"),
    [
        (["table_wise"], [("table_wise", 1), ("column_wise", 1)]),  # which are one to TorchRec
        (["column_wise"], [("table_wise", 1), ("column_wise", 1), ("column_wise", 2)]),
        (["row_wise"], [("row_wise", 2)]),
        (["row_wise", "table_wise"], [("row_wise", 2), ("table_wise", 1), ("column_wise", 1)]),
    ],
)
@pytest.mark.parametrize("solver", [Halves(), Reversed(), "neuroshard_plus"])
def test_sharding_types_are_followed(solver: Any, types: list[str], found: list[tuple[str, int]]) -> None:
    names = ["users.id", "country", "towers.items.id"]
    ours = planner(solver, constraints=dict.fromkeys(names, ParameterConstraints(sharding_types=types)))
    plan = ours.plan(Toy())
    shardings = [s for module in plan.plan.values() for s in module.values()]
    assert {(s.sharding_type, len(s.sharding_spec.shards)) for s in shardings} <= set(found)
    assert ours.last is not None
    ours.last.plan.validate(ours.last.task)


def test_a_piece_is_as_wide_as_asked_for() -> None:
    """Of 16 columns, halves have 8."""
    types = ["column_wise", "row_wise"]
    for least, expected in ((8, 8), (12, 16)):
        asked = {"users.id": ParameterConstraints(sharding_types=types, min_partition=least)}
        plan = planner(Halves(), constraints=asked).plan(Toy())
        assert min(s.shard_sizes[1] for s in plan.plan["users"]["id"].sharding_spec.shards) >= expected


def test_mean_pooled_tables_are_not_cut_by_rows(caplog: pytest.LogCaptureFixture) -> None:
    """The solver would cut both tables by rows; TorchRec would divide the first by wrong bag sizes."""
    model = collection(config("mean", 4000, 8, pooling=PoolingType.MEAN), config("sum", 10, 8))
    factors = {"mean": ParameterConstraints(pooling_factors=[200.0])}
    ours = ShardGymPlanner(Topology(2, memory_bytes=2**20), 512, factors, PlannerSettings(ByRows("mean")))
    assert ours.plan(model).plan[""]["mean"].sharding_type != "row_wise"
    assert caplog.messages == []
    asked = ParameterConstraints(sharding_types=["row_wise"])
    planner("lpt", constraints={"mean": asked}).plan(model)
    (remark,) = caplog.messages
    assert remark == (
        "sharding_types of 'mean' is not followed: TorchRec divides mean-pooled tables that are cut by rows by the "
        "wrong bag sizes"
    )


def test_tables_are_pinned_to_ranks() -> None:
    def plan(strict: bool = True, **pins: Any) -> ShardGymPlanner:
        given = {name.replace("_", "."): ranks for name, ranks in pins.items()}
        ours = ShardGymPlanner(topology(3), 16, None, PlannerSettings("lpt", pins=given, strict=strict))
        ours.plan(Toy())
        return ours

    for rank in range(3):
        ours = plan(users_id=rank, country=[0, 1])
        assert ours.last is not None
        (shard,) = ours.last.plan.of_table("users.id")
        assert shard.devices == (rank,)
        assert {d for s in ours.last.plan.of_table("users.country") for d in s.devices} <= {0, 1}
    with pytest.raises(InputError, match=r"pins: table 'users.id': expected ranks from 0 to 2, got 3"):
        plan(users_id=3)
    with pytest.raises(InputError, match="unknown table in pins 'nobody'"):
        plan(nobody=0)


def test_a_pin_that_nothing_fits_is_named(caplog: pytest.LogCaptureFixture) -> None:
    full = topology_with_memory(100 * 16 * 4 + 10, 2**20)
    settings = PlannerSettings("lpt", pins={"users.id": 0, "towers.items.id": 0})
    ours = ShardGymPlanner(full, 16, None, settings)
    ours.plan(Toy())
    (remark,) = caplog.messages
    assert remark.startswith("pins of '")
    assert remark.endswith("' is not followed: no plan was found that keeps it there")
    with pytest.raises(InputError, match="strict: pins of '"):
        ShardGymPlanner(full, 16, None, dataclasses.replace(settings, strict=True)).plan(Toy())


def topology_with_memory(*memory_bytes: int) -> Topology:
    return Topology(len(memory_bytes), memory_bytes=memory_bytes)


def test_what_devices_carry_is_kept_free() -> None:
    sizes = 4 * 100 * 16, 4 * 20 * 8, 4 * 50 * 24
    settings = PlannerSettings("lpt", carried_bytes=[2**20 - sizes[1], 0])
    ours = ShardGymPlanner(topology(), 16, None, settings)
    ours.plan(Toy())
    assert ours.last is not None
    assert ours.last.plan.bytes_per_device(ours.last.task)[0] <= sizes[1]


@pytest.mark.parametrize(
    ("kind", "devices", "domain"),
    [
        ("table_wise", 2, 2),
        ("column_wise", 2, 2),
        ("row_wise", 2, 2),
        ("data_parallel", 2, 2),
        ("table_row_wise", 4, 2),
        ("table_column_wise", 4, 2),
        ("grid_shard", 4, 2),
    ],
)
def test_all_kinds_can_be_asked_for(kind: Any, devices: int, domain: int) -> None:
    """Of a table that a solver placed whole, or cut in another way."""
    tables = (EmbeddingTable("a", 1000, 16, 5.0), EmbeddingTable("b", 1000, 16, 5.0))
    task = ShardingTask(tables, Topology(devices, memory_bytes=2**20, fast_domain_size=domain), 64)
    cost = make_cost("roofline")
    start = ShardingPlan.table_wise(task, [0, 1])
    other = {"table_wise": "row_wise"}.get(kind, "table_wise")
    for before in (start, follow(start, task, cost, {"a": Rule(frozenset([other]))})):
        plan = follow(before, task, cost, {"a": Rule(frozenset([kind]))})
        assert plan.kind_of("a", task) == kind or (kind == "column_wise" and plan == before)
        plan.validate(task)
        assert plan.kind_of("b", task) in ("table_wise", "column_wise", "table_column_wise")


def test_a_plan_that_follows_rules_is_no_worse_than_a_simple_one_and_better_than_mending() -> None:
    tables = tuple(EmbeddingTable(f"t{n}", 1000 * (n + 1), 64, 2.0 + n) for n in range(10))
    task = ShardingTask(tables, Topology(4, memory_bytes=2**30), 4096)
    cost = make_cost("roofline")
    # All on two of four devices.
    halves = [Shard(t.name, (0, t.num_embeddings), (32 * n, 32 * n + 32), n) for t in tables for n in range(2)]
    plan = follow(ShardingPlan.of(task, halves), task, cost, dict.fromkeys((t.name for t in tables), Rule(WHOLE)))
    assert {plan.kind_of(t.name, task) for t in tables} == {"table_wise"}
    simple = make_solver("lpt_whole").solve(task, cost)
    found, expected = (answer.total_ms for answer in cost.evaluate(task, [plan, simple]))
    assert found <= expected
    # One table has a rule, and the others make room for it.
    plan = follow(ShardingPlan.of(task, halves), task, cost, {"t9": Rule(WHOLE)})
    assert plan.kind_of("t9", task) == "table_wise"
    assert cost.evaluate(task, [plan])[0].total_ms <= expected


@pytest.mark.parametrize(
    "kind", ["row_wise", "data_parallel", "table_row_wise", "table_column_wise", "grid_shard", "column_wise"]
)
def test_a_sharding_type_that_is_asked_for_leaves_for_torchrec(kind: str) -> None:
    hosts = Topology(4, memory_bytes=2**20, fast_domain_size=2)
    asked = {"users.id": ParameterConstraints(sharding_types=[kind], min_partition=8)}
    ours = ShardGymPlanner(hosts, 16, asked, PlannerSettings(Reversed(), strict=True))
    sharding = ours.plan(Toy()).plan["users"]["id"]
    assert sharding.sharding_type == kind or (kind == "column_wise" and len(sharding.sharding_spec.shards) == 1)


def test_an_unknown_sharding_type_is_refused() -> None:
    asked = {"users.id": ParameterConstraints(sharding_types=["rowwise"])}
    with pytest.raises(InputError, match=r"sharding type of table 'users.id' 'rowwise': did you mean row_wise"):
        planner(constraints=asked).plan(Toy())


def test_a_whole_table_is_table_wise_whatever_it_is_called(caplog: pytest.LogCaptureFixture) -> None:
    whole = {"country": ParameterConstraints(sharding_types=["table_wise"])}
    plan = planner(Halves(), constraints=whole).plan(Toy())
    assert plan.plan["users"]["country"].sharding_type == "column_wise"  # as the other table of the collection
    assert caplog.messages == []


def test_tables_with_the_same_constraint_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    asked = ParameterConstraints(compute_kernels=["fused_uvm"])
    planner(constraints=dict.fromkeys(["users.id", "country", "towers.items.id"], asked)).plan(Toy())
    assert caplog.messages[0].startswith("compute_kernels of 'users.id' and 2 more are not followed: the plan has ")


def test_devices_full_of_tables_are_named_unless_there_is_a_reserve(caplog: pytest.LogCaptureFixture) -> None:
    tables = 4 * (100 * 16 + 20 * 8 + 50 * 24)
    full, half = (TorchRecTopology(1, "cpu", ddr_cap=memory) for memory in (tables + 1000, 10 * tables))
    caplog.clear()  # TorchRec's own
    ShardGymPlanner(full, 16, settings=PlannerSettings("lpt")).plan(Toy())
    (remark,) = caplog.messages
    assert remark.startswith(
        f"tables take {100 * tables / (tables + 1000):.1f} % of the memory of device 0, and nothing"
    )
    caplog.clear()
    ShardGymPlanner(half, 16, settings=PlannerSettings("lpt", reserve=Reserve(0.0, 0.0, 0.0))).plan(Toy())
    ShardGymPlanner(half, 16, settings=PlannerSettings("lpt")).plan(Toy())
    assert caplog.messages == []


def test_the_sharders_optimizer_counts() -> None:
    ours = planner()
    ours.plan(Toy(), [EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.ADAM})])
    assert ours.last is not None
    assert ours.last.task.optimizer == "adam"
    with pytest.raises(InputError, match="optimizer lamb is none of EXACT_SGD"):
        ours.plan(Toy(), [EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.LAMB})])


def test_modules_that_would_silently_stay_whole_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Module()
    model.bags = collection(config("a", 50, 8))
    rows = EmbeddingConfig(num_embeddings=50, embedding_dim=8, name="s", feature_names=["s"])
    model.sequences = EmbeddingCollection(tables=[rows], device="meta")
    with pytest.raises(InputError, match="'sequences', of class EmbeddingCollection, is a module"):
        planner().plan(model)
    caplog.clear()
    assert list(planner().plan(model, [EmbeddingBagCollectionSharder()]).plan) == ["bags"]
    assert caplog.messages == [
        "'sequences' (EmbeddingCollection: tables s; 1600 bytes) is not planned: it stays whole on every rank"
    ]
    strict = ShardGymPlanner(topology(), 16, None, PlannerSettings("lpt", strict=True))
    with pytest.raises(InputError, match=r"strict: 'sequences' .* is not planned"):
        strict.plan(model, [EmbeddingBagCollectionSharder()])
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


def test_a_model_of_all_kinds_of_tables_trains_with_its_plan() -> None:
    """FP16 and FP32, a table of two features, mean pooling and weights, in two collections."""
    samples = 4

    def make() -> nn.Module:
        model = nn.Module()
        shared = config("user", 40, 16, "user", "friend", data_type=DataType.FP16)
        model.bags = collection(shared, config("item", 50, 8, pooling=PoolingType.MEAN), config("shop", 30, 8))
        clicks = config("clicks", 60, 16)
        model.weighted = EmbeddingBagCollection(tables=[clicks], is_weighted=True, device=torch.device("meta"))
        return model

    def widths(rank: int) -> dict[str, tuple[int, ...]]:
        sharders = [EmbeddingBagCollectionSharder()]
        model = make()
        ours = ShardGymPlanner(topology(), samples, None, PlannerSettings("lpt", strict=True))
        plan = ours.collective_plan(model, sharders)
        trained = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders).module
        found = {}
        inputs = [
            (trained.bags, ["user", "friend", "item_ids", "shop_ids"], None),
            (trained.weighted, ["clicks_ids"], torch.ones(samples)),
        ]
        for part, features, weights in inputs:
            some = torch.zeros(samples * len(features), dtype=torch.int64)
            outputs = part(KeyedJaggedTensor(features, some, weights, torch.ones_like(some))).to_dict()
            torch.cat(list(outputs.values()), dim=1).sum().backward()
            found |= {name: (*out.shape, out.element_size()) for name, out in outputs.items()}
        return found

    expected = {"user": 16, "friend": 16, "item_ids": 8, "shop_ids": 8, "clicks_ids": 16}
    # FP32 comes out of FP16 tables, too.
    assert run_ranks(2, widths) == [{name: (samples, width, 4) for name, width in expected.items()}] * 2


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
