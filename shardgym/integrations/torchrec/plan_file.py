"""TorchRec's `ShardingPlan` as JSON that people can read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.arguments import check_instance
from shardgym.files import write_whole
from shardgym.integrations.torchrec.library import (
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardMetadata,
    TorchRecPlan,
)
from shardgym.records import CONFIG, Record, Whole

Extent = tuple[Annotated[Whole, Field(ge=0)], Annotated[Whole, Field(ge=0)]]


@dataclass(frozen=True, config=CONFIG)
class ShardRecord(Record):
    """One shard.

    Attributes:
        offsets: first row and first column.
        sizes: rows and columns.
        placement: e.g. "rank:9/cuda:1".
    """

    offsets: Extent
    sizes: Extent
    placement: Annotated[str, Field(pattern=r"^rank:\d+/(cpu|cuda:\d+)$")]


@dataclass(frozen=True, config=CONFIG)
class TableRecord(Record):
    """One table.

    Attributes:
        sharding_type: e.g. "column_wise".
        compute_kernel: e.g. "fused".
        ranks: of the shards; None where TorchRec has none.
        shards: None for a table that every rank holds.
    """

    sharding_type: str
    compute_kernel: str
    ranks: tuple[Annotated[Whole, Field(ge=0)], ...] | None
    shards: tuple[ShardRecord, ...] | None


@dataclass(frozen=True, config=CONFIG)
class PlanRecord(Record):
    """A whole plan.

    Attributes:
        modules: tables by the path of their collection and by name.
    """

    modules: dict[str, dict[str, TableRecord]]
    schema: Literal["shardgym.torchrec_plan/1"] = "shardgym.torchrec_plan/1"


def save(sharding_plan: TorchRecPlan, path: str | Path) -> None:
    """Write TorchRec's plan as JSON.

    Sharding types, kernels, ranks and shards are written. Settings of caches and other things that a plan by ShardGym
    never has are not.

    Raises:
        InputError: not such a plan, or the file cannot be written.
    """
    check_instance("sharding_plan", sharding_plan, TorchRecPlan)
    modules = {
        module_path: {name: _table_record(sharding) for name, sharding in module.items()}
        for module_path, module in sharding_plan.plan.items()
    }
    write_whole(Path(path), PlanRecord(modules=modules).to_json(indent=2) + "\n")


def load(path: str | Path) -> TorchRecPlan:
    """Read TorchRec's plan from JSON; raises `InputError` when the file is damaged or something else."""
    record = PlanRecord.load(path)
    return TorchRecPlan(
        plan={
            module_path: EmbeddingModuleShardingPlan({name: _sharding(table) for name, table in tables.items()})
            for module_path, tables in record.modules.items()
        }
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
    return TableRecord(sharding.sharding_type, sharding.compute_kernel, ranks, shards)


def _sharding(table: TableRecord) -> ParameterSharding:
    spec = None
    if table.shards is not None:
        spec = EnumerableShardingSpec([
            ShardMetadata(shard_offsets=list(s.offsets), shard_sizes=list(s.sizes), placement=s.placement)
            for s in table.shards
        ])  # fmt: skip
    ranks = None if table.ranks is None else list(table.ranks)
    return ParameterSharding(table.sharding_type, table.compute_kernel, ranks, spec)
