"""The planner in place of TorchRec's: alone, and on all ranks of a group."""

from __future__ import annotations

import inspect
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

import torch
import torch.distributed as dist
import torchrec.distributed.fused_params
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from ranks import run_ranks
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import storage_reservations
from torchrec.distributed.planner.types import CustomTopologyData, ParameterConstraints, StorageReservation
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import CommOp
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec_toys import MARKS, Reversed, Toy, collection, config, planner, remapped, topology

from shardgym import (
    InputError,
    NoFeasiblePlanError,
    ShardGymError,
    ShardingPlan,
    ShardingTask,
    Topology,
    make_cost,
    make_solver,
)
from shardgym.costs.calibrated import Calibration
from shardgym.torchrec import (
    PlannerSettings,
    Reserve,
    ShardGymPlanner,
    from_torchrec,
    import_model,
    topology_from_torchrec,
)
from shardgym.torchrec.planner import OF_RATING
from shardgym.torchrec.sharders import NOT_FOLLOWED

pytestmark = MARKS


class Broken:
    def solve(self, task: ShardingTask, cost: Any, seed: int = 0) -> ShardingPlan:
        raise ZeroDivisionError("by zero")


def test_a_plan_is_made_by_the_solver_that_was_named() -> None:
    ours = planner(Reversed(), constraints={"users.id": ParameterConstraints(pooling_factors=[5.0])})
    plan = ours.plan(Toy(), [EmbeddingBagCollectionSharder()])
    assert [of.ranks for module in plan.plan.values() for of in module.values()] == [[1], [0], [1]]
    assert str(plan.plan["users"]["id"].sharding_spec.shards[0].placement) == "rank:1/cpu"
    assert ours.last is not None
    task = ours.last.task
    assert task.batch_size == 32
    assert task.table("users.id").pooling_factor == 5.0
    assert from_torchrec(plan, task) == ours.last.plan
    assert (ours.last.cost.cost, ours.last.cost.feasible) == ("roofline", True)


def test_torchrecs_topology_is_taken_as_it_is() -> None:
    theirs = TorchRecTopology(
        world_size=16, compute_device="cuda", hbm_cap=2**20, local_world_size=8,
        hbm_mem_bw=2e9, intra_host_bw=3e8, inter_host_bw=2.5e7,
    )  # fmt: skip
    ours = topology_from_torchrec(theirs)
    assert (ours.num_devices, ours.fast_domain_size, ours.device) == (16, 8, "a100")
    assert ours.memory_bytes == (2**20,) * 16
    assert (ours.intra_bandwidth, ours.inter_bandwidth) == (3e11, 2.5e10)
    on_cpus = topology_from_torchrec(TorchRecTopology(2, "cpu", ddr_cap=1000))
    assert (on_cpus.device, on_cpus.host_memory_bytes) == ("cpu-core", 0)
    hosts = topology_from_torchrec(
        TorchRecTopology(8, "cuda", local_world_size=2, ddr_cap=2**30, hbm_to_ddr_mem_bw=1e7)
    )
    assert (hosts.fast_domain_size, hosts.host_size) == (2, None)
    assert (hosts.host_memory_bytes, hosts.host_bandwidth) == (2 * 2**30, 1e10)
    if "pod_size" in inspect.signature(TorchRecTopology).parameters:  # from 1.6
        pods = topology_from_torchrec(TorchRecTopology(8, "cuda", local_world_size=2, pod_size=2))
        assert (pods.fast_domain_size, pods.host_size) == (4, 2)
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
    first, *remarks, gain = caplog.messages
    assert first == f"LPT places 3 tables on 2 devices by cost '{cost}' of '{device}'"
    assert re.match(
        rf"the plan takes ([\d.]+) ms by '{cost}', that of 'lpt' \1: The difference of 0.0% is within", gain
    )
    # Nobody said that the GPUs are of this kind.
    assert [remark.partition(":")[0] for remark in remarks] == ["the plan is for GPUs like 'v100'"] * (device == "v100")
    caplog.clear()
    ShardGymPlanner(given, 16, settings=PlannerSettings("lpt", "torchrec_rating")).plan(Toy())
    assert caplog.messages[:-1] == [f"LPT places 3 tables on 2 devices by cost 'torchrec_rating' of '{device}'"]


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


