"""Plans as TorchRec's `ShardingPlan` and back, with what TorchRec does not check found before a job starts."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Literal, NamedTuple, get_args

from torch import nn
from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardMetadata,
)
from torchrec.distributed.types import ShardingPlan as TorchRecPlan
from torchrec.modules.embedding_configs import PoolingType

from shardgym.arguments import check_instance, check_int
from shardgym.errors import InfeasiblePlanError, InputError, UnknownNameError
from shardgym.plan import Shard, ShardingPlan, cover_problems
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask
from shardgym.torchrec.model_tables import ModelTable, join_name, model_tables, split_name

DeviceType = Literal["cuda", "cpu"]

#: Kernels that keep all rows of a shard on its device, as plans say.
_KERNELS = ("fused", "dense", "quant")

#: Ways to cut a table by rows.
_BY_ROWS = ("row_wise", "table_row_wise")


class RankLayout(NamedTuple):
    """How ranks are placed on machines.

    Attributes:
        num_ranks: ranks in all; rank r holds what a plan puts on device r.
        device_type: what the job runs on.
        ranks_per_host: ranks of one machine.
    """

    num_ranks: int
    device_type: DeviceType
    ranks_per_host: int

    def device(self, rank: int) -> str:
        """Return e.g. "rank:9/cuda:1"."""
        return f"rank:{rank}/" + ("cpu" if self.device_type == "cpu" else f"cuda:{rank % self.ranks_per_host}")


def to_torchrec(
    plan: ShardingPlan,
    task: ShardingTask,
    model: nn.Module | None = None,
    *,
    device_type: DeviceType = "cuda",
    ranks_per_host: int | None = None,
) -> TorchRecPlan:
    """Return a plan as `DistributedModelParallel(model, plan=...)` takes it. Rank r holds the shards of device r.

    A table in one piece becomes `table_wise`. One that is cut by columns becomes `column_wise`, with any widths. Only
    pieces on one rank must have one width in TorchRec: if they do not, adjacent ones are joined, and what still differs
    is cut into pieces of the largest width that divides all. One that is cut by rows into equal pieces becomes
    `row_wise` when every rank holds one, in the order of ranks, and `table_row_wise` when the ranks of one host do.
    Kernels are fused.

    Args:
        plan: feasible for `task`.
        task: as `task_from_model` or `model_from_task` name tables.
        model: what the plan is to be used with; given, the plan is checked against it.
        device_type: "cuda" or "cpu", that of the job.
        ranks_per_host: ranks of one machine; the task's `fast_domain_size` by default.

    Raises:
        InfeasiblePlanError: the plan does not cover the task, does not fit, or has a width that FBGEMM cannot fuse.
        InputError: the plan or the task is for something else, or TorchRec cannot do what the plan says.
    """
    check_instance("plan", plan, ShardingPlan)
    plan.validate(task)
    if plan.has_replicas:
        raise InputError("the plan has replicas, which are not exported yet: expected one device for each shard")
    if device_type not in get_args(DeviceType):
        raise InputError(f"device_type: expected 'cuda' or 'cpu', got {device_type!r:.40}")
    per_host = task.topology.fast_domain_size if ranks_per_host is None else ranks_per_host
    layout = RankLayout(task.num_devices, device_type, check_int("ranks_per_host", per_host, 1))
    shards: dict[str, list[Shard]] = {}
    for shard in plan.shards:
        shards.setdefault(shard.table, []).append(shard)
    tables = {name: _parameter_sharding(task.table(name), pieces, layout) for name, pieces in shards.items()}
    if model is not None:
        types = {name: sharding.sharding_type for name, sharding in tables.items()}
        found = model_tables(model)
        check_same_tables(task, found)
        _check_mean_pooling(found, types)
    modules: dict[str, EmbeddingModuleShardingPlan] = {}
    for table in task.tables:
        path, name = split_name(table.name)
        modules.setdefault(path, EmbeddingModuleShardingPlan())[name] = tables[table.name]
    return TorchRecPlan(plan=modules)


def check_same_tables(task: ShardingTask, tables: list[ModelTable]) -> None:
    """Raise `InputError` unless a task has exactly the tables of a model."""
    found = {table.name: table.config for table in tables}
    for table in task.tables:
        if table.name not in found:
            raise InputError(
                f"the plan is for another model: this one has no table '{table.name}'; its {len(found)} tables are "
                f"{', '.join(sorted(found)[:3])}{', ...' if len(found) > 3 else ''}"
            )
        config = found.pop(table.name)
        if (config.num_embeddings, config.embedding_dim) != (table.num_embeddings, table.embedding_dim):
            raise InputError(
                f"the plan is for another model: table '{table.name}' is {config.num_embeddings} x "
                f"{config.embedding_dim} there, and {table.num_embeddings} x {table.embedding_dim} in the task"
            )
    if found:
        # TorchRec would train these on every rank without a word, when their whole collection is missing.
        raise InputError(f"the plan is for another model: it has no shard of table '{next(iter(found))}'")


def _check_mean_pooling(tables: list[ModelTable], types: dict[str, str]) -> None:
    """Refuse collections in which TorchRec divides the output of all tables by the bags of a row-wise mean table."""
    for path, group in itertools.groupby(tables, key=lambda table: table.path):
        members = list(group)
        by_rows = [table.name for table in members if types[table.name] in _BY_ROWS]
        mean = [table.name for table in members if table.config.pooling == PoolingType.MEAN]
        if by_rows and mean and len(by_rows) < len(members):
            raise InputError(
                f"collection '{path}' has mean-pooled table '{mean[0]}' and row-wise table '{by_rows[0]}': TorchRec "
                "would give wrong outputs; keep tables of such a collection whole or cut them by columns, or put "
                "mean-pooled tables into one of their own"
            )


def _parameter_sharding(table: EmbeddingTable, shards: list[Shard], layout: RankLayout) -> ParameterSharding:
    if all(shard.num_rows == table.num_embeddings for shard in shards):
        shards = _with_one_width_per_rank(shards)
        sharding_type = "table_wise" if len(shards) == 1 else "column_wise"
    elif all(shard.num_columns == table.embedding_dim for shard in shards):
        sharding_type = _row_type(table, shards, layout)
    else:
        raise InputError(
            f"table '{table.name}' is cut by rows and by columns: TorchRec cuts a table one way; "
            "give a plan that does, too"
        )
    return ParameterSharding(
        sharding_type=sharding_type,
        compute_kernel="fused",
        ranks=[shard.devices[0] for shard in shards],
        sharding_spec=EnumerableShardingSpec([
            ShardMetadata(
                shard_offsets=[shard.rows[0], shard.columns[0]],
                shard_sizes=[shard.num_rows, shard.num_columns],
                placement=layout.device(shard.devices[0]),
            )
            for shard in shards
        ]),
    )  # fmt: skip


def _with_one_width_per_rank(shards: list[Shard]) -> list[Shard]:
    """Return column shards of a table, cut so that those on one rank have one width, in the order of columns.

    TorchRec views the weights of a table's pieces on a rank as one matrix with the width of the first piece, and fails
    on that rank alone when they differ.
    """
    pieces = []
    for device in {shard.devices[0] for shard in shards}:
        mine = [shard for shard in shards if shard.devices[0] == device]
        if len({shard.num_columns for shard in mine}) > 1:
            mine = _joined(mine)
            width = math.gcd(*(shard.num_columns for shard in mine))
            mine = [
                dataclasses.replace(shard, columns=(first, first + width))
                for shard in mine
                for first in range(*shard.columns, width)
            ]
        pieces += mine
    return sorted(pieces)


def _joined(shards: list[Shard]) -> list[Shard]:
    """Join column shards that are next to each other; they come in the order of columns."""
    joined = shards[:1]
    for shard in shards[1:]:
        if shard.columns[0] == joined[-1].columns[1]:
            joined[-1] = dataclasses.replace(shard, columns=(joined[-1].columns[0], shard.columns[1]))
        else:
            joined.append(shard)
    return joined


def _row_type(table: EmbeddingTable, shards: list[Shard], layout: RankLayout) -> str:
    """Return the type of a table that is cut by rows; `shards` are in the order of rows."""
    ranks = [shard.devices[0] for shard in shards]
    block = -(-table.num_embeddings // len(shards))
    # TorchRec takes other row shards, too, and sends ids to ranks as if these were equal.
    equal = [shard.rows[0] for shard in shards] == [block * i for i in range(len(shards))]
    if equal and ranks == list(range(layout.num_ranks)):
        return "row_wise"
    per_host = layout.ranks_per_host
    if equal and ranks[0] % per_host == 0 and ranks == list(range(ranks[0], ranks[0] + per_host)):
        return "table_row_wise"
    raise InputError(
        f"table '{table.name}' is cut by rows over devices {', '.join(map(str, ranks))}: TorchRec needs pieces of "
        f"ceil(rows / pieces) rows on each of the {layout.num_ranks} ranks, in their order, or on the {per_host} "
        "ranks of one host"
    )


def from_torchrec(sharding_plan: TorchRecPlan, task: ShardingTask) -> ShardingPlan:
    """Return TorchRec's plan as one for a task. Memory is not checked: TorchRec counts other things, too.

    Args:
        sharding_plan: by the planner or by hand, for cuda or cpu.
        task: as `task_from_model` or `model_from_task` name tables.

    Raises:
        UnknownNameError: a table of the plan is not in the task.
        InputError: a table is replicated (`data_parallel`) or kept outside of its device, which plans cannot say, or
            is not in the plan.
        InfeasiblePlanError: shards miss or overlap, are on ranks that do not exist, or have a width that FBGEMM cannot
            fuse.
    """
    check_instance("sharding_plan", sharding_plan, TorchRecPlan, "DistributedModelParallel takes one as plan=")
    check_instance("task", task, ShardingTask)
    shards: list[Shard] = []
    found = set()
    for path, module in sharding_plan.plan.items():
        for table, sharding in module.items():
            name = join_name(path, table)
            if not task.has_table(name):
                raise UnknownNameError("table of the TorchRec plan", name, (known.name for known in task.tables))
            found.add(name)
            shards += _shards_of(name, sharding)
    missing = [table.name for table in task.tables if table.name not in found]
    if missing:
        raise InputError(f"the TorchRec plan has no table '{missing[0]}' ({len(missing)} of the task are missing)")
    problems = cover_problems(task, shards)
    if problems:
        raise InfeasiblePlanError(problems)
    return ShardingPlan.of(task, shards)


def _shards_of(name: str, sharding: ParameterSharding) -> list[Shard]:
    if sharding.sharding_spec is None or sharding.sharding_type == "data_parallel":
        raise InputError(
            f"table '{name}' is {sharding.sharding_type}, replicated on every rank: a plan places every cell once; "
            "let TorchRec plan with sharding_types of table_wise, column_wise and row_wise in its constraints"
        )
    if sharding.compute_kernel not in _KERNELS:
        raise InputError(
            f"table '{name}' has kernel {sharding.compute_kernel}, which keeps rows outside of the device: expected "
            f"{' or '.join(_KERNELS)}"
        )
    shards = []
    for metadata in sharding.sharding_spec.shards:
        row, column = metadata.shard_offsets
        num_rows, num_columns = metadata.shard_sizes
        if num_rows and num_columns:  # a rank may be left without rows
            rank = metadata.placement.rank()
            shards.append(Shard(name, (row, row + num_rows), (column, column + num_columns), rank))
    return shards
