"""What a measured cost says besides its total: how it came about, and how its time is split into phases."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardgym.costs.plan_cost import PHASES, PlanCost

#: Labels that settings and machine decide. Notes may tell of one measurement alone, and are not compared.
_LABELS = ("compute", "communication", "repeats")
#: A phase's share of the time of all devices may be off by so much of the whole, either way.
SHARE = 0.2


def split_problem(old: PlanCost, new: PlanCost) -> str | None:
    """Return what differs between the labels or the phases of a stored and a fresh measured cost; None if nothing does.

    Args:
        old: the stored cost.
        new: the fresh one, of the same judge with the same settings on hardware with the same tag.
    """
    for label in _LABELS:
        stored, fresh = getattr(old, label), getattr(new, label)
        if stored != fresh:
            return f"{label}: stored {stored!r}, now {fresh!r}"
    before, now = _shares(old), _shares(new)
    worst = int(np.abs(before - now).argmax())
    if abs(before[worst] - now[worst]) <= SHARE:
        return None
    return f"{PHASES[worst]} is {before[worst]:.0%} of the stored times and {now[worst]:.0%} now"


def _shares(cost: PlanCost) -> npt.NDArray[np.float64]:
    """Return each phase's share of the time of all devices; zeros where there is none."""
    times = np.asarray(cost.per_device, dtype=np.float64).sum(axis=0)
    total = times.sum()
    return times / total if total > 0 else np.zeros(len(times))
