"""The plans that `compare` measures, by planners or given, with all rows or fewer, on the devices of the job."""

import dataclasses
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias, get_args

from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.types import PlannerError
from torchrec.distributed.types import EmbeddingModuleShardingPlan, EnumerableShardingSpec, ShardMetadata
from torchrec.distributed.types import ShardingPlan as TorchRecPlan

from shardgym.costs.devices import DEVICES
from shardgym.costs.gpu.cards import CARDS
from shardgym.errors import NO_PLAN, InputError, NoFeasiblePlanError, ShardGymError, error_text
from shardgym.plans.plan import ShardingPlan
from shardgym.tables.table import scaled_table
from shardgym.tasks.task import ShardingTask
from shardgym.torchrec.model_tables import split_name
from shardgym.torchrec.planner import ShardGymPlanner
from shardgym.torchrec.ranks import World
from shardgym.torchrec.real_steps import samples_of_rank, sharders
from shardgym.torchrec.sharding_plan import import_plan, to_torchrec
from shardgym.torchrec.tasks import topology_to_torchrec

#: Planners by the name that stands for their plan.
Planner = Literal["torchrec", "shardgym"]
PLANNERS: dict[str, Planner] = {name: name for name in get_args(Planner)}
#: What may be compared: the plan of a planner, TorchRec's plan, or ours.
Given: TypeAlias = Planner | TorchRecPlan | ShardingPlan


class Contender(NamedTuple):
    """A plan to measure."""

    sharding_plan: TorchRecPlan  #: TorchRec's plan on the devices of the job
    plan: ShardingPlan  #: the same plan for cost models


def find_contenders(
    given: Mapping[str, Given], task: ShardingTask, model: nn.Module, world: World
) -> tuple[dict[str, Contender], list[str]]:
    """Make the plans of planners, and check all plans.

    Both planners get the devices of the task. TorchRec's planner gets the mean ids per sample of the tables, and its
    defaults otherwise; ShardGym's planner gets the whole task.

    Args:
        given: plans, or planners, by the names of plans.
        task: the task, with one device per rank.
        model: the model to train, with its collections on the meta device.
        world: the ranks of the job.

    Returns:
        Plans by name, and why a planner's plan is missing.

    Raises:
        InputError: a plan is not for the model or the ranks, does not fit, or TorchRec cannot run it.
        NoFeasiblePlanError: planners found none, and less than two plans remain.
    """
    found = {}
    left_out = []
    for name, wanted in given.items():
        try:
            found[name] = _contender(wanted, task, model, world)
        except ShardGymError as error:
            if isinstance(wanted, str) and isinstance(error, NO_PLAN):
                left_out.append(f"'{name}' is left out: {error}")
                continue
            raise InputError(f"plan '{name}': {error}") from error
    if len(found) < 2:
        raise NoFeasiblePlanError(f"{left_out[0]}; give more memory, fewer rows or another plan")
    return found, left_out


def _contender(wanted: Given, task: ShardingTask, model: nn.Module, world: World) -> Contender:
    if wanted == "torchrec":
        wanted = _by_torchrec(task, model, world)
    elif wanted == "shardgym":
        wanted = ShardGymPlanner(task.topology, samples_of_rank(task)).plan_task(task)
    if isinstance(wanted, ShardingPlan):
        if wanted.group_size is not None:
            raise InputError(f"it is for groups of {wanted.group_size} ranks: expected one for all {world.size}")
        wanted = to_torchrec(wanted, task, model, device_type=world.device.type)
    return Contender(_on_devices(wanted, world), import_plan(wanted, task).plan)


