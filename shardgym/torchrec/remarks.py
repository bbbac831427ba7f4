"""What somebody who comes from TorchRec's planner would not expect of our plan, as sentences for the log."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torchrec.distributed.planner.constants import HBM_MEM_BW
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ParameterSharding
from torchrec.distributed.types import ShardingPlan as TorchRecPlan

from shardgym.costs.base import CostModel
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask
from shardgym.torchrec.model_tables import ModelTable, by_table, join_name

#: Share of a device that TorchRec's planner leaves free of tables unless it is told otherwise.
TORCHREC_MARGIN = 0.15

#: Hardware of costs that take the kind of device from the task.
_BY_TASK = ("gpu-modelled", "roofline")


def device_remarks(theirs: TorchRecTopology, device: str, cost: CostModel) -> list[str]:
    """Say which GPU was assumed where TorchRec's topology has the bandwidth that it has for everybody.

    Args:
        theirs: TorchRec's topology.
        device: that of ours, made from it.
        cost: what the solver queries.
    """
    if theirs.compute_device != "cuda" or theirs.hbm_mem_bw != HBM_MEM_BW or cost.hardware not in _BY_TASK:
        return []
    return [
        f"the plan is for GPUs like '{device}': TorchRec's topology has its default memory bandwidth; give hbm_mem_bw "
        "and intra_host_bw of your GPUs in bytes per ms, or a topology such as shardgym.Topology.preset('dgx-h100', 8)"
    ]


def memory_remarks(task: ShardingTask, plan: ShardingPlan) -> list[str]:
    """Say which device is fuller than TorchRec's planner would make it, when nothing was reserved."""
    shares = [used / limit for used, limit in zip(plan.bytes_per_device(task), task.topology.memory_bytes, strict=True)]
    fullest = max(shares)
    if fullest <= 1 - TORCHREC_MARGIN:
        return []
    return [
        f"tables take {100 * fullest:.1f} % of the memory of device {shares.index(fullest)}, and nothing is reserved "
        "for dense parameters, input buffers and activations; PlannerSettings(reserve=Reserve()) keeps TorchRec's"
    ]


def constraint_remarks(
    constraints: Mapping[str, ParameterConstraints], tables: list[ModelTable], plan: TorchRecPlan
) -> list[str]:
    """Say which constraints the plan does not follow: of them, pooling factors are read and nothing else.

    Args:
        constraints: TorchRec's, by table.
        tables: of the model.
        plan: the plan for it.
    """
    shardings = {join_name(path, table): s for path, module in plan.plan.items() for table, s in module.items()}
    broken: dict[str, list[str]] = {}
    for name, constraint in by_table("constraints", constraints, tables).items():
        for field in dataclasses.fields(constraint):
            if not _is_followed(field, getattr(constraint, field.name), shardings[name]):
                broken.setdefault(field.name, []).append(name)
    if not broken:
        return []
    text = ", ".join(
        f"{field} of '{names[0]}'" + (f" and {len(names) - 1} more" if names[1:] else "")
        for field, names in broken.items()
    )
    return [f"the plan does not follow these constraints, of which only pooling factors are read: {text}"]


def _is_followed(field: dataclasses.Field[Any], value: Any, sharding: ParameterSharding) -> bool:
    """Whether a table's sharding is what one field of its constraints asks for."""
    match field.name:
        case "pooling_factors" | "feature_names":
            return True
        case "sharding_types":
            # A whole table is called as those of its collection that are cut by columns.
            whole = sharding.sharding_spec is not None and len(sharding.sharding_spec.shards) == 1
            return value is None or sharding.sharding_type in value or (whole and "table_wise" in value)
        case "compute_kernels":
            return value is None or sharding.compute_kernel in value
        case "min_partition":
            if value is None or sharding.sharding_type != "column_wise":
                return True
            return bool(min(shard.shard_sizes[1] for shard in sharding.sharding_spec.shards) >= value)
        case _:
            return bool(value == field.default)
