"""Conversion of a TorchRec model to a task: tables, devices, and memory reserved for everything else."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn
from torchrec.distributed.planner.types import CustomTopologyData, ParameterConstraints
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardgym.costs.devices import DEVICES
from shardgym.errors import InputError, check_instance, check_int
from shardgym.plans.shard import COLUMN_UNIT
from shardgym.records import CONFIG, Number, Record, Whole
from shardgym.tables.bags import Bags
from shardgym.tables.streams.stream import IdStream
from shardgym.tables.table import EmbeddingTable, Optimizer, Precision, UniformIds
from shardgym.tasks.step_memory import StepMemory
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import PRESETS, Topology
from shardgym.torchrec.access import Access, table_access
from shardgym.torchrec.constraints import TableInput, Wish, in_words, input_of, not_in_task, output_precision
from shardgym.torchrec.model_tables import (
    COLLECTIONS,
    PRECISIONS,
    ModelTable,
    by_table,
    left_out,
    model_tables,
    split_name,
)
from shardgym.torchrec.sharding_plan import refuse_remarks

_logger = logging.getLogger("shardgym.torchrec")

#: Classes of optimisers that `apply_optimizer_in_backward` takes, by the names that tasks have for them.
_OPTIMIZERS: dict[str, Optimizer] = {
    "SGD": "exact_sgd",
    "RowWiseAdagrad": "rowwise_adagrad",
    "Adagrad": "adagrad",
    "Adam": "adam",
}

#: TorchRec's bandwidths are in bytes per millisecond.
_MS_PER_S = 1000


class ImportedTask(NamedTuple):
    """A task, with what was assumed and left out."""

    #: Its devices' memory excludes bytes in use. With a reserve, it must hold all of a step, see `StepMemory`.
    task: ShardingTask
    assumed: tuple[str, ...]  #: a sentence for each assumption
    left_out: tuple[str, ...]  #: embeddings of the model that the task lacks, see `model_tables.left_out`
    wishes: tuple[Wish, ...]  #: wishes in constraints that a task does not hold
    reserved_bytes: tuple[int, ...]  #: bytes of each device that are in use or reserved

    @property
    def remarks(self) -> list[str]:
        """What was left out of the task, as sentences."""
        kinds = " and ".join(cls.__name__ for cls in COLLECTIONS)
        besides = [f"{what} is left out: a task has the tables of {kinds}" for what in self.left_out]
        return besides + in_words(self.wishes)


def task_from_model(model: nn.Module, topology: Topology, batch_size: int, **options: Any) -> ShardingTask:
    """Return the task of `import_model`, with its `options`; the log of "shardgym.torchrec" warns of what it lacks."""
    imported = import_model(model, topology, batch_size, **options)
    for remark in imported.remarks:
        _logger.warning(remark)
    return imported.task


def import_model(
    model: nn.Module,
    topology: Topology,
    batch_size: int,
    *,
    pooling_factors: Mapping[str, float] | Sequence[float] | None = None,
    sample: KeyedJaggedTensor | Mapping[str, Bags] | IdStream | None = None,
    constraints: Mapping[str, ParameterConstraints] | None = None,
    optimizer: Optimizer | None = None,
    default_optimizer: Optimizer | None = None,
    reserve: Reserve | None = None,
    carried_bytes: int | Sequence[int] = 0,
    dedup_ids: bool = False,
    collections: Sequence[type[nn.Module]] = COLLECTIONS,
    strict: bool = False,
    name: str = "",
) -> ImportedTask:
    """Return a task with the tables of all collections of a model, and what it assumes and lacks.

    Tables of an `EmbeddingBagCollection` are pooled, those of an `EmbeddingCollection` are not.

    A model does not know how often its tables are accessed. Give pooling factors, a sample of ids or TorchRec's
    constraints. Without them, every table gets one id per sample and feature, spread evenly over its rows.

    Weights may differ in precision and optimiser between tables. Communication is FP32 for all precisions of weights,
    as TorchRec's operators return FP32, unless constraints ask for FP16 or BF16 for all tables.

    Args:
        model: model on any device; on "meta" it takes no memory.
        topology: the devices. Their memory is for embeddings alone, or for everything if there is a reserve.
        batch_size: samples of one training step over all devices, TorchRec's batch size times the ranks.
        pooling_factors: mean ids per sample, by table or for all tables in the model's order.
        sample: ids by feature, or a stream of them; if they have weights, tables count as weighted.
        constraints: TorchRec's constraints by table; a task holds their input fields, see `constraints.py`.
        optimizer: optimiser of all tables; by default the one that `apply_optimizer_in_backward` attached to each.
        default_optimizer: optimiser of tables without an attached one, like a sharder's `fused_params`; by default SGD.
        reserve: memory of a device for everything but tables. If given, memory must also hold a step's data in flight.
        carried_bytes: bytes in use on each device, or one number for all.
        dedup_ids: whether the job shards with `EmbeddingCollectionSharder(use_index_dedup=True)`.
        collections: classes of collections to import.
        strict: refuse models with other embeddings, and constraints that a task does not hold.
        name: display name of the task; by default the model's class, and what was left out and assumed.

    Raises:
        InputError: the model has no collection, a table that plans or FBGEMM cannot have, or weights of unknown types;
            an argument does not fit the model; or `strict` forbids to leave something out.
    """
    batch_size = check_int("batch_size", batch_size, 1)
    if batch_size % topology.num_devices:
        raise InputError(
            f"batch_size {batch_size}: all {topology.num_devices} ranks of a TorchRec job have the same number of "
            f"samples: give a multiple of {topology.num_devices}"
        )
    if reserve is not None:
        check_instance("reserve", reserve, Reserve, "give Reserve(share=...) for a share of the memory")
    tables = model_tables(model, collections)
    for table in tables:
        _check_table(table)
    wanted = {} if constraints is None else by_table("constraints", constraints, tables)
    samples = batch_size / topology.num_devices
    inputs = {table.name: input_of(wanted[table.name], table, samples) for table in tables if table.name in wanted}
    asked = {name: of.pooling_factor for name, of in inputs.items() if of.pooling_factor is not None}
    access = table_access(tables, batch_size, pooling_factors, sample, asked)
    has_weights = isinstance(sample, KeyedJaggedTensor) and sample.weights_or_none() is not None
    assumed = []
    unknown = [table.name for table in tables if table.name not in access]
    if unknown:
        assumed.append(f"1 id per sample and feature for {len(unknown)} of {len(tables)} tables")
    if sample is None:
        assumed.append("ids spread evenly over rows")
    elif any(of_table.reuse_histogram is None for of_table in access.values()):
        assumed.append(f"reuse of rows by the law of ids alone: the sample is shorter than a batch of {batch_size}")

    optimizers = _optimizers(model, tables, optimizer, default_optimizer)
    unnamed = [table.name for table in tables if table.name not in optimizers]
    if unnamed:
        of_some = f" for {len(unnamed)} of {len(tables)} tables" if optimizers else ""
        assumed.append(f"optimizer exact_sgd{of_some}, which keeps no state")
    optimizers |= dict.fromkeys(unnamed, "exact_sgd")
    usual = Counter(optimizers.values()).most_common(1)[0][0]
    besides = left_out(model, collections)
    communicated, wishes = output_precision(wanted, len(tables))
    wishes += not_in_task(wanted)
    wishes += [wish for table in tables if table.name in inputs for wish in inputs[table.name].wishes]

    made = [
        _made_table(
            table,
            access.get(table.name),
            inputs.get(table.name),
            weighted=table.weighted or has_weights,
            precision=PRECISIONS[table.config.data_type.name],
            optimizer=optimizers[table.name],
        )
        for table in tables
    ]
    said = [type(model).__name__, *(f"assumed: {what}" for what in assumed)]
    if besides:
        said.insert(1, f"left out: {len(besides)} modules with embeddings")
    task = ShardingTask(
        tables=tuple(made),
        topology=topology,
        batch_size=batch_size,
        precision=communicated,
        optimizer=usual,
        name=name or "; ".join(said)[:200],
        dedup_ids=dedup_ids,
    )
    carried = _carried_bytes(task, carried_bytes)
    room = tuple(memory - taken for memory, taken in zip(topology.memory_bytes, carried, strict=True))
    if min(room) > 0:
        task = dataclasses.replace(
            task,
            topology=dataclasses.replace(topology, memory_bytes=room),
            step_memory=None if reserve is None else reserve.step_memory(model, task),
        )
    if min(*room, *task.capacity_bytes) <= 0:
        device = int(np.argmin(np.minimum(room, task.capacity_bytes)))
        raise InputError(
            f"reserve and carried_bytes, and inputs and outputs of a step, take all {topology.memory_bytes[device]} "
            f"bytes of device {device}: nothing is left for tables; give more memory or a smaller reserve"
        )
    kept = (0,) if task.step_memory is None else task.step_memory.reserved_bytes
    reserved = tuple(map(sum, zip(carried, kept * (task.num_devices // len(kept)), strict=True)))
    imported = ImportedTask(task, tuple(assumed), tuple(besides), tuple(wishes), reserved)
    if strict:
        refuse_remarks(imported.remarks)
    return imported


def _made_table(
    table: ModelTable,
    access: Access | None,
    asked: TableInput | None,
    *,
    weighted: bool,
    precision: Precision,
    optimizer: Optimizer,
) -> EmbeddingTable:
    """Return a model's table for a task; without known accesses, each of its bags has one id."""
    config = table.config
    bags = len(config.feature_names) if asked is None else asked.num_features
    known = access or Access(float(bags), UniformIds())
    try:
        return EmbeddingTable(
            table.name, config.num_embeddings, config.embedding_dim,
            known.pooling_factor, known.ids, known.reuse_histogram,
            precision=precision,
            optimizer=optimizer,
            num_features=bags,
            weighted=table.pooling != "none" and (weighted or (asked is not None and asked.weighted)),
            pooling=table.pooling,
            run_length=known.run_length,
        )  # fmt: skip
    except InputError as error:
        named = "" if f"'{table.name}'" in str(error) else f"table '{table.name}': "
        raise InputError(f"{named}{error}") from None


