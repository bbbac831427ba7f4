"""What TorchRec's own estimators say of any plan; the cost `torchrec_rating` is held against this.

Importing this module imports TorchRec.
"""

from __future__ import annotations

import numpy as np
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import types, utils
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator

from baselines.torchrec.planner import batch_size_per_device, make_topology, with_module_names
from shardgym.arrays import Floats
from shardgym.costs.torchrec_rating import PlannerConstants
from shardgym.errors import InputError
from shardgym.integrations.torchrec import model_from_task
from shardgym.plan import Shard, ShardingPlan
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask


def estimate(task: ShardingTask, plan: ShardingPlan, constants: PlannerConstants | None = None) -> tuple[Floats, float]:
    """Let TorchRec price the shards of a plan, and rate the plan.

    Args:
        task: the task.
        plan: tables whole, cut by columns in any way, or cut by rows evenly over all devices.
        constants: of the planner; TorchRec's defaults when None.

    Returns:
        Perf.fwd_compute, fwd_comms, bwd_comms and bwd_compute in ms, added up per device, shape (D, 4); and the rating
        of `NoopPerfModel` in ms.

    Raises:
        InputError: TorchRec has no sharding type for the cut of a table.
    """
    topology = make_topology(task, constants or PlannerConstants())
    options = sharding_options(task, plan)
    sharder = EmbeddingBagCollectionSharder()
    sharders = utils.build_sharder_data_map({utils.sharder_name(sharder.module_type): sharder})
    EmbeddingPerfEstimator(topology=topology).estimate(options, sharders)
    per_device = np.zeros((task.num_devices, 4))
    for option in options:
        for shard in option.shards:
            perf = shard.perf
            per_device[shard.rank] += (perf.fwd_compute, perf.fwd_comms, perf.bwd_comms, perf.bwd_compute)
    return per_device, float(NoopPerfModel(topology).rate(options))


def sharding_options(task: ShardingTask, plan: ShardingPlan) -> list[types.ShardingOption]:
    """Return a plan as TorchRec's planner has it: one option per table, without estimates; raises as `estimate`."""
    named = with_module_names(task)
    collection = model_from_task(named)
    options = []
    for table, name in zip(task.tables, (other.name for other in named.tables), strict=True):
        shards = [shard for shard in plan.shards if shard.table == table.name]
        sharding_type = _sharding_type(task, table, shards)
        options.append(
            types.ShardingOption(
                name=name,
                tensor=collection.get_parameter(f"embedding_bags.{name}.weight"),
                module=("", collection),
                input_lengths=[table.pooling_factor],
                batch_size=batch_size_per_device(task),
                sharding_type=sharding_type,
                partition_by="uniform" if sharding_type == "row_wise" else "device",
                compute_kernel="fused",
                shards=[
                    types.Shard([s.num_rows, s.num_columns], [s.rows[0], s.columns[0]], rank=s.device) for s in shards
                ],
            )
        )
    return options


def _sharding_type(task: ShardingTask, table: EmbeddingTable, shards: list[Shard]) -> str:
    if all(shard.num_rows == table.num_embeddings for shard in shards):
        return "table_wise" if len(shards) == 1 else "column_wise"
    even = len(shards) == task.num_devices and len({shard.rows for shard in shards}) == task.num_devices
    if even and all(shard.num_rows * task.num_devices == table.num_embeddings for shard in shards):
        return "row_wise"
    raise InputError(
        f"table '{table.name}' is cut into {len(shards)} shards by rows: TorchRec rates rows that are cut evenly over "
        f"all {task.num_devices} devices"
    )
