"""Conversion between plans and TorchRec's `ShardingPlan`, with checks that TorchRec lacks, before a job starts."""

import logging
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

from torch import nn
from torchrec.distributed.types import (
    CacheParams,
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardMetadata,
)
from torchrec.distributed.types import ShardingPlan as TorchRecPlan

from shardgym.errors import InfeasiblePlanError, InputError, UnknownNameError, check_int, short_repr
from shardgym.plans.feasibility import cover_problems
from shardgym.plans.plan import Kind, ShardingPlan
from shardgym.plans.shard import ComputeKernel, Shard
from shardgym.tasks.task import ShardingTask
from shardgym.torchrec.model_tables import COLLECTIONS, ModelTable, join_name, model_tables, split_name
from shardgym.torchrec.table_cuts import (
    BY_ROWS,
    RIGHT_MEANS,
    Ranks,
    TableCut,
    as_run,
    check_one_block_size,
    cut_of,
    fewest_types,
    of_sequences,
)

_logger = logging.getLogger("shardgym.torchrec")

DeviceType = Literal["cuda", "cpu"]

#: TorchRec's kernels by what shards call them: "dense" and "quant" keep rows on the device, too.
_KERNELS: dict[str, ComputeKernel] = {
    "fused": "fused",
    "dense": "fused",
    "quant": "fused",
    "fused_uvm": "fused_uvm",
    "fused_uvm_caching": "fused_uvm_caching",
}
DEFAULT_CACHE_LOAD_FACTOR = 0.2  #: FBGEMM's default of `cache_load_factor`


def refuse_remarks(remarks: Sequence[str]) -> None:
    """Raise `InputError` if there are remarks, for strict imports and planners."""
    if remarks:
        others = f" ({len(remarks) - 1} more)" if len(remarks) > 1 else ""
        raise InputError(f"strict: {remarks[0]}{others}")


class ExportedPlan(NamedTuple):
    """TorchRec's plan, with notes for training with it."""

    sharding_plan: TorchRecPlan
    notes: tuple[str, ...]  #: sentences on what trains otherwise than in the task, or what to tell TorchRec


class ImportedPlan(NamedTuple):
    """A plan for a task, and what was left out of TorchRec's plan."""

    plan: ShardingPlan
    #: Modules without tables in the task, such as a collection that was not imported, with their tables.
    left_out: tuple[str, ...]

    @property
    def remarks(self) -> list[str]:
        """What was left out, as sentences."""
        return [f"{what} is left out: the task has none of its tables" for what in self.left_out]


def to_torchrec(plan: ShardingPlan, task: ShardingTask, model: nn.Module | None = None, **options: Any) -> TorchRecPlan:
    """Return the plan that `export_plan` makes; its notes are warnings in the log of "shardgym.torchrec"."""
    exported = export_plan(plan, task, model, **options)
    for note in exported.notes:
        _logger.warning(note)
    return exported.sharding_plan