def _check_table(table: ModelTable) -> None:
    config = table.config
    if config.embedding_dim % COLUMN_UNIT:
        raise InputError(
            f"table '{table.name}' has {config.embedding_dim} columns: FBGEMM's fused kernel needs widths divisible by "
            f"{COLUMN_UNIT}; pad the table to {-(-config.embedding_dim // COLUMN_UNIT) * COLUMN_UNIT} columns"
        )
    if config.data_type.name not in PRECISIONS:
        raise InputError(
            f"table '{table.name}' has weights of {config.data_type.name}: expected {' or '.join(PRECISIONS)}"
        )
    if getattr(config, "use_virtual_table", False):  # TorchRec 1.4 has none
        raise InputError(f"table '{table.name}' is virtual: expected a fixed number of rows, which plans need")


def _optimizers(
    model: nn.Module, tables: list[ModelTable], optimizer: Optimizer | None, default: Optimizer | None
) -> dict[str, Optimizer]:
    """Return the optimisers of tables that have one."""
    if optimizer is not None:
        return dict.fromkeys((table.name for table in tables), optimizer)
    attached: dict[str, Optimizer] = {} if default is None else dict.fromkeys((t.name for t in tables), default)
    for table in tables:
        collection = model.get_submodule(table.path)
        weight = cast("torch.Tensor", collection.get_parameter(table.parameter))
        classes = [cls.__name__ for cls in getattr(weight, "_optimizer_classes", None) or []]
        if len(classes) > 1 or any(name not in _OPTIMIZERS for name in classes):
            raise InputError(
                f"optimizers attached to table '{table.name}': {', '.join(classes)}; expected one of "
                f"{', '.join(_OPTIMIZERS)}, or optimizer= to say which one counts"
            )
        if classes:
            attached[table.name] = _OPTIMIZERS[classes[0]]
    return attached