class Own(EmbeddingBagCollectionSharder):
    """Somebody's own, which allows other sharding types or kernels than TorchRec's."""

    def __init__(self, types: list[str] | None = None, kernels: list[str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._types = types
        self._kernels = kernels

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return self._types or super().sharding_types(compute_device_type)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        kernels = super().compute_kernels(sharding_type, compute_device_type)
        return kernels if self._kernels is None or sharding_type == "data_parallel" else self._kernels


NAMES = "users.id", "users.country", "towers.items.id"


def test_what_a_sharder_allows_is_a_constraint_of_its_tables(caplog: pytest.LogCaptureFixture) -> None:
    strict = PlannerSettings("lpt", strict=True)
    plan = ShardGymPlanner(topology(), 16, settings=strict).plan(Toy(), [Own(["row_wise"])])
    assert {of.sharding_type for module in plan.plan.values() for of in module.values()} == {"row_wise"}
    both = dict.fromkeys(NAMES, ParameterConstraints(sharding_types=["row_wise", "table_wise"]))
    plan = ShardGymPlanner(topology(), 16, both, strict).plan(Toy(), [Own(["row_wise", "column_wise"])])
    assert {of.sharding_type for module in plan.plan.values() for of in module.values()} == {"row_wise"}
    hosts = Topology(2, memory_bytes=2**20, device="a100", host_memory_bytes=2**20)
    plan = ShardGymPlanner(hosts, 16, settings=strict).plan(Toy(), [Own(kernels=["fused_uvm"])])
    assert {of.compute_kernel for module in plan.plan.values() for of in module.values()} == {"fused_uvm"}
    assert caplog.messages == []
    neither = {"country": ParameterConstraints(sharding_types=["table_wise"])}
    planner("lpt", constraints=neither).plan(Toy(), [Own(["row_wise"], ["fused_uvm"])])
    assert caplog.messages == [
        "sharding_types of 'users.country' is not followed: Own has row_wise alone",
        "compute_kernels of 'users.id' and 2 more are not followed: the plan has kernel fused, which keeps rows in the "
        "memory of the device",
    ]


def codecs(forward: CommType, backward: CommType, *operations: CommOp) -> dict[str, Any]:
    """What a sharder is given."""
    config = QCommsConfig(forward_precision=forward, backward_precision=backward)
    return {"qcomm_codecs_registry": get_qcomm_codecs_registry(config, list(operations) or None)}


def test_exchanges_are_priced_as_codecs_send_them(caplog: pytest.LogCaptureFixture) -> None:
    gpus = Topology.preset("dgx-h100", 4)
    ours = ShardGymPlanner(gpus, 16_384, settings=PlannerSettings("lpt", strict=True))
    ours.plan(Toy(), [EmbeddingBagCollectionSharder(**codecs(CommType.FP16, CommType.BF16))])
    assert ours.last is not None
    task, plan, cost = ours.last.task, ours.last.plan, ours.last.cost
    assert (task.precision, cost.hardware) == ("fp32", "gpu-modelled-fp16_wire")
    narrow, usual = (make_cost("gpu", wire=wire).evaluate(task, [plan])[0] for wire in ("fp16", "task"))
    assert cost == narrow
    assert cost.total_ms < usual.total_ms
    assert caplog.messages == []
    why = "exchanges are priced as FP32, or as FP16 where codecs of all sharders send two bytes a value both ways"
    for given, on, said in (
        (codecs(CommType.FP16, CommType.FP32), gpus, why),
        (codecs(CommType.FP8, CommType.FP8), gpus, why),
        (codecs(CommType.FP16, CommType.FP16, CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL), gpus, why),
        (codecs(CommType.FP16, CommType.FP16), topology(), "cost 'roofline' prices exchanges of outputs as they are"),
    ):
        caplog.clear()
        ShardGymPlanner(on, 16, settings=PlannerSettings("lpt")).plan(Toy(), [EmbeddingBagCollectionSharder(**given)])
        named = [message for message in caplog.messages if "qcomm" in message]
        assert named == [f"qcomm_codecs_registry of 'EmbeddingBagCollectionSharder' is not followed: {said}"]


@pytest.mark.parametrize("name", ["FP16", "BF16"])
def test_outputs_of_two_bytes_are_exchanged_so_whoever_asks_for_them(name: str) -> None:
    """The constraints of all tables, or the sharder."""
    asked = dict.fromkeys(NAMES, ParameterConstraints(output_dtype=DataType[name]))
    fused = {"output_dtype": SparseType[name]}
    for constraints, sharder in (
        (asked, EmbeddingBagCollectionSharder()),
        (None, EmbeddingBagCollectionSharder(fused_params=fused)),
    ):
        ours = ShardGymPlanner(topology(), 16, constraints, PlannerSettings("lpt", strict=True))
        plan = ours.plan(Toy(), [sharder])
        assert ours.last is not None
        assert ours.last.task.precision == "fp16"
        assert {of.output_dtype for module in plan.plan.values() for of in module.values()} == {DataType[name]}


#: Of the arguments of TorchRec's topology, those that ours has, each with another value than usual.
TOPOLOGY: dict[str, Any] = {
    "world_size": 8,
    "compute_device": "cpu",
    "hbm_cap": 2**30,
    "ddr_cap": 2**30,
    "local_world_size": 4,
    "pod_size": 2,
    "hbm_mem_bw": 3e9,
    "hbm_to_ddr_mem_bw": 1e7,
    "intra_host_bw": 1e8,
    "inter_host_bw": 1e7,
    "custom_topology_data": CustomTopologyData({"hbm_cap": [2**30] * 4}, 4),
}
#: Of kernels that are named where constraints ask for them; and what says how the topology was made.
OF_OTHER_KERNELS = {"ssd_cap", "ssd_mem_bw", "created_by_factory"}


def test_each_field_of_a_topology_is_followed_or_named(caplog: pytest.LogCaptureFixture) -> None:
    fields = set(inspect.signature(TorchRecTopology).parameters)
    assert fields <= {*TOPOLOGY, *OF_OTHER_KERNELS, *OF_RATING, "generalized_comms_bandwidths"}
    usual: dict[str, Any] = {"world_size": 4, "compute_device": "cuda", "local_world_size": 2}
    for name in fields & set(TOPOLOGY):
        changed = topology_from_torchrec(TorchRecTopology(**{**usual, name: TOPOLOGY[name]}))
        assert changed != topology_from_torchrec(TorchRecTopology(**usual)), name
    for name in fields & set(OF_RATING):
        theirs = TorchRecTopology(**{**usual, "hbm_mem_bw": 3e9, name: 7.0})
        caplog.clear()
        ShardGymPlanner(theirs, 16, settings=PlannerSettings("lpt")).plan(Toy())
        assert caplog.messages == [f"{name} of 'Topology' is not followed: it is of TorchRec's own rating"]


#: What is done with `fused_params` besides those of `NOT_FOLLOWED`: followed, set by TorchRec itself for each operator,
#: and given to FBGEMM's operator or to TorchRec by the job, without a change of prices or memory that costs have.
FOLLOWED = {"optimizer", "output_dtype"}
BY_TORCHREC = {"embedding_specs", "feature_table_map", "pooling_mode", "device", "table_names", "embedding_shard_info"}
PASSED_ON = {
    "cache_algorithm", "enforce_hbm", "record_cache_metrics", "gather_uvm_cache_stats", "stochastic_rounding",
    "gradient_clipping", "max_gradient", "max_norm", "learning_rate", "eps", "momentum", "weight_decay",
    "weight_decay_mode", "eta", "beta1", "beta2", "ensemble_mode", "emainplace_mode", "counter_based_regularization",
    "cowclip_regularization", "bounds_check_mode", "use_experimental_tbe", "stats_reporter_config",
    "multipass_prefetch_config", "global_weight_decay", "uvm_host_mapped", "extra_optimizer_config",
    "tbe_input_multiplexer_config", "embedding_table_index_type", "embedding_table_offset_type",
    "enable_raw_embedding_streaming", "res_params", "is_qr_tbe", "preallocated_host_buffers",
    "__register_tbes_in_named_modules", "__register_quant_state_dict_split_scale_bias", "__register_tbe_row_alignment",
    "__register_tbe_bounds_check_mode", "__register_lengths_to_offsets_lookup", "__register_ssd_table_list",
    "__register_is_ssd_table",
}  # fmt: skip


def test_each_field_of_sharders_is_followed_or_named(caplog: pytest.LogCaptureFixture) -> None:
    for sharder in (EmbeddingBagCollectionSharder, EmbeddingCollectionSharder):
        assert set(inspect.signature(sharder).parameters) <= {
            "fused_params", "qcomm_codecs_registry", "use_index_dedup",
            "sharded_module_order_overwrite",  # of no price
        }  # fmt: skip
        assert {name for name in dir(sharder) if not name.startswith("_")} <= {
            "fused_params", "qcomm_codecs_registry", "sharding_types", "compute_kernels", "module_type",
            # What a job does with a plan; TorchRec fails where its plan lacks a table.
            "shard", "reshard", "sharded_module_type", "shardable_parameters", "storage_usage",
        }  # fmt: skip
    fields = {*inspect.signature(SplitTableBatchedEmbeddingBagsCodegen).parameters}
    fields |= {value for name, value in vars(torchrec.distributed.fused_params).items() if name.startswith("FUSED_PAR")}
    assert fields <= FOLLOWED | BY_TORCHREC | PASSED_ON | set(NOT_FOLLOWED)
    for name, why in NOT_FOLLOWED.items():
        caplog.clear()
        planner("lpt").plan(Toy(), [EmbeddingBagCollectionSharder(fused_params={name: 0.5, "learning_rate": 0.1})])
        said = f"fused_params['{name}'] of 'EmbeddingBagCollectionSharder' is not followed: {why}"
        assert caplog.messages == [said]


#: TorchRec's reservations, ours that say the same, and what TorchRec's takes besides for copies of inputs.
RESERVATIONS: dict[str, tuple[dict[str, Any], Reserve, int]] = {
    "FixedPercentageStorageReservation": ({"percentage": 0.25}, Reserve(0.25, 0, 0), 0),
    "FixedAbsoluteStorageReservation": ({"hbm_reserved_bytes": 5000}, Reserve(0, 0, 0, 5000), 0),
    "HeuristicalStorageReservation": (
        {"percentage": 0.25, "parameter_multiplier": 6.0, "dense_tensor_estimate": None},
        Reserve(0.25, 6, 20),
        20 * 3 * 16 * 8,
    ),
}


def test_each_reservation_of_torchrec_can_be_said() -> None:
    with pytest.raises(TypeError, match="storage_reservation"):
        ShardGymPlanner(topology(), 16, storage_reservation=None)
    classes = {
        name: cls
        for name, cls in vars(storage_reservations).items()
        if inspect.isclass(cls) and issubclass(cls, StorageReservation) and cls is not StorageReservation
    }
    assert set(classes) <= {*RESERVATIONS, "InferenceStorageReservation"}  # nothing here plans inference
    theirs = TorchRecTopology(2, "cuda", hbm_cap=2**20)
    for name in set(classes) & set(RESERVATIONS):
        arguments, ours, inputs = RESERVATIONS[name]
        assert set(inspect.signature(classes[name]).parameters) == set(arguments)
        left = classes[name](**arguments).reserve(theirs, 16, Toy(), [EmbeddingBagCollectionSharder()])
        reserved = import_model(Toy(), topology(), 32, reserve=ours).reserved_bytes[0]
        assert left.devices[0].storage.hbm == 2**20 - reserved - inputs


def test_modules_that_would_silently_stay_whole_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Module()
    model.bags = collection(config("a", 50, 8))
    rows = EmbeddingConfig(num_embeddings=50, embedding_dim=8, name="s", feature_names=["s"])
    model.sequences = EmbeddingCollection(tables=[rows], device="meta")
    assert list(planner().plan(model).plan) == ["bags", "sequences"]
    model.wrapped = remapped()
    with pytest.raises(InputError, match="'wrapped', of class ManagedCollisionEmbeddingBagCollection, is a module"):
        planner().plan(model)
    del model.wrapped
    caplog.clear()
    assert list(planner().plan(model, [EmbeddingBagCollectionSharder()]).plan) == ["bags"]
    assert caplog.messages == [
        "'sequences' (EmbeddingCollection: tables s; 1600 bytes) is not planned: it stays whole on every rank"
    ]
    caplog.clear()
    constraints = {"a": ParameterConstraints(), "s": ParameterConstraints()}
    pinned = ShardGymPlanner(topology(), 16, constraints, PlannerSettings("lpt", pins={"sequences.s": 1}))
    assert list(pinned.plan(model, [EmbeddingBagCollectionSharder()]).plan) == ["bags"]
    missing = "not followed: the table is not planned without EmbeddingCollectionSharder() among the sharders"
    assert caplog.messages[1:] == [f"constraints of 's' is {missing}", f"pins of 'sequences.s' is {missing}"]
    with pytest.raises(InputError, match=r"unknown table in constraints 'z': known: a, bags\.a"):
        planner(constraints={"z": ParameterConstraints()}).plan(model, [EmbeddingBagCollectionSharder()])
    strict = ShardGymPlanner(topology(), 16, None, PlannerSettings("lpt", strict=True))
    with pytest.raises(InputError, match=r"strict: 'sequences' .* is not planned"):
        strict.plan(model, [EmbeddingBagCollectionSharder()])
    with pytest.raises(InputError, match=r"expected EmbeddingBagCollectionSharder\(\) or EmbeddingCollectionSharder"):
        planner().plan(model, [])


def test_wrong_arguments_are_refused_when_the_planner_is_made() -> None:
    with pytest.raises(InputError, match="unknown solver"):
        planner("nonsense")
    with pytest.raises(InputError, match="seed -1"):
        planner(seed=-1)
    with pytest.raises(InputError, match="batch_size"):
        ShardGymPlanner(topology(), 0)
    with pytest.raises(InputError, match=r"reserve and carried_bytes, .* take all 1048576 bytes of device 0"):
        ShardGymPlanner(topology(), 16, None, PlannerSettings("lpt", carried_bytes=2**20)).plan(Toy())


def test_a_model_of_all_kinds_of_tables_trains_with_its_plan() -> None:
    """FP16 and FP32, a table of two features, mean pooling and weights, in two collections."""
    samples = 4

    def widths(rank: int) -> dict[str, tuple[int, ...]]:
        sharders = [EmbeddingBagCollectionSharder()]
        model = nn.Module()
        shared = config("user", 40, 16, "user", "friend", data_type=DataType.FP16)
        model.bags = collection(shared, config("item", 50, 8, pooling=PoolingType.MEAN), config("shop", 30, 8))
        clicks = config("clicks", 60, 16)
        model.weighted = EmbeddingBagCollection(tables=[clicks], is_weighted=True, device=torch.device("meta"))
        ours = ShardGymPlanner(topology(), samples, None, PlannerSettings("lpt", strict=True))
        plan = ours.collective_plan(model, sharders)
        trained = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders).module
        found = {}
        bags = ["user", "friend", "item_ids", "shop_ids"]
        for part, features, weights in (
            (trained.bags, bags, None), (trained.weighted, ["clicks_ids"], torch.ones(samples)),
        ):  # fmt: skip
            some = torch.zeros(samples * len(features), dtype=torch.int64)
            outputs = part(KeyedJaggedTensor(features, some, weights, torch.ones_like(some))).to_dict()
            torch.cat(list(outputs.values()), dim=1).sum().backward()
            found |= {name: (*out.shape, out.element_size()) for name, out in outputs.items()}
        return found

    expected = {"user": 16, "friend": 16, "item_ids": 8, "shop_ids": 8, "clicks_ids": 16}
    # FP32 comes out of FP16 tables, too.
    assert run_ranks(2, widths) == [{name: (samples, width, 4) for name, width in expected.items()}] * 2


def test_all_ranks_get_the_plan_of_the_first() -> None:
    expected = planner("random").plan(Toy()).plan

    def collect(rank: int) -> bool:
        ours = planner("random", seed=rank)  # the plan must be that of rank 0
        return bool(ours.collective_plan(Toy(), None, dist.group.WORLD).plan == expected)

    assert run_ranks(2, collect) == [True, True]
    with pytest.raises(InputError, match="needs a process group"):
        planner().collective_plan(Toy())


@pytest.mark.parametrize(
    ("make_planner", "model", "kind", "message"),
    [
        (lambda: planner(Broken()), Toy(), ShardGymError, "planning failed on the first rank: ZeroDivisionError: by z"),
        (planner, nn.Linear(2, 2), InputError, "Linear has no EmbeddingBagCollection"),
        (planner, collection(config("a", 2**20, 8)), NoFeasiblePlanError, "a"),
        (lambda: planner(devices=3), Toy(), InputError, "the process group has 2 ranks, the topology 3 devices"),
    ],
)
def test_an_error_reaches_every_rank(make_planner: Any, model: nn.Module, kind: type, message: str) -> None:
    first, second = run_ranks(2, lambda rank: make_planner().collective_plan(model))
    assert type(first) is type(second) is kind
    assert message in str(first)
    assert str(first) == str(second)


class Slow:
    """Takes its time, or ends its process."""

    def __init__(self, ends: bool) -> None:
        self.ends = ends

    def solve(self, task: ShardingTask, cost: Any, seed: int = 0) -> ShardingPlan:
        time.sleep(0.1 if self.ends else 2.6)
        if self.ends:
            os._exit(1)
        return make_solver("random").solve(task, cost)


def test_planning_may_take_longer_than_a_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group gives up after two seconds, and planning takes more."""
    monkeypatch.setattr("shardgym.torchrec.ranks._SIGN_OF_LIFE_S", 0.1)
    expected = planner("random").plan(Toy()).plan
    found = run_ranks(2, lambda rank: planner(Slow(ends=False)).collective_plan(Toy()).plan == expected, 2.0)
    assert found == [True, True]


def test_where_the_first_rank_ends_the_others_say_so() -> None:
    gone, waiting = run_ranks(2, lambda rank: planner(Slow(ends=True)).collective_plan(Toy()), 2.0)
    assert str(gone) == "the rank died"
    assert type(waiting) is ShardGymError
    assert "no more was heard of the first rank, which plans: see its log" in str(waiting)


def test_a_planner_counts_at_the_level_of_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    levels = Calibration("gpu", "h100", "cuda-x", compute=2.0, exchange=2.0, fixed_ms=7.0)
    path.write_text(json.dumps({"calibration": levels.to_dict()}))
    gpus = Topology.preset("dgx-h100", 2)
    found = []
    for calibration in (None, path):
        ours = ShardGymPlanner(gpus, 16, settings=PlannerSettings("lpt", "gpu", calibration))
        plan = ours.plan(Toy())
        assert ours.last is not None
        found.append(ours.last.cost)
        assert ours.plan_task(ours.last.task) == ours.last.plan
        assert from_torchrec(plan, ours.last.task) == ours.last.plan
    usual, calibrated = found
    assert (usual.cost, calibrated.cost) == ("gpu", "calibrated")
    assert calibrated.total_ms == pytest.approx(2 * usual.total_ms + 7)
    with pytest.raises(InputError, match="calibration: it is of cost 'gpu', got cost 'roofline'"):
        ShardGymPlanner(topology(), 16, settings=PlannerSettings("lpt", calibration=path)).plan(Toy())