def export_plan(
    plan: ShardingPlan,
    task: ShardingTask,
    model: nn.Module | None = None,
    *,
    device_type: DeviceType = "cuda",
    collections: Sequence[type[nn.Module]] = COLLECTIONS,
) -> ExportedPlan:
    """Return a plan for `DistributedModelParallel(model, plan=...)`. Rank r holds the shards of device r.

    The export uses all seven types of TorchRec. Among equivalent types, a table gets the one that its collection has
    already, because TorchRec runs one fused operator and one set of exchanges for each type in a collection:

    - A table that all devices hold is `data_parallel`, with kernel dense. Other tables have the kernel of their shards,
      with the cache load factor of fused_uvm_caching as `cache_params`.
    - A table in one piece is `table_wise`. A table cut by columns is `column_wise`, or `table_column_wise` if one fast
      domain of several has all pieces. If any table of a collection is cut by columns, its whole tables get that type
      with one shard. With three cut and three whole tables, this took a rank 1 operator and 5 all-to-alls a step
      instead of 2 and 10, with the same losses. TorchRec requires pieces of a table on one rank to have one width:
      adjacent pieces are joined, and others are cut into the largest width that divides all.
    - A table cut by rows into pieces of ceil(rows / ranks) is `row_wise` if every rank has one, in the order of ranks,
      and `table_row_wise` if the ranks of one host do. A table cut by columns first, and each block by rows over a
      host, is `grid_shard`. If a collection has a grid, its tables cut by rows over as many ranks are grids of one
      block. Several whole hosts may count as one, equally many for all tables; a note then says what to tell TorchRec.
    - Unpooled tables are `table_wise`, `column_wise`, `row_wise` or `data_parallel`, the types of an
      `EmbeddingCollection`. All pieces of columns of a collection have the largest width that divides all of them, with
      a note if some were wider.

    A plan with `group_size` becomes that of one group, on ranks 0 to `group_size` - 1, for
    `DMPCollection(model, plan=..., world_size=..., sharding_group_size=group_size, use_inter_host_allreduce=True)`.
    This makes groups of consecutive ranks, as in plans. Its `sync()` averages the weights of groups.

    Args:
        plan: a feasible plan for `task`.
        task: task with table names of `task_from_model` or `model_from_task`. `cuda:N` counts within its hosts.
        model: model to use the plan with. If given, the plan is checked against it.
        device_type: "cuda" or "cpu", that of the job.
        collections: classes of the model's collections that the plan must cover.

    Raises:
        InfeasiblePlanError: the plan does not cover the task, does not fit, or has a width that FBGEMM cannot fuse.
        InputError: the plan or the task is for something else, or TorchRec cannot run the plan.
    """
    plan.validate(task)
    if device_type not in get_args(DeviceType):
        raise InputError(f"device_type: expected 'cuda' or 'cpu', got {device_type!r:.40}")
    group = task.num_devices if plan.group_size is None else plan.group_size
    ranks = Ranks(group, task.topology.devices_per_host)
    run = as_run(plan, task)
    members_at: dict[str, list[TableCut]] = {}
    for table in task.tables:
        path, _ = split_name(table.name)
        members_at.setdefault(path, []).append(cut_of(run, task, table, ranks))
    unpooled = [path for path, members in members_at.items() if _is_unpooled(task, members)]
    for path in unpooled:
        members_at[path] = of_sequences(members_at[path], on_cpus=device_type == "cpu")
    pieces = [(table.name, plan.of_table(table.name), run.of_table(table.name)) for table in task.tables]
    changed = [f"'{name}' in {len(theirs)} pieces, not {len(ours)}" for name, ours, theirs in pieces if ours != theirs]
    notes = []
    if changed:
        notes.append(
            f"TorchRec runs {', '.join(changed[:3])}{', ...' if changed[3:] else ''}: pieces of an EmbeddingCollection "
            "have one width, as have those of a table on one rank; ShardGymPlanner makes plans that run as they are"
        )
    cuts = [cut for members in members_at.values() for cut in members]
    block = check_one_block_size(cuts)
    types: dict[str, Kind] = {}
    for path, members in members_at.items():
        kinds = [cut.kind for cut in members] if path in unpooled else fewest_types(members)
        types |= {cut.name: kind for cut, kind in zip(members, kinds, strict=True)}
    mean = {table.name for table in task.tables if table.pooling == "mean"}
    if model is not None:
        found = model_tables(model, collections)
        check_same_tables(task, found)
        mean |= {table.name for table in found if table.pooling == "mean"}
    _check_mean_pooling(members_at, types, mean)
    devices = [
        f"rank:{rank}/" + ("cpu" if device_type == "cpu" else f"cuda:{rank % ranks.per_machine}")
        for rank in range(group)
    ]
    elsewhere = next((shard for cut in cuts for shard in cut.shards if shard.memory != "device"), None)
    if elsewhere is not None and device_type == "cpu":
        raise InputError(
            f"table '{elsewhere.table}' has kernel {elsewhere.compute_kernel}, which FBGEMM has only for GPUs: export "
            "for device_type='cuda', or use kernel fused"
        )
    shardings = {cut.name: _parameter_sharding(cut, types[cut.name], devices) for cut in cuts}
    modules: dict[str, EmbeddingModuleShardingPlan] = {}
    for table in task.tables:
        path, name = split_name(table.name)
        modules.setdefault(path, EmbeddingModuleShardingPlan())[name] = shardings[table.name]
    notes += _training_notes(cuts, task)
    if plan.group_size is not None:
        nodes = f", node_group_size={block}" if block else ""
        notes.append(
            f"the plan is for one group: give it to DMPCollection with sharding_group_size={plan.group_size}"
            f"{nodes} and use_inter_host_allreduce=True, and give the training pipeline "
            f"dmp_collection_sync_interval_batches={task.group_sync_interval or 1}"
        )
    elif block not in (0, ranks.per_host):
        notes.append(
            f"rows are cut over {block} ranks, {block // ranks.per_host} hosts: the job must set the environment "
            f"variable TORCHREC_RESOLVED_POD_SIZE={block // ranks.per_host}, TOPOLOGY_DOMAIN_MULTIPLE for TorchRec 1.6 "
            "and 1.7; earlier ones have no such domains"
        )
    return ExportedPlan(TorchRecPlan(plan=modules), tuple(notes))