def _carried_bytes(task: ShardingTask, carried_bytes: int | Sequence[int]) -> tuple[int, ...]:
    devices = task.num_devices
    given = carried_bytes if isinstance(carried_bytes, Sequence) else [carried_bytes] * devices
    if len(given) != devices:
        raise InputError(f"carried_bytes: expected a number, or a list of {devices}, got a list of {len(given)}")
    return tuple(check_int("carried_bytes", one) for one in given)


def topology_from_torchrec(topology: TorchRecTopology) -> Topology:
    """Convert devices, memory, hosts and bandwidths of TorchRec's topology.

    Memory is HBM, or DDR if the job runs on CPUs. The device is "cpu-core", or the GPU with the nearest memory
    bandwidth; with GPUs, the DDR of all devices of a host is its memory for plans. Latencies, which TorchRec does not
    have, are those of the topology `dgx-a100`, or `cpu`. SSDs are ignored.

    Raises:
        InputError: the devices are neither cuda nor cpu, or have no memory.
    """
    kind = topology.compute_device
    if kind not in ("cpu", "cuda"):
        raise InputError(f"TorchRec topology for '{kind}': expected compute_device 'cuda' or 'cpu'")
    bandwidth = topology.hbm_mem_bw * _MS_PER_S
    gpus = [name for name in DEVICES if name != "cpu-core"]
    nearest = min(gpus, key=lambda name: abs(DEVICES[name].memory_bandwidth - bandwidth))
    of_card = DEVICES[nearest].memory_bandwidth / _MS_PER_S
    expected = {"hbm_mem_bw": (of_card / 2, 2 * of_card), "intra_host_bw": (1e5, 1e10), "inter_host_bw": (1e5, 1e10)}
    for name, (least, most) in expected.items():
        given = getattr(topology, name)
        if not least <= given <= most and (kind, name) != ("cpu", "hbm_mem_bw"):
            wanted = f"expected {least:.3g} to {most:.3g} bytes per ms, GB/s times 1e6"
            _logger.warning(f"{name}={given:g} of TorchRec's topology: {wanted}")
    latencies = {} if kind == "cpu" else PRESETS["dgx-a100"]
    # Before 1.6 a fast domain is a host.
    domain = min(getattr(topology, "intra_group_size", topology.local_world_size), topology.world_size)
    hosts = {}
    if kind == "cuda":
        ddr = min(int(hardware.storage.ddr) for hardware in topology.devices)
        hosts["host_memory_bytes"] = ddr * min(topology.local_world_size, topology.world_size)
        hosts["host_bandwidth"] = topology.hbm_to_ddr_mem_bw * _MS_PER_S
    return Topology(
        num_devices=topology.world_size,
        memory_bytes=tuple(
            int(hardware.storage.ddr if kind == "cpu" else hardware.storage.hbm) for hardware in topology.devices
        ),
        device="cpu-core" if kind == "cpu" else nearest,
        interconnect="torchrec",
        fast_domain_size=domain,
        host_size=topology.local_world_size if topology.local_world_size < domain else None,
        intra_bandwidth=topology.intra_host_bw * _MS_PER_S,
        inter_bandwidth=topology.inter_host_bw * _MS_PER_S,
        **{name: value for name, value in latencies.items() if name.endswith("_latency_ms")},
        **hosts,
    )


