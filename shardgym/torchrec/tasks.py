"""A task from somebody's own TorchRec model: its tables, its devices, and what these need besides tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, cast

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardgym.arguments import check_instance, check_int
from shardgym.costs.roofline import DEVICES
from shardgym.errors import InputError
from shardgym.ids import Bags
from shardgym.plan import COLUMN_UNIT
from shardgym.records import CONFIG, Number, Record, Whole
from shardgym.table import EmbeddingTable, Optimizer, Precision, UniformIds
from shardgym.task import ShardingTask
from shardgym.topology import PRESETS, Topology
from shardgym.torchrec.access import Access, table_access
from shardgym.torchrec.model_tables import PRECISIONS, ModelTable, model_tables

#: What is done with a table that several features share: refused, or their bags are counted as one.
SharedTables = Literal["refuse", "add"]

#: Classes of optimisers that `apply_optimizer_in_backward` takes, by the names that tasks have for them.
_OPTIMIZERS: dict[str, Optimizer] = {
    "SGD": "exact_sgd",
    "RowWiseAdagrad": "rowwise_adagrad",
    "Adagrad": "adagrad",
    "Adam": "adam",
}

#: TorchRec's bandwidths are in bytes per millisecond.
_MS_PER_S = 1000
#: Bytes of an id in an input buffer.
_ID_BYTES = 8

#: What a table is taken to have per sample when nothing is known, as TorchRec's planner does.
_ASSUMED = Access(1.0, UniformIds())


class ImportedTask(NamedTuple):
    """A task, and what it does not know from the model.

    Attributes:
        task: the task; the memory of its devices is what the reserve leaves.
        assumed: a sentence for each thing that was assumed.
        reserved_bytes: taken off the memory of each device.
    """

    task: ShardingTask
    assumed: tuple[str, ...]
    reserved_bytes: tuple[int, ...]


def task_from_model(model: nn.Module, topology: Topology, batch_size: int, **options: Any) -> ShardingTask:
    """Return the task that `import_model` makes of a model, without what it assumes; `options` are those of it."""
    return import_model(model, topology, batch_size, **options).task


def import_model(
    model: nn.Module,
    topology: Topology,
    batch_size: int,
    *,
    pooling_factors: Mapping[str, float] | Sequence[float] | None = None,
    sample: KeyedJaggedTensor | Mapping[str, Bags] | None = None,
    constraints: Mapping[str, ParameterConstraints] | None = None,
    optimizer: Optimizer | None = None,
    reserve: Reserve | None = None,
    shared_tables: SharedTables = "refuse",
    name: str = "",
) -> ImportedTask:
    """Return a task with the tables of every `EmbeddingBagCollection` of a model, and what it assumes.

    A model does not know how often its tables are accessed. Give pooling factors, a sample of ids or TorchRec's
    constraints; without them a table is taken to have one id per sample, spread evenly over its rows.

    Args:
        model: on any device; on "meta" it takes no memory.
        topology: the devices; their memory is what embeddings may take, or all of it when there is a reserve.
        batch_size: samples of one training step over all devices, so TorchRec's batch size times the ranks.
        pooling_factors: mean ids per sample, by table or for all tables in the model's order.
        sample: ids by feature.
        constraints: TorchRec's, by table; their pooling factors are read and nothing else.
        optimizer: of the tables; by default what `apply_optimizer_in_backward` attached to them, else SGD.
        reserve: what a device needs besides tables; nothing by default.
        shared_tables: "add" counts the bags of features that share a table as one, so that too little
            communication is counted; by default such tables are refused.
        name: of the task, for display; by default the model's class and what was assumed.

    Raises:
        InputError: the model has no collection, a table that plans or FBGEMM cannot have, weights of different or
            unknown types; or an argument does not fit the model.
    """
    check_instance("topology", topology, Topology)
    batch_size = check_int("batch_size", batch_size, 1)
    tables = model_tables(model)
    for table in tables:
        _check_table(table, shared_tables)
    access = table_access(tables, batch_size, pooling_factors, sample, constraints)
    assumed = []
    unknown = [table.name for table in tables if table.name not in access]
    if unknown:
        assumed.append(f"1 id per sample for {len(unknown)} of {len(tables)} tables")
    if sample is None:
        assumed.append("ids spread evenly over rows")

    optimizer = optimizer or _attached_optimizer(model, tables)
    if optimizer is None:
        assumed.append("optimizer exact_sgd, which keeps no state")
    shared = [table.name for table in tables if len(table.config.feature_names) > 1]
    if shared:
        assumed.append(f"features of {len(shared)} shared tables counted as one")

    task = ShardingTask(
        tables=tuple(
            EmbeddingTable(
                table.name, table.config.num_embeddings, table.config.embedding_dim, *access.get(table.name, _ASSUMED)
            )
            for table in tables
        ),
        topology=topology,
        batch_size=batch_size,
        precision=_precision(tables),
        optimizer=optimizer or "exact_sgd",
        name=name or "; ".join([type(model).__name__, *(f"assumed: {what}" for what in assumed)])[:200],
    )
    reserved = (0,) * task.num_devices
    if reserve is not None:
        reserved = reserve.bytes_per_device(model, task)
        left = [memory - taken for memory, taken in zip(topology.memory_bytes, reserved, strict=True)]
        if min(left) <= 0:
            device = left.index(min(left))
            raise InputError(
                f"the reserve takes {reserved[device]} bytes of device {device}, which has "
                f"{topology.memory_bytes[device]}: nothing is left for tables; give more memory or a smaller reserve"
            )
        task = dataclasses.replace(task, topology=dataclasses.replace(topology, memory_bytes=tuple(left)))
    return ImportedTask(task, tuple(assumed), reserved)


def _check_table(table: ModelTable, shared_tables: str) -> None:
    """Refuse a table that plans cannot place; raises `InputError`."""
    config = table.config
    if config.embedding_dim % COLUMN_UNIT:
        raise InputError(
            f"table '{table.name}' has {config.embedding_dim} columns: FBGEMM's fused kernel needs widths divisible by "
            f"{COLUMN_UNIT}; pad the table to {-(-config.embedding_dim // COLUMN_UNIT) * COLUMN_UNIT} columns"
        )
    if len(config.feature_names) > 1 and shared_tables != "add":
        raise InputError(
            f"table '{table.name}' is shared by features {', '.join(config.feature_names)}: a task has one bag per "
            "table and sample; give each feature a table, or shared_tables='add' to count their bags as one"
        )


def _precision(tables: list[ModelTable]) -> Precision:
    """Return the one type of all weights; raises `InputError`."""
    types = {table.config.data_type.name: table.name for table in tables}
    for name, table in types.items():
        if name not in PRECISIONS:
            raise InputError(f"table '{table}' has weights of {name}: expected {' or '.join(PRECISIONS)}")
    if len(types) > 1:
        raise InputError(
            f"tables have weights of different types ({', '.join(f'{t}: {n}' for n, t in types.items())}): a task has "
            "one; give them one type"
        )
    return cast("Precision", PRECISIONS[next(iter(types))])


def _attached_optimizer(model: nn.Module, tables: list[ModelTable]) -> Optimizer | None:
    """Return the optimiser that `apply_optimizer_in_backward` attached to all tables; None when it did not.

    Raises:
        InputError: it attached several, to some tables only, or one that tasks do not know.
    """
    attached: set[str] = set()
    for table in tables:
        collection = model.get_submodule(table.path)
        weight = cast("torch.Tensor", collection.get_parameter(f"embedding_bags.{table.config.name}.weight"))
        classes = getattr(weight, "_optimizer_classes", None) or [type(None)]
        attached |= {cls.__name__ for cls in classes}
    if attached == {"NoneType"}:
        return None
    name = next(iter(attached))
    if len(attached) > 1 or name not in _OPTIMIZERS:
        raise InputError(
            f"optimizers attached to tables: {', '.join(sorted(attached))}; expected one of {', '.join(_OPTIMIZERS)} "
            "for all, or optimizer= to say which one counts"
        )
    return _OPTIMIZERS[name]


def topology_from_torchrec(topology: TorchRecTopology) -> Topology:
    """Return devices, memory, hosts and bandwidths of TorchRec's topology.

    Memory is HBM, or DDR where the job runs on CPUs. The device is "cpu-core", or the GPU with the nearest memory
    bandwidth. Latencies, which TorchRec has none of, are those of the topology `dgx-a100`, or `cpu`.

    Raises:
        InputError: not such a topology, one for other devices than cuda and cpu, or a device without memory.
    """
    check_instance("topology", topology, TorchRecTopology)
    kind = topology.compute_device
    if kind not in ("cpu", "cuda"):
        raise InputError(f"TorchRec topology for '{kind}': expected compute_device 'cuda' or 'cpu'")
    bandwidth = topology.hbm_mem_bw * _MS_PER_S
    gpus = [name for name in DEVICES if name != "cpu-core"]
    nearest = min(gpus, key=lambda name: abs(DEVICES[name].memory_bandwidth - bandwidth))
    latencies = {} if kind == "cpu" else PRESETS["dgx-a100"]
    return Topology(
        num_devices=topology.world_size,
        memory_bytes=tuple(
            int(hardware.storage.ddr if kind == "cpu" else hardware.storage.hbm) for hardware in topology.devices
        ),
        device="cpu-core" if kind == "cpu" else nearest,
        interconnect="torchrec",
        fast_domain_size=min(topology.intra_group_size, topology.world_size),
        intra_bandwidth=topology.intra_host_bw * _MS_PER_S,
        inter_bandwidth=topology.inter_host_bw * _MS_PER_S,
        **{name: value for name, value in latencies.items() if name.endswith("_latency_ms")},
    )


@dataclass(frozen=True, config=CONFIG)
class Reserve(Record):
    """Memory that is taken off every device before tables are placed.

    The parts and their defaults are those of TorchRec's `HeuristicalStorageReservation`: a share of the memory as a
    margin, a multiple of the dense parameters for gradients, optimiser and DistributedDataParallel, and copies of the
    ids of a rank's batch in the buffers of a training pipeline. Activations are yours to know.

    Values out of range raise `InputError`.

    Attributes:
        share: of the memory of a device, from 0 to 1.
        dense_copies: times the bytes of all parameters outside of embedding collections.
        input_copies: times the bytes of the ids of a rank's batch.
        extra_bytes: for activations and whatever else.
    """

    share: Annotated[Number, Field(ge=0, le=1)] = 0.15
    dense_copies: Annotated[Number, Field(ge=0)] = 6.0
    input_copies: Annotated[Number, Field(ge=0)] = 20.0
    extra_bytes: Annotated[Whole, Field(ge=0)] = 0

    def bytes_per_device(self, model: nn.Module, task: ShardingTask) -> tuple[int, ...]:
        """Return what is taken off each device of a task that was made from a model."""
        sharded = {
            id(parameter)
            for module in model.modules()
            if isinstance(module, EmbeddingBagCollection)
            for parameter in module.parameters()
        }
        dense = sum(p.numel() * p.element_size() for p in model.parameters() if id(p) not in sharded)
        buffers = sum(b.numel() * b.element_size() for b in model.buffers())
        ids_per_sample = math.fsum(table.pooling_factor for table in task.tables)
        inputs = task.batch_size / task.num_devices * ids_per_sample * _ID_BYTES
        common = self.dense_copies * dense + buffers + self.input_copies * inputs + self.extra_bytes
        return tuple(math.ceil(self.share * memory + common) for memory in task.topology.memory_bytes)
