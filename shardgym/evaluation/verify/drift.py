"""The rule for measured costs: plans of a task are compared with the drift that they have in common."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shardgym.costs.plan_cost import PlanCost
from shardgym.evaluation.verify.split import split_problem

# 50 plans of quick-v1 measured again twice on a machine with other work: drift of a task 0.93 to 1.40, deviation of a
# plan from it at most 0.13. The floor covers what repeats in one session do not show: other memory, other neighbours.
MAX_DRIFT = 2.0
FLOOR = 0.2
CEILING = 0.5
#: The stored noise is what a forger would raise; beyond this it counts only as far as the new noise confirms it.
STORED_NOISE = 0.1


class Remeasured(NamedTuple):
    """The stored and the fresh cost of a plan, and the plan's digest."""

    plan: str
    old: PlanCost
    new: PlanCost

    @property
    def ratio(self) -> float:
        """New time over stored time; infinite for a stored time of zero."""
        return self.new.total_ms / self.old.total_ms if self.old.total_ms > 0 else math.inf


def measured_problems(plans: Sequence[Remeasured]) -> list[str | None]:
    """Return one problem or None per plan; all plans are of one task and were measured again in one call.

    Sessions are not kept apart: a run measures all plans of a task together, and a plan that claims a session for
    itself would be its own measure.
    """
    drift = _drift(plans) if plans else 1.0
    if not _within(drift, MAX_DRIFT):
        count = f"all {len(plans)} plans of this task take" if len(plans) > 1 else "the plan of this task takes"
        shared = f"{count} {drift:.2f} times the stored time: beyond a drift of {MAX_DRIFT}"
        return [shared] * len(plans)
    return [split_problem(p.old, p.new) or _unequal(p, plans) or _deviation(p, _drift_for(p, plans)) for p in plans]


def relative_to_task(plans: Sequence[Remeasured]) -> list[float | None]:
    """Return every plan's ratio over that of all plans of the task; None where a time is zero."""
    drift = _drift(plans) if plans else 1.0
    known = 0 < drift < math.inf
    return [p.ratio / drift if known and 0 < p.ratio < math.inf else None for p in plans]


def tolerance(old: PlanCost, new: PlanCost) -> float:
    """Return the share by which a measured plan may differ from the drift of its task."""
    stored = min(old.noise, max(new.noise, STORED_NOISE))
    return min(CEILING, max(FLOOR, 4 * math.hypot(stored, new.noise)))


def _drift(plans: Iterable[Remeasured]) -> float:
    """Return the median ratio; a plan that several solvers found counts once."""
    return statistics.median({p.plan: p.ratio for p in plans}.values())


def _drift_for(plan: Remeasured, plans: Sequence[Remeasured]) -> float:
    """Return the drift that a plan is held to: that of all plans, or of the other one where there are two."""
    different = {p.plan: p for p in plans}
    return _drift(plans) if len(different) != 2 else next(p.ratio for p in different.values() if p.plan != plan.plan)


def _within(ratio: float, bound: float) -> bool:
    return 1 / bound <= ratio <= bound


def _unequal(plan: Remeasured, plans: Sequence[Remeasured]) -> str | None:
    """Compare with the same plan of other solvers: a judge that measures it once gives all of them one cost."""
    for other in plans:
        if other.plan == plan.plan and other.new == plan.new and other.old != plan.old:
            return (
                f"stored {plan.old.total_ms:.6g} ms, and {other.old.total_ms:.6g} ms for the same plan of another "
                "solver: their costs are not equal"
            )
    return None


def _deviation(plan: Remeasured, drift: float) -> str | None:
    allowed, relative = tolerance(plan.old, plan.new), plan.ratio / drift if drift > 0 else math.inf
    # Symmetric in old and new: a factor of 1.3 too fast counts as much as a factor of 1.3 too slow.
    if _within(relative, 1 + allowed):
        return None
    return (
        f"stored {plan.old.total_ms:.4g} ms, measured {plan.new.total_ms:.4g} ms: {relative:.2f} times the drift of "
        f"its task, allowed are {1 + allowed:.2f} times either way"
    )
