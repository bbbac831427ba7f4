"""Loads: what is drawn of a placement, as text or as a picture."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats
from shardgym.costs.plan_cost import PHASES
from shardgym.envs.placement import Placement

_COMPUTE = [number for number, phase in enumerate(PHASES) if phase.endswith("compute")]


class Loads(NamedTuple):
    """What devices do and hold.

    Attributes:
        compute_ms: forward and backward, shape (D,); None where the cost model gives no times.
        comm_ms: likewise.
        used: bytes held, shape (D,).
        capacity: bytes of memory, shape (D,).
        slowest: the device that sets the cost, of several the one that computes longest; None where nothing is placed
            or there are no times.
    """

    compute_ms: Floats | None
    comm_ms: Floats | None
    used: npt.NDArray[np.int64]
    capacity: npt.NDArray[np.int64]
    slowest: int | None

    @classmethod
    def of(cls, placement: Placement, phases: Floats | None) -> Self:
        """Return the loads of a placement with phases of shape (D, 4) as `PlanCost.per_device`, or None."""
        memory = placement.used, placement.figures.capacity
        if phases is None:
            return cls(None, None, *memory, None)
        total, compute = phases.sum(axis=1), phases[:, _COMPUTE].sum(axis=1)
        # Waiting counts as communication, so devices often tie but for rounding.
        slowest = int(np.where(np.isclose(total, total.max(), rtol=1e-9), compute, -1.0).argmax())
        return cls(compute, total - compute, *memory, slowest if placement.done else None)
