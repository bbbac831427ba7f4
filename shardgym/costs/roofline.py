"""RooflineCost: an analytic cost that needs no hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardgym.costs.base import CostModel
from shardgym.costs.collectives.link_model import comm_times
from shardgym.costs.hardware import DeviceConstants, device_constants
from shardgym.costs.plan_cost import PlanCost
from shardgym.costs.shard_times import ShardTimes
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask

#: Tasks whose shard times are kept; solvers and environments return to the same few.
_TASKS_KEPT = 256


class RooflineCost(CostModel):
    """Bytes moved over bandwidth, plus latencies and fixed costs per device and per shard.

    Compute is additive over shards, so it knows nothing of fusion; communication is the link model of the task's
    topology. A row shard gets the share of lookups that its rows are of the table's. Devices without shards compute
    for free.

    Args:
        hardware: a key of `shardgym.costs.hardware.DEVICES` that replaces the device named by each task's topology.

    Raises:
        UnknownNameError: no such device, here or in the topology of a task.
    """

    name = "roofline"
    version = "2"
    deterministic = True

    def __init__(self, hardware: str | None = None) -> None:
        self._override = hardware
        if hardware is not None:
            device_constants(hardware)
        self._times: dict[str, ShardTimes] = {}

    @property
    def hardware(self) -> str:
        """Return "roofline", or "roofline-DEVICE" when the device is overridden."""
        return "roofline" if self._override is None else f"roofline-{self._override}"

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments that make this cost model again."""
        return {} if self._override is None else {"hardware": self._override}

    def score(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """See `CostModel`."""
        device = device_constants(self._override or task.topology.device)
        times = self._times_of(task, device)
        return [self._plan_cost(task, plan, device, times) for plan in plans]

    def _plan_cost(
        self, task: ShardingTask, plan: ShardingPlan, device: DeviceConstants, times: ShardTimes
    ) -> PlanCost:
        forward, backward = _compute_ms(task.num_devices, plan, device, times)
        forward_comm, backward_comm = comm_times(task, plan, forward + backward)
        per_device = np.column_stack([forward, forward_comm, backward_comm, backward])
        return PlanCost(per_device, self.name, self.version, self.hardware)

    def _times_of(self, task: ShardingTask, device: DeviceConstants) -> ShardTimes:
        if task.digest not in self._times:
            if len(self._times) >= _TASKS_KEPT:
                self._times.pop(next(iter(self._times)))
            self._times[task.digest] = ShardTimes(task, device)
        return self._times[task.digest]


def _compute_ms(
    num_devices: int, plan: ShardingPlan, device: DeviceConstants, times: ShardTimes
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Add up forward and backward compute of every device, in ms, each of shape (D,)."""
    forward, backward = [0.0] * num_devices, [0.0] * num_devices
    for shard in plan.shards:
        ms = times.of(shard)
        forward[shard.device] = (forward[shard.device] or device.forward_ms) + ms.forward
        backward[shard.device] = (backward[shard.device] or device.backward_ms) + ms.backward
    return np.array(forward), np.array(backward)