def _is_unpooled(task: ShardingTask, members: list[TableCut]) -> bool:
    """Return whether a collection is unpooled; raises `InputError` if only some of its tables are."""
    pooled = [task.table(cut.name).is_pooled for cut in members]
    if any(pooled) and not all(pooled):
        one, other = members[pooled.index(True)].name, members[pooled.index(False)].name
        raise InputError(
            f"tables '{one}' and '{other}' are in one collection, and only the first is pooled: TorchRec has a "
            "collection for each kind; name them 'COLLECTION.TABLE', with one for each"
        )
    return not any(pooled)


def check_same_tables(task: ShardingTask, tables: list[ModelTable]) -> None:
    """Raise `InputError` unless a task has exactly the tables of a model."""
    found = {table.name: table for table in tables}
    names = sorted(found)
    for table in task.tables:
        if table.name not in found:
            raise InputError(
                f"the plan is for another model: this one has no table '{table.name}'; its {len(names)} tables are "
                f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
            )
        theirs = found.pop(table.name)
        config = theirs.config
        if (config.num_embeddings, config.embedding_dim) != (table.num_embeddings, table.embedding_dim):
            raise InputError(
                f"the plan is for another model: table '{table.name}' is {config.num_embeddings} x "
                f"{config.embedding_dim} there, and {table.num_embeddings} x {table.embedding_dim} in the task"
            )
        if (theirs.pooling == "none") == table.is_pooled:
            there, here = ("unpooled", "pooled") if table.is_pooled else ("pooled", "unpooled")
            raise InputError(
                f"the plan is for another model: table '{table.name}' is {there} there, and {here} in the task"
            )
    if found:
        # If a whole collection is missing, TorchRec silently trains it on every rank.
        raise InputError(f"the plan is for another model: it has no shard of table '{next(iter(found))}'")


def _check_mean_pooling(members_at: dict[str, list[TableCut]], types: dict[str, Kind], mean: set[str]) -> None:
    """Raise `InputError` for mean-pooled tables that TorchRec would pool wrongly."""
    # TorchRec adds up the rows of a mean-pooled table that is cut by rows, and divides afterwards, also the outputs of
    # all other tables in the collection that are not `row_wise` or `table_row_wise`. It does not divide those of grids.
    for path, members in members_at.items():
        others = [cut.name for cut in members if types[cut.name] not in RIGHT_MEANS]
        for name in (cut.name for cut in members):
            kind = types[name]
            if name not in mean or kind not in BY_ROWS or not others:
                continue
            if kind == "grid_shard":
                why = "TorchRec adds up and does not divide"
            else:
                why = f"TorchRec divides outputs of '{others[0]}', which is {types[others[0]]}, by its bag sizes, too"
            raise InputError(
                f"mean-pooled table '{name}' of collection '{path}' is {kind}: {why}; keep it whole or cut it by "
                "columns, or put it into a collection whose tables are all row_wise"
            )


