"""The rule for measured costs: plans of a task are compared with the drift that they have in common."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shardgym.costs.plan_cost import PlanCost

# 50 plans of quick-v1 measured again twice on a machine with other work: drift of a task 0.93 to 1.40, deviation of a
# plan from it at most 0.13. The floor covers what repeats in one session do not show: other memory, other neighbours.
MAX_DRIFT = 2.0
FLOOR = 0.2
CEILING = 0.5
#: Between sessions of one task: wider than between plans of one, as nothing held the machine still between them.
SESSION_SPREAD = 1.6
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
    """Return one problem or None per plan; all plans are of one task and were measured again in one call."""
    sessions: dict[str, list[Remeasured]] = defaultdict(list)
    for plan in plans:
        sessions[plan.old.session].append(plan)
    drifts = {name: _drift(members) for name, members in sessions.items()}
    shared = {name: _drift_problem(name, sessions, drifts[name]) for name in sessions}
    return [
        shared[p.old.session] or _unequal(p, sessions[p.old.session]) or _deviation(p, p.ratio / drifts[p.old.session])
        for p in plans
    ]


def relative_to_task(plans: Sequence[Remeasured]) -> list[float | None]:
    """Return every plan's ratio over that of all plans of the task; None where a time is zero.

    Sessions are not kept apart, so that a solver is not its own measure by claiming a session for itself.
    """
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


def _drift_problem(name: str, sessions: dict[str, list[Remeasured]], drift: float) -> str | None:
    members, others = sessions[name], [p for key, plans in sessions.items() if key != name for p in plans]
    count = f"all {len(members)} plans" if len(members) > 1 else "the plan"
    if not _within(drift, MAX_DRIFT):
        return f"{count} of this task take {drift:.2f} times the stored time: beyond a drift of {MAX_DRIFT}"
    # The session of most plans is not doubted because of a few others.
    if others and len({p.plan for p in members}) <= len({p.plan for p in others}):
        elsewhere = _drift(others)
        if not _within(drift / elsewhere if elsewhere > 0 else math.inf, SESSION_SPREAD):
            return (
                f"{count} of session '{name}' take {drift:.2f} times the stored time, those of the task's other "
                f"sessions {elsewhere:.2f} times: more than {SESSION_SPREAD} times apart"
            )
    return None


def _within(ratio: float, bound: float) -> bool:
    return 1 / bound <= ratio <= bound


def _unequal(plan: Remeasured, session: Sequence[Remeasured]) -> str | None:
    """Compare with the same plan of other solvers: a judge that measures it once gives all of them one cost."""
    for other in session:
        if other.plan == plan.plan and other.new == plan.new and other.old != plan.old:
            return (
                f"stored {plan.old.total_ms:.6g} ms, and {other.old.total_ms:.6g} ms for the same plan in the same "
                "session: their costs are not equal"
            )
    return None


def _deviation(plan: Remeasured, relative: float) -> str | None:
    allowed = tolerance(plan.old, plan.new)
    # Symmetric in old and new: a factor of 1.3 too fast counts as much as a factor of 1.3 too slow.
    if _within(relative, 1 + allowed):
        return None
    return (
        f"stored {plan.old.total_ms:.4g} ms, measured {plan.new.total_ms:.4g} ms: {relative:.2f} times the drift of "
        f"its task, allowed are {1 + allowed:.2f} times either way"
    )
