"""A cost model: copy this file, rename the class, put your formula into `score`.

    shardgym run --suite quick-v2 --cost cost:BytesOverBandwidth --solver dim_greedy --out results/bytes

`shardgym verify results/bytes --cost cost:BytesOverBandwidth` scores these plans again.
`cost` is the name of the file without `.py`; the command finds it in the folder in which it runs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardgym import CostModel, PlanCost, ShardingPlan, ShardingTask

IDS, FORWARD_COMPUTE, FORWARD_COMM, BACKWARD_COMM, BACKWARD_COMPUTE = range(5)


class BytesOverBandwidth(CostModel):
    """Bytes that a device gathers and sends, over the bandwidths of its memory and its link.

    Args:
        memory_bandwidth: bytes per second.
        link_bandwidth: bytes per second.
    """

    name = "bytes_over_bandwidth"
    version = "1"  # raise it whenever the same plan may get another cost
    deterministic = True  # `shardgym verify` then asks for equal numbers

    def __init__(self, memory_bandwidth: float = 2e10, link_bandwidth: float = 1e9) -> None:
        self.memory_bandwidth = memory_bandwidth
        self.link_bandwidth = link_bandwidth

    @property
    def hardware(self) -> str:
        """Costs of different tags never share a table."""
        return "none"

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments that make this cost model again; `verify` uses them."""
        return {"memory_bandwidth": self.memory_bandwidth, "link_bandwidth": self.link_bandwidth}

    def score(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """Score plans; `evaluate` has taken out those that are infeasible."""
        return [self._plan_cost(task, plan) for plan in plans]

    def _plan_cost(self, task: ShardingTask, plan: ShardingPlan) -> PlanCost:
        per_device = np.zeros((task.num_devices, 5))  # ids are not exchanged here
        for shard in plan.shards:
            table = task.table(shard.table)
            gathered_bytes = 4 * task.batch_size * table.pooling_factor * shard.num_columns
            sent_bytes = 4 * task.batch_size * shard.num_columns
            gather_ms = 1e3 * gathered_bytes / self.memory_bandwidth
            send_ms = 1e3 * sent_bytes / self.link_bandwidth
            per_device[shard.devices[0], FORWARD_COMPUTE] += gather_ms
            per_device[shard.devices[0], BACKWARD_COMPUTE] += 2 * gather_ms
            per_device[shard.devices[0], FORWARD_COMM] += send_ms
            per_device[shard.devices[0], BACKWARD_COMM] += send_ms
        return PlanCost(per_device, self.name, self.version, self.hardware)
