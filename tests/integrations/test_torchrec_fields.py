"""Each field of TorchRec's topologies, sharders, codecs and reservations is followed by the planner or named."""

import inspect

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

import torchrec.distributed.fused_params
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.planner import storage_reservations
from torchrec.distributed.planner.types import CustomTopologyData, ParameterConstraints, StorageReservation
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import CommOp
from torchrec.modules.embedding_configs import DataType
from torchrec_toys import MARKS, Toy, planner, topology

from shardgym import InputError, Topology, make_cost
from shardgym.torchrec import PlannerSettings, Reserve, ShardGymPlanner, import_model, topology_from_torchrec
from shardgym.torchrec.planner import OF_RATING
from shardgym.torchrec.sharders import NOT_FOLLOWED

pytestmark = MARKS


def test_the_sharders_optimizer_counts():
    ours = planner()
    ours.plan(Toy(), [EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.ADAM})])
    assert ours.last.task.optimizer == "adam"
    with pytest.raises(InputError, match="optimizer lamb is none of EXACT_SGD"):
        ours.plan(Toy(), [EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.LAMB})])


class Own(EmbeddingBagCollectionSharder):
    """Somebody's own, which allows other sharding types or kernels than TorchRec's."""

    def __init__(self, types=None, kernels=None, **options):
        super().__init__(**options)
        self._types = types
        self._kernels = kernels

    def sharding_types(self, compute_device_type):
        return self._types or super().sharding_types(compute_device_type)

    def compute_kernels(self, sharding_type, compute_device_type):
        kernels = super().compute_kernels(sharding_type, compute_device_type)
        return kernels if self._kernels is None or sharding_type == "data_parallel" else self._kernels


NAMES = "users.id", "users.country", "towers.items.id"


def test_what_a_sharder_allows_is_a_constraint_of_its_tables(caplog):
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
        "sharding_types of 'users.country' is not followed: Own has only row_wise",
        "compute_kernels of 'users.id' and 2 more are not followed: the topology's hosts have no memory; give "
        "host_memory_bytes of a shardgym.Topology",
    ]


def codecs(forward, backward, *operations):
    config = QCommsConfig(forward_precision=forward, backward_precision=backward)
    return {"qcomm_codecs_registry": get_qcomm_codecs_registry(config, list(operations) or None)}


def test_exchanges_are_priced_as_codecs_send_them(caplog):
    gpus = Topology.preset("dgx-h100", 4)
    ours = ShardGymPlanner(gpus, 16_384, settings=PlannerSettings("lpt", strict=True))
    ours.plan(Toy(), [EmbeddingBagCollectionSharder(**codecs(CommType.FP16, CommType.BF16))])
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
def test_outputs_of_two_bytes_are_exchanged_so_whoever_asks_for_them(name):
    """The constraints of all tables, or the sharder."""
    asked = dict.fromkeys(NAMES, ParameterConstraints(output_dtype=DataType[name]))
    fused = {"output_dtype": SparseType[name]}
    for constraints, sharder in (
        (asked, EmbeddingBagCollectionSharder()),
        (None, EmbeddingBagCollectionSharder(fused_params=fused)),
    ):
        ours = ShardGymPlanner(topology(), 16, constraints, PlannerSettings("lpt", strict=True))
        plan = ours.plan(Toy(), [sharder])
        assert ours.last.task.precision == "fp16"
        assert {of.output_dtype for module in plan.plan.values() for of in module.values()} == {DataType[name]}


#: Of the arguments of TorchRec's topology, those that ours has, each with another value than usual.
TOPOLOGY = {
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


def test_each_field_of_a_topology_is_followed_or_named(caplog):
    fields = set(inspect.signature(TorchRecTopology).parameters)
    assert fields <= {*TOPOLOGY, *OF_OTHER_KERNELS, *OF_RATING, "generalized_comms_bandwidths"}
    usual = {"world_size": 4, "compute_device": "cuda", "local_world_size": 2}
    for name in fields & set(TOPOLOGY):
        changed = topology_from_torchrec(TorchRecTopology(**{**usual, name: TOPOLOGY[name]}))
        assert changed != topology_from_torchrec(TorchRecTopology(**usual)), name
    for name in fields & set(OF_RATING):
        theirs = TorchRecTopology(**{**usual, "hbm_mem_bw": 3e9, name: 7.0})
        caplog.clear()
        ShardGymPlanner(theirs, 16, settings=PlannerSettings("lpt")).plan(Toy())
        assert caplog.messages == [f"{name} of 'Topology' is not followed: only TorchRec's own rating uses it"]
    topology_from_torchrec(TorchRecTopology(**usual, hbm_mem_bw=2000, intra_host_bw=300, inter_host_bw=2.5e11))
    named = [message.partition(" of TorchRec's topology: expected ")[0] for message in caplog.messages[-3:]]
    assert named == ["hbm_mem_bw=2000", "intra_host_bw=300", "inter_host_bw=2.5e+11"]


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


def test_each_field_of_sharders_is_followed_or_named(caplog):
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
RESERVATIONS = {
    "FixedPercentageStorageReservation": ({"percentage": 0.25}, Reserve(0.25, 0, 0), 0),
    "FixedAbsoluteStorageReservation": ({"hbm_reserved_bytes": 5000}, Reserve(0, 0, 0, 5000), 0),
    "HeuristicalStorageReservation": (
        {"percentage": 0.25, "parameter_multiplier": 6.0, "dense_tensor_estimate": None},
        Reserve(0.25, 6, 20),
        20 * 3 * 16 * 8,
    ),
}


def test_each_reservation_of_torchrec_can_be_said():
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
