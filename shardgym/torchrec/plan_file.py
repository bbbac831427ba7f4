"""TorchRec's `ShardingPlan` as readable JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import torch.distributed as dist
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn
from torchrec.distributed.types import (
    CacheParams,
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardMetadata,
)
from torchrec.distributed.types import ShardingPlan as TorchRecPlan

from shardgym.errors import InputError
from shardgym.files import write_whole
from shardgym.records import CONFIG, Record, Whole
from shardgym.torchrec.model_tables import join_name, model_tables

Extent = tuple[Annotated[Whole, Field(ge=0)], Annotated[Whole, Field(ge=0)]]


@dataclass(frozen=True, config=CONFIG)
class ShardRecord(Record):
    """One shard."""

    offsets: Extent  #: first row and first column
    sizes: Extent  #: rows and columns
    placement: Annotated[str, Field(pattern=r"^rank:\d+/(cpu|cuda:\d+)$")]  #: e.g. "rank:9/cuda:1"


@dataclass(frozen=True, config=CONFIG)
class TableRecord(Record):
    """One table."""

    sharding_type: str  #: e.g. "column_wise"
    compute_kernel: str  #: e.g. "fused"
    ranks: tuple[Annotated[Whole, Field(ge=0)], ...] | None  #: ranks of the shards; None if TorchRec has none
    shards: tuple[ShardRecord, ...] | None  #: None for a table that every rank holds
    #: Load factor of `cache_params`, if set.
    cache_load_factor: Annotated[float | None, Field(gt=0, le=1, exclude_if=lambda share: share is None)] = None


@dataclass(frozen=True, config=CONFIG)
class PlanRecord(Record):
    """A whole plan."""

    modules: dict[str, dict[str, TableRecord]]  #: tables by the path of their collection and by name
    #: Number of ranks of a group, for a plan of one of several groups.
    group_size: Annotated[Whole, Field(ge=1)] | None = None
    schema: Literal["shardgym.torchrec_plan/1"] = "shardgym.torchrec_plan/1"


def save(sharding_plan: TorchRecPlan, path: str | Path, group_size: int | None = None) -> None:
    """Write TorchRec's plan as JSON.

    The file has sharding types, kernels, ranks, shards and cache load factors, but no fields that ShardGym never sets.

    Args:
        sharding_plan: TorchRec's plan.
        path: file to write.
        group_size: number of ranks of a group, for a plan of one of several groups.

    Raises:
        InputError: the file cannot be written.
    """
    write_whole(Path(path), plan_record(sharding_plan, group_size).to_json(indent=2) + "\n")


def plan_record(sharding_plan: TorchRecPlan, group_size: int | None = None) -> PlanRecord:
    """Return the record that `save` writes."""
    modules = {
        module_path: {name: _table_record(sharding) for name, sharding in module.items()}
        for module_path, module in sharding_plan.plan.items()
    }
    return PlanRecord(modules=modules, group_size=group_size)


def load(path: str | Path, model: nn.Module | None = None) -> TorchRecPlan:
    """Read TorchRec's plan from JSON.

    Args:
        path: file to read.
        model: model to use the plan with. If given, its tables must equal those of the plan in rows and columns,
            because TorchRec trains a collection without a plan whole on every rank. A running job needs its ranks.

    Raises:
        InputError: the file is damaged, of another kind, or for another model or other ranks than the job's.
    """
    record = PlanRecord.load(path)
    if model is not None:
        _check_model(str(path), record, model)
    return TorchRecPlan(
        plan={
            module_path: EmbeddingModuleShardingPlan({name: _sharding(table) for name, table in tables.items()})
            for module_path, tables in record.modules.items()
        }
    )


def _check_model(source: str, record: PlanRecord, model: nn.Module) -> None:
    planned = {
        join_name(module_path, name): table
        for module_path, tables in record.modules.items()
        for name, table in tables.items()
    }
    found = {table.name: (table.config.num_embeddings, table.config.embedding_dim) for table in model_tables(model)}
    for name in [*planned, *found]:
        if name not in found or name not in planned:
            where = "the plan" if name in planned else "the model"
            raise InputError(f"{source} is for another model: table '{name}' is only in {where}")
        shards = planned[name].shards or ()
        ends = [(s.offsets[0] + s.sizes[0], s.offsets[1] + s.sizes[1]) for s in shards]
        size = tuple(map(max, zip(*ends, strict=True)))
        if size and size != found[name]:
            raise InputError(
                f"{source} is for another model: table '{name}' is {size[0]} x {size[1]} in the plan, "
                f"{found[name][0]} x {found[name][1]} in the model"
            )
    ranks = record.group_size or 1 + max(max(table.ranks or (0,)) for table in planned.values())
    on_all = any(table.sharding_type in ("row_wise", "data_parallel") for table in planned.values())
    given = f"{'' if on_all else 'at least '}{ranks}"
    world = dist.get_world_size() if dist.is_initialized() else ranks
    fits = world == ranks if on_all else world >= ranks
    if record.group_size:
        given = f"groups of {ranks}"
        fits = world % ranks == 0
    if not fits:
        raise InputError(
            f"{source} is for {given} ranks, this job has {world}: plan for as many, or save a group's with group_size"
        )


def _table_record(sharding: ParameterSharding) -> TableRecord:
    spec = sharding.sharding_spec
    shards = None
    if spec is not None:
        shards = tuple(
            ShardRecord(tuple(shard.shard_offsets), tuple(shard.shard_sizes), str(shard.placement))
            for shard in spec.shards
        )
    ranks = None if sharding.ranks is None else tuple(sharding.ranks)
    share = None if sharding.cache_params is None else sharding.cache_params.load_factor
    return TableRecord(sharding.sharding_type, sharding.compute_kernel, ranks, shards, share)


def _sharding(table: TableRecord) -> ParameterSharding:
    spec = None
    if table.shards is not None:
        spec = EnumerableShardingSpec([
            ShardMetadata(shard_offsets=list(s.offsets), shard_sizes=list(s.sizes), placement=s.placement)
            for s in table.shards
        ])  # fmt: skip
    ranks = None if table.ranks is None else list(table.ranks)
    cache = None if table.cache_load_factor is None else CacheParams(load_factor=table.cache_load_factor)
    return ParameterSharding(table.sharding_type, table.compute_kernel, ranks, spec, cache)
