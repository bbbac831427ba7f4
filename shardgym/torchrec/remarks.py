"""What is remarked on plans and imports: refused where they are strict, else sentences for the log."""

from __future__ import annotations

from collections.abc import Sequence

from torchrec.distributed.planner.constants import HBM_MEM_BW
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from shardgym.costs.base import CostModel
from shardgym.errors import InputError
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ShardingTask

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
    shares = [used / limit for used, limit in zip(plan.bytes_per_device(task), task.capacity_bytes, strict=True)]
    fullest = max(shares)
    if fullest <= 1 - TORCHREC_MARGIN:
        return []
    return [
        f"tables take {100 * fullest:.1f} % of the memory of device {shares.index(fullest)}, and nothing is reserved "
        "for dense parameters, input buffers and activations; PlannerSettings(reserve=Reserve()) keeps TorchRec's"
    ]


def refuse_remarks(remarks: Sequence[str]) -> None:
    """Raise `InputError` where there is something to remark, as strict imports and planners do."""
    if remarks:
        others = f" ({len(remarks) - 1} more)" if len(remarks) > 1 else ""
        raise InputError(f"strict: {remarks[0]}{others}")