def _training_notes(cuts: list[TableCut], task: ShardingTask) -> list[str]:
    """Return notes on tables that train differently than in the task."""
    notes = []
    optimizers = {cut.name: task.optimizer_of(task.table(cut.name)) for cut in cuts}
    copies = [cut.name for cut in cuts if cut.kind == "data_parallel"]
    for optimizer in dict.fromkeys(optimizers[name] for name in copies):
        notes.append(
            f"{_named([name for name in copies if optimizers[name] == optimizer])} data parallel: fused_params does "
            "not apply to its kernel, dense; train it with an optimiser for dense parameters, "
            f"'{optimizer}' by the task"
        )
    by_rows = [cut for cut in cuts if optimizers[cut.name] == "rowwise_adagrad"]
    narrow = [cut.name for cut in by_rows if len({shard.columns for shard in cut.shards}) > 1]
    if narrow:
        notes.append(
            f"{_named(narrow)} cut by columns, and the optimiser is row-wise Adagrad: each piece has its own state per "
            "row, so it trains differently than the whole table; adagrad and exact_sgd train the same"
        )
    return notes


def _named(names: list[str]) -> str:
    return f"table '{names[0]}'" + (f" and {len(names) - 1} more are" if names[1:] else " is")


def _parameter_sharding(cut: TableCut, kind: Kind, devices: list[str]) -> ParameterSharding:
    """Return a table's part of the plan; `devices` are TorchRec's names, such as "rank:9/cuda:1"."""
    if kind == "data_parallel":
        return ParameterSharding(kind, "dense", list(range(len(devices))))
    share = cut.shards[0].cache_load_factor
    return ParameterSharding(
        sharding_type=kind,
        compute_kernel=cut.shards[0].compute_kernel,
        cache_params=CacheParams(load_factor=share) if share else None,
        ranks=[shard.devices[0] for shard in cut.shards],
        sharding_spec=EnumerableShardingSpec([
            ShardMetadata(
                shard_offsets=[shard.rows[0], shard.columns[0]],
                shard_sizes=[shard.num_rows, shard.num_columns],
                placement=devices[shard.devices[0]],
            )
            for shard in cut.shards
        ]),
    )  # fmt: skip


def from_torchrec(sharding_plan: TorchRecPlan, task: ShardingTask, group_size: int | None = None) -> ShardingPlan:
    """Return the plan of `import_plan`; the log of "shardgym.torchrec" warns of what is left out."""
    imported = import_plan(sharding_plan, task, group_size)
    for remark in imported.remarks:
        _logger.warning(remark)
    return imported.plan