def topology_to_torchrec(topology: Topology, **constants: Any) -> TorchRecTopology:
    """Convert the devices, hosts and fast domains of a topology, with its memory as HBM, or as DDR on "cpu".

    Args:
        topology: topology of ShardGym.
        constants: `compute_device` and bandwidths, as TorchRec's topology takes them.

    Raises:
        InputError: fast domains have several hosts, and TorchRec is older than 1.6.
    """
    memory = topology.memory_bytes
    cap = "hbm_cap" if constants["compute_device"] == "cuda" else "ddr_cap"
    hosts = topology.fast_domain_size // topology.devices_per_host
    known = inspect.signature(TorchRecTopology).parameters
    if hosts > 1 and "pod_size" not in known:
        raise InputError(f"fast domains of {hosts} hosts: TorchRec supports them from 1.6 on; install a later version")
    # Versions with another way to make topologies warn of this one.
    optional = {"pod_size": None if hosts == 1 else hosts, "created_by_factory": True}
    alike = len(set(memory)) == 1
    return TorchRecTopology(
        world_size=topology.num_devices, local_world_size=topology.devices_per_host, **{cap: memory[0]},
        custom_topology_data=None if alike else CustomTopologyData({cap: list(memory)}, topology.num_devices),
        **{name: value for name, value in optional.items() if name in known}, **constants,
    )  # fmt: skip


@dataclass(frozen=True, config=CONFIG)
class Reserve(Record):
    """Memory of a device for everything but tables.

    The parts and their defaults are those of TorchRec's `HeuristicalStorageReservation`: a share of the memory as a
    margin, a multiple of the dense parameters for gradients, optimiser and DistributedDataParallel, and copies of the
    ids of a rank's batch in the buffers of a training pipeline. Activations are not included. A step's data in flight
    come on top, as in TorchRec's `EmbeddingStorageEstimator`; see `StepMemory`. TorchRec's
    `FixedPercentageStorageReservation(percentage)` is `Reserve(percentage, 0, 0)`, and its
    `FixedAbsoluteStorageReservation(hbm_reserved_bytes)` is `Reserve(0, 0, 0, hbm_reserved_bytes)`.

    Values out of range raise `InputError`.

    Attributes:
        share: share of the device's memory, from 0 to 1.
        dense_copies: multiple of the bytes of all parameters outside of planned collections.
        input_copies: multiple of the bytes of a rank's batch: ids, their weights and lengths.
        extra_bytes: bytes for activations and anything else.
    """

    share: Annotated[Number, Field(ge=0, le=1)] = 0.15
    dense_copies: Annotated[Number, Field(ge=0)] = 6.0
    input_copies: Annotated[Number, Field(ge=0)] = 20.0
    extra_bytes: Annotated[Whole, Field(ge=0)] = 0

    def step_memory(self, model: nn.Module, task: ShardingTask) -> StepMemory:
        """Return the memory of a step on the devices of a task imported from a model."""
        sharded = {
            id(parameter)
            for path in {split_name(table.name)[0] for table in task.tables}
            for parameter in model.get_submodule(path).parameters()
        }
        dense = sum(p.numel() * p.element_size() for p in model.parameters() if id(p) not in sharded)
        buffers = sum(b.numel() * b.element_size() for b in model.buffers())
        common = self.dense_copies * dense + buffers + self.extra_bytes
        reserved = tuple(math.ceil(self.share * memory + common) for memory in task.topology.memory_bytes)
        return StepMemory(reserved if len(set(reserved)) > 1 else reserved[:1], self.input_copies)
