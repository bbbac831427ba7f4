"""A task from somebody's own TorchRec model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, cast

import torch
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardgym.arguments import check_instance, check_int
from shardgym.errors import InputError
from shardgym.ids import Bags
from shardgym.integrations.torchrec.access import (
    Access,
    access_of_constraints,
    access_of_pooling_factors,
    access_of_sample,
)
from shardgym.integrations.torchrec.devices import Reserve
from shardgym.integrations.torchrec.model_tables import PRECISIONS, ModelTable, model_tables
from shardgym.plan import COLUMN_UNIT
from shardgym.table import EmbeddingTable, UniformIds
from shardgym.task import Optimizer, Precision, ShardingTask
from shardgym.topology import Topology

#: What is done with a table that several features share: refused, or their bags are counted as one.
SharedTables = Literal["refuse", "add"]

#: Classes of optimisers that `apply_optimizer_in_backward` takes, by the names that tasks have for them.
_OPTIMIZERS: dict[str, Optimizer] = {
    "SGD": "exact_sgd",
    "RowWiseAdagrad": "rowwise_adagrad",
    "Adagrad": "adagrad",
    "Adam": "adam",
}

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


def task_from_model(
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
) -> ShardingTask:
    """Return a task with the tables of every `EmbeddingBagCollection` of a model; see `import_model`."""
    return import_model(
        model,
        topology,
        batch_size,
        pooling_factors=pooling_factors,
        sample=sample,
        constraints=constraints,
        optimizer=optimizer,
        reserve=reserve,
        shared_tables=shared_tables,
        name=name,
    ).task


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
    assumed = []

    given = {"pooling_factors": pooling_factors, "sample": sample, "constraints": constraints}
    sources = [source for source, value in given.items() if value is not None]
    if len(sources) > 1:
        raise InputError(f"{' and '.join(sources)} were given: give one of them")
    access: dict[str, Access] = {}
    if pooling_factors is not None:
        access = access_of_pooling_factors(tables, pooling_factors)
    elif sample is not None:
        access = access_of_sample(tables, sample, batch_size)
    elif constraints is not None:
        access = access_of_constraints(tables, constraints)
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
        tables=tuple(_embedding_table(table, access.get(table.name, _ASSUMED)) for table in tables),
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


def _embedding_table(table: ModelTable, access: Access) -> EmbeddingTable:
    return EmbeddingTable(
        name=table.name,
        num_embeddings=table.config.num_embeddings,
        embedding_dim=table.config.embedding_dim,
        pooling_factor=access.pooling_factor,
        ids=access.ids,
        reuse_histogram=access.reuse_histogram,
    )