def _by_torchrec(task: ShardingTask, model: nn.Module, world: World) -> TorchRecPlan:
    """Return the plan of `EmbeddingShardingPlanner`; raises `NoFeasiblePlanError` if it finds none."""
    ours = task.topology
    bandwidths = {"intra_host_bw": ours.intra_bandwidth / 1000, "inter_host_bw": ours.inter_bandwidth / 1000}
    if world.device.type == "cuda":
        card = CARDS[ours.device] if ours.device in CARDS else DEVICES[ours.device]
        bandwidths["hbm_mem_bw"] = card.memory_bandwidth / 1000
    constraints: dict[str, ParameterConstraints] = {}
    for table in task.tables:
        _, name = split_name(table.name)
        factors = [table.pooling_factor / table.num_features] * table.num_features
        # On CPUs FBGEMM's dense kernel pools, so data-parallel unpooled tables, which TorchRec plans, would fail.
        runs = None if table.is_pooled or world.device.type == "cuda" else ["table_wise", "column_wise", "row_wise"]
        made = ParameterConstraints(pooling_factors=factors, is_weighted=table.weighted, sharding_types=runs)
        if constraints.setdefault(name, made) != made:
            raise InputError(
                f"tables of several collections are called '{name}', with different ids per sample: TorchRec's "
                "constraints have one entry for all; give them different names"
            )
    planner = EmbeddingShardingPlanner(
        topology=topology_to_torchrec(ours, compute_device=world.device.type, **bandwidths),
        batch_size=samples_of_rank(task),
        constraints=constraints,
    )
    try:
        plan: TorchRecPlan = planner.plan(model, sharders())
    except (PlannerError, RuntimeError) as error:  # RuntimeError: no sharding type suits a table
        raise NoFeasiblePlanError(f"TorchRec's planner found no plan: {error_text(error)}") from error
    return plan


def _on_devices(sharding_plan: TorchRecPlan, world: World) -> TorchRecPlan:
    """Return a plan with its shards on the devices of this job's ranks."""
    modules = {}
    for path, module in sharding_plan.plan.items():
        modules[path] = EmbeddingModuleShardingPlan()
        for name, sharding in module.items():
            spec = sharding.sharding_spec
            if spec is not None:
                spec = EnumerableShardingSpec([
                    ShardMetadata(list(s.shard_offsets), list(s.shard_sizes), world.place(s.placement.rank()))
                    for s in spec.shards
                ])  # fmt: skip
            modules[path][name] = dataclasses.replace(sharding, sharding_spec=spec)
    return TorchRecPlan(plan=modules)


def with_fewer_rows(task: ShardingTask, factor: int) -> ShardingTask:
    """Return a task whose tables have their rows divided by a factor, as in `scaled_table`.

    Rows are rounded up to a multiple of the devices, so that each gets some, but not above their original number. The
    measured reuse of a batch is dropped. Recorded ids, and more ranges of rows than remaining rows, raise errors.
    """
    devices = task.num_devices
    tables = []
    for table in task.tables:
        fewer = scaled_table(table, factor)
        rows = min(table.num_embeddings, -(-fewer.num_embeddings // devices) * devices)
        reuse = None if rows < table.num_embeddings else table.reuse_histogram
        tables.append(dataclasses.replace(fewer, num_embeddings=rows, reuse_histogram=reuse))
    return dataclasses.replace(task, tables=tuple(tables))


def plan_with_fewer_rows(plan: Given, task: ShardingTask, fewer: ShardingTask) -> Given:
    """Return a plan for the task that `with_fewer_rows` returned.

    A table that is cut by rows keeps its number of pieces, of ceil(rows / pieces) rows, as TorchRec cuts.
    """
    if isinstance(plan, str) or fewer == task:
        return plan
    ours = plan if isinstance(plan, ShardingPlan) else import_plan(plan, task).plan
    shards = []
    for table in fewer.tables:
        pieces = ours.of_table(table.name)
        starts = sorted({piece.rows[0] for piece in pieces})
        block = -(-table.num_embeddings // len(starts))
        for piece in pieces:
            first = block * starts.index(piece.rows[0])
            rows = (first, min(first + block, table.num_embeddings))
            shards.append(dataclasses.replace(piece, rows=rows))
    return ShardingPlan.of(fewer, shards, ours.group_size)
