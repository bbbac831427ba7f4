"""What TorchRec's own estimators say of a plan. Importing this module imports TorchRec."""

import numpy as np
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import types, utils
from torchrec.distributed.planner.enumerators import get_partition_by_type
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator

from baselines.torchrec.planner import batch_size_per_device, make_topology, pooling_factors, with_module_names
from shardgym import ShardingPlan, ShardingTask
from shardgym.arrays import Floats
from shardgym.costs.plan_cost import PHASES
from shardgym.costs.torchrec_rating import PlannerConstants
from shardgym.torchrec import model_from_task
from shardgym.torchrec.model_tables import parameter_name, split_name


def estimate(task: ShardingTask, plan: ShardingPlan, constants: PlannerConstants | None = None) -> tuple[Floats, float]:
    """Return what TorchRec says of a plan, in ms: times in `PHASES`, added up per device, (D, 5), and its rating.

    Ids are 0. Tables cut by rows are so evenly. In a plan for groups TorchRec prices the shards of a group as if it
    were alone, as its planner does. What all devices hold is that of all.
    """
    constants = constants or PlannerConstants()
    topology = make_topology(task, constants)
    of_group = make_topology(task, constants, plan.group_size)
    options = sharding_options(task, plan)
    both = EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()
    sharders = utils.build_sharder_data_map({utils.sharder_name(sharder.module_type): sharder for sharder in both})
    everywhere = [option for option in options if option.sharding_type == "data_parallel"]
    EmbeddingPerfEstimator(topology=topology).estimate(everywhere, sharders)
    others = [option for option in options if option.sharding_type != "data_parallel"]
    EmbeddingPerfEstimator(topology=of_group).estimate(others, sharders)
    per_device = np.zeros((task.num_devices, len(PHASES)))
    for option in options:
        for shard in option.shards:
            perf = shard.perf
            per_device[shard.rank] += (0.0, perf.fwd_compute, perf.fwd_comms, perf.bwd_comms, perf.bwd_compute)
    return per_device, float(NoopPerfModel(topology).rate(options))


def sharding_options(task: ShardingTask, plan: ShardingPlan) -> list[types.ShardingOption]:
    """Return a plan as TorchRec's planner has it: one option per table; every holder of a shard has one of its own."""
    named = with_module_names(task)
    model = model_from_task(named)
    options = []
    for table, name in zip(task.tables, (other.name for other in named.tables), strict=True):
        kind = plan.kind_of(table.name, task)
        path, own_name = split_name(name)
        collection = model.get_submodule(path)
        options.append(
            types.ShardingOption(
                name=own_name,
                tensor=collection.get_parameter(parameter_name(own_name, table.pooling)),
                module=(path, collection),
                input_lengths=pooling_factors(table),
                batch_size=batch_size_per_device(task),
                sharding_type=kind,
                partition_by=get_partition_by_type(kind),
                compute_kernel="dense" if kind == "data_parallel" else "fused",
                shards=[
                    types.Shard([s.num_rows, s.num_columns], [s.rows[0], s.columns[0]], rank=device)
                    for s in plan.of_table(table.name)
                    for device in s.devices
                ],
            )
        )
    return options
