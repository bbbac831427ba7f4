"""The cost of one plan, put together from what was measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.fbgemm.communication import Comm, device_notes, notes
from shardgym.costs.link_notes import link_notes
from shardgym.costs.plan_cost import PlanCost, Source
from shardgym.costs.workers.statistics import centre, relative_error_of_total
from shardgym.task import ShardingTask


class MeasuredPlan(NamedTuple):
    """Times of one plan.

    Attributes:
        task: the task.
        compute: forward and backward of every device in ms, shape (rounds, iterations, D, 2).
        comm: forward and backward exchanges.
        measured: whether the exchanges were measured; otherwise they are modelled.
        told: notes of the single measurements.
    """

    task: ShardingTask
    compute: Floats
    comm: Comm
    measured: bool
    told: Sequence[str]

    def cost(self, name: str, version: str, hardware: str, device: str, session: str) -> PlanCost:
        """Return the cost.

        Args:
            name: of the cost model.
            version: of the cost model.
            hardware: tag of the machine.
            device: "cpu" or "cuda".
            session: of everything that was measured together.
        """
        forward, backward = self.comm.forward[:, None], self.comm.backward[:, None]
        times, there, back = centre(self.compute), centre(forward), centre(backward)
        rounds, iterations = self.compute.shape[:2]
        communication: Source = "measured" if self.measured else "modelled"
        return PlanCost(
            per_device=np.column_stack([times[:, 0], there, back, times[:, 1]]),
            cost=name, version=version, hardware=hardware, compute="measured", communication=communication,
            noise=relative_error_of_total(self.compute, forward, backward), repeats=rounds * iterations,
            session=session,
            notes=(
                *self.told,
                *device_notes(self.task, hardware),
                *notes(self.task, measured=self.measured, device=device),
                *link_notes(self.task, communication, hardware),
            ),
        )  # fmt: skip
