"""When a stored cost and a fresh one agree; `RULE` says it in words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from shardgym.costs.plan_cost import PHASES, PlanCost

RELATIVE = 1e-6
# 50 plans of quick-v1 measured again twice on a machine with other work: drift of a task 0.93 to 1.40, deviation of a
# plan from it at most 0.13. The floor covers what repeats in one session do not show: other memory, other neighbours.
MAX_DRIFT = 2.0
FLOOR = 0.2
CEILING = 0.5

RULE = f"""Deterministic costs: every total and every time of a device within {RELATIVE:g} relative.

Measured costs: shared machines drift as a whole, so all plans of a task are measured again in one call, and those
whose stored times come from one session are compared relative to each other. Their common drift, the median of
new/old over them, must lie between {1 / MAX_DRIFT:.2f} and {MAX_DRIFT:.2f}. A plan's own new/old may then be off the
common drift by a share of 4 x sqrt(old noise^2 + new noise^2), but at least {FLOOR:g} and at most {CEILING:g}, either
way. A plan that is alone in its session is held to the drift bound only."""

#: A stored cost and the fresh one of the same plan.
Pair = tuple[PlanCost, PlanCost]


def deterministic_problem(old: PlanCost, new: PlanCost) -> str | None:
    """Return what differs between a stored and a fresh cost of a deterministic model; None when they agree."""
    if not math.isclose(old.total_ms, new.total_ms, rel_tol=RELATIVE):
        return f"stored {old.total_ms:.6g} ms, recomputed {new.total_ms:.6g} ms"
    off = ~np.isclose(old.per_device, new.per_device, rtol=RELATIVE, atol=0)
    if off.any():
        device, phase = (int(x) for x in np.argwhere(off)[0])
        stored, fresh = old.per_device[device, phase], new.per_device[device, phase]
        return f"{PHASES[phase]} of device {device}: stored {stored:.6g} ms, recomputed {fresh:.6g} ms"
    return None


def measured_problems(pairs: Sequence[Pair]) -> list[str | None]:
    """Return one problem or None per plan; all plans are of one task and were stored in one session."""
    ratios = [new.total_ms / old.total_ms if old.total_ms > 0 else math.inf for old, new in pairs]
    drift = statistics.median(ratios)
    if not 1 / MAX_DRIFT <= drift <= MAX_DRIFT:
        plans = f"all {len(pairs)} plans" if len(pairs) > 1 else "the plan"
        problem = f"{plans} of this task take {drift:.2f} times the stored time: beyond a drift of {MAX_DRIFT}"
        return [problem] * len(pairs)
    return [_deviation(pair, ratio / drift) for pair, ratio in zip(pairs, ratios, strict=True)]


def tolerance(old: PlanCost, new: PlanCost) -> float:
    """Return the share by which a measured plan may differ from the drift of its task."""
    return min(CEILING, max(FLOOR, 4 * math.hypot(old.noise, new.noise)))


def _deviation(pair: Pair, relative: float) -> str | None:
    old, new = pair
    allowed = tolerance(old, new)
    # Symmetric in old and new: a factor of 1.3 too fast counts as much as a factor of 1.3 too slow.
    if relative > 0 and max(relative, 1 / relative) <= 1 + allowed:
        return None
    return (
        f"stored {old.total_ms:.4g} ms, measured {new.total_ms:.4g} ms: {relative:.2f} times the drift of its task, "
        f"allowed are {1 + allowed:.2f} times either way"
    )