def import_plan(
    sharding_plan: TorchRecPlan, task: ShardingTask, group_size: int | None = None, *, strict: bool = False
) -> ImportedPlan:
    """Convert TorchRec's plan to a plan for a task, without checking memory, which TorchRec counts differently.

    The import leaves out modules without tables in the task, such as a collection that was not imported, and empty
    shards, which TorchRec lists for ranks without rows.

    Args:
        sharding_plan: TorchRec's plan, by the planner or by hand, for cuda or cpu.
        task: task with table names of `task_from_model` or `model_from_task`.
        group_size: number of ranks of a plan for one group of `DMPCollection(use_inter_host_allreduce=True)`. Each
            group of as many consecutive devices gets the same shards.
        strict: refuse a plan with modules without tables in the task.

    Raises:
        UnknownNameError: a table of the plan is not in the task, although others of its module are.
        InputError: a table has a kernel whose memory plans do not have, is replicated on other ranks than the devices,
            or is not in the plan; ranks do not exist; groups do not divide the devices; or `strict` forbids to leave
            something out.
        InfeasiblePlanError: shards are missing, overlap, or have a width that FBGEMM cannot fuse.
    """
    group = task.num_devices if group_size is None else check_int("group_size", group_size, 1)
    if task.num_devices % group:
        raise InputError(f"group_size {group} does not divide the {task.num_devices} devices of the task")
    specs = [of.sharding_spec for module in sharding_plan.plan.values() for of in module.values() if of.sharding_spec]
    ranks = 1 + max((shard.placement.rank() for spec in specs for shard in spec.shards), default=0)
    if ranks > group:
        of_task = f"the {'task' if group_size is None else 'group'} for {group}: import the model for as many devices"
        raise InputError(f"the plan is for at least {ranks} ranks, {of_task}")
    shards: list[Shard] = []
    found = set()
    left_out = []
    for path, module in sharding_plan.plan.items():
        if module and not any(task.has_table(join_name(path, table)) for table in module):
            names = ", ".join(list(module)[:3]) + (", ..." if len(module) > 3 else "")
            left_out.append(f"'{path}' (tables {names})")
            continue
        for table, sharding in module.items():
            name = join_name(path, table)
            if not task.has_table(name):
                raise UnknownNameError("table of the TorchRec plan", name, (known.name for known in task.tables))
            found.add(name)
            by_rows = sharding.sharding_type == "row_wise" and sharding.sharding_spec is not None
            if by_rows and sharding.ranks and len(sharding.ranks) != group:
                raise InputError(
                    f"table '{name}' is row_wise on {len(sharding.ranks)} ranks, expected all {group}; "
                    f"give group_size={len(sharding.ranks)} if the plan is that of one group"
                )
            shards += _shards_of(task, name, sharding, group)
    missing = [table.name for table in task.tables if table.name not in found]
    if missing:
        raise InputError(
            f"the TorchRec plan has no table '{missing[0]}' ({len(missing)} of the task are missing): give the task of "
            "the model that it was made for"
        )
    plan = ShardingPlan.of(task, shards, group)
    problems = cover_problems(task, plan.shards, plan.group_size)
    if problems:
        raise InfeasiblePlanError(problems)
    imported = ImportedPlan(plan, tuple(left_out))
    if strict:
        refuse_remarks(imported.remarks)
    return imported


def _shards_of(task: ShardingTask, name: str, sharding: ParameterSharding, group: int) -> list[Shard]:
    if sharding.compute_kernel not in _KERNELS:
        raise InputError(
            f"table '{name}' has kernel {sharding.compute_kernel}, which plans do not support: expected "
            f"{' or '.join(_KERNELS)}"
        )
    kernel = _KERNELS[sharding.compute_kernel]
    share = 0.0
    if kernel == "fused_uvm_caching":
        given = None if sharding.cache_params is None else sharding.cache_params.load_factor
        share = DEFAULT_CACHE_LOAD_FACTOR if given is None else given
    if sharding.sharding_type == "data_parallel":
        if sharding.ranks is not None and sorted(sharding.ranks) != list(range(group)):
            raise InputError(
                f"table '{name}' is data_parallel on {len(sharding.ranks)} ranks, {short_repr(sharding.ranks)}: "
                f"expected all {group}, one per device of the task"
            )
        return [Shard.whole(task.table(name), *range(task.num_devices))]
    if sharding.sharding_spec is None:
        raise InputError(f"table '{name}' is {sharding.sharding_type} and has no shards: expected a sharding_spec")
    shards = []
    for metadata in sharding.sharding_spec.shards:
        row, column = metadata.shard_offsets
        num_rows, num_columns = metadata.shard_sizes
        if num_rows and num_columns:  # a rank may be left without rows
            rank = metadata.placement.rank()
            area = (row, row + num_rows), (column, column + num_columns)
            shards.append(Shard(name, *area, tuple(range(rank, task.num_devices, group)), kernel, share))
    return shards
