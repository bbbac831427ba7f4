"""What a measured cost says besides its total: how it came about, and how its time is split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.plan_cost import PHASES, PlanCost

#: Labels that settings and machine decide. Notes may tell of one measurement alone, and are not compared.
_LABELS = ("compute", "communication", "repeats")
# The 70 plans of quick-v1, measured again on a machine that took 1.2 times as long: phases off by 0.09 at most, devices
# by 0.06; with a test suite on the same two cores, exchanges by up to 0.23.
#: A phase's share of the time of all devices may be off by so much of the whole, either way.
SHARE = 0.25
#: A device's time may be off by so much of that of the slowest device, either way.
DEVICE = 0.2


def split_problem(old: PlanCost, new: PlanCost) -> str | None:
    """Return what differs in labels, phases or devices of a stored and a fresh measured cost; None if nothing does.

    Args:
        old: the stored cost.
        new: the fresh one, of the same judge with the same settings on hardware with the same tag.
    """
    for label in _LABELS:
        stored, fresh = getattr(old, label), getattr(new, label)
        if stored != fresh:
            return f"{label}: stored {stored!r}, now {fresh!r}"
    names = [f"device {device}" for device in range(len(old.per_device))]
    phases = _off("of the times", PHASES, _phases(old), _phases(new), SHARE)
    return phases or _off("of the slowest device", names, _devices(old), _devices(new), DEVICE)


def _off(whole: str, names: Sequence[str], before: Floats, now: Floats, bound: float) -> str | None:
    """Return which share is off most, if that is more than is allowed."""
    worst = int(np.abs(before - now).argmax())
    if abs(before[worst] - now[worst]) <= bound:
        return None
    return f"{names[worst]} is {before[worst]:.0%} {whole} that are stored and {now[worst]:.0%} now"


def _devices(cost: PlanCost) -> Floats:
    """Return each device's time over that of the slowest; zeros where there is none."""
    times = np.asarray(cost.per_device, dtype=np.float64).sum(axis=1)
    return times / times.max() if times.max() > 0 else np.zeros(len(times))


def _phases(cost: PlanCost) -> Floats:
    """Return each phase's share of the time of all devices; zeros where there is none."""
    times = np.asarray(cost.per_device, dtype=np.float64).sum(axis=0)
    total = times.sum()
    return times / total if total > 0 else np.zeros(len(times))
