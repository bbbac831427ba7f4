"""When a stored cost and a fresh one agree; `RULE` says it in words.

Measured costs are compared by `drift`, and measured again before they count as a mismatch by `again`.
"""

from __future__ import annotations

import math

import numpy as np

from shardgym.costs.plan_cost import PHASES, PlanCost
from shardgym.evaluation.verify.again import MEASUREMENTS
from shardgym.evaluation.verify.bias import BIAS, DOUBT, MIN_TASKS, MOST, STANDARD_ERRORS
from shardgym.evaluation.verify.drift import CEILING, FLOOR, MAX_DRIFT, STORED_NOISE
from shardgym.evaluation.verify.split import DEVICE, SHARE

RELATIVE = 1e-6

RULE = f"""Deterministic costs: every total and every time of a device within {RELATIVE:g} relative, and the same
labels, noise, repeats and notes. A plan that is recorded as unmeasured must have no cost now either.

Measured costs: shared machines drift as a whole, so all plans of a task are measured again in one call, and compared
relative to each other. Their common drift, the median of new/old over their different plans, must lie between
{1 / MAX_DRIFT:.2f} and {MAX_DRIFT:.2f}; it is all that holds a plan which is alone. A plan's own new/old may then
be off the common drift, or where there are two plans that of the other one, by a share of
4 x sqrt(old noise^2 + new noise^2), but at least {FLOOR:g} and at most {CEILING:g}, either way; of the stored noise no
more counts than the larger of {STORED_NOISE:g} and the new noise. Equal plans must have equal stored costs if their
new ones are equal. Labels (measured or modelled, repeats) must be the same, each phase's share of the time of all
devices within {SHARE:g} of the whole, and each device's time within {DEVICE:g} of that of the slowest. Tasks whose
stored times are of several sessions are named: a run measures all plans of a task together.

A busy machine can disturb a measurement: where a measured cost disagrees, all plans of the task are measured again, and
it is a mismatch if it disagrees in each of {MEASUREMENTS} measurements; one that agrees is enough.

Measured costs of a solver: of every task that was measured again, log(new/old) less that of the common drift of all its
plans. Over {MIN_TASKS} tasks or more the mean of these must not be off by more than {BIAS:.0%} and by more than
{STANDARD_ERRORS} standard errors, nor by more than {MOST:.0%}; from {DOUBT:.0%} on the solver is named, and the records
are verified partly. The standard error is of the scatter that the other solvers' tasks have, in the median; that of the
solver itself where it is alone. All plans of a solver can be within their own bounds and still fail this.

Records without a cost: a stored plan that is recorded as infeasible must be. All others are failures that cannot be
checked.

Runs: a record must be of the suite, judge, settings, oracle, time limit, solvers, seeds and tasks of the run.json
beside it. Records of run.json that are missing are named, and so is a file without one."""

#: What a deterministic model says about its times besides them.
_LABELS = ("compute", "communication", "repeats", "reason", "notes")


def deterministic_problem(old: PlanCost, new: PlanCost) -> str | None:
    """Return what differs between a stored and a fresh cost of a deterministic model; None when they agree."""
    if not math.isclose(old.total_ms, new.total_ms, rel_tol=RELATIVE):
        return f"stored {old.total_ms:.6g} ms, recomputed {new.total_ms:.6g} ms"
    off = ~np.isclose(old.per_device, new.per_device, rtol=RELATIVE, atol=0)
    if off.any():
        device, phase = (int(x) for x in np.argwhere(off)[0])
        stored, fresh = old.per_device[device, phase], new.per_device[device, phase]
        return f"{PHASES[phase]} of device {device}: stored {stored:.6g} ms, recomputed {fresh:.6g} ms"
    return _label_problem(old, new)


def _label_problem(old: PlanCost, new: PlanCost) -> str | None:
    for label in _LABELS:
        stored, fresh = getattr(old, label), getattr(new, label)
        if stored != fresh:
            return f"{label}: stored {stored!r}, now {fresh!r}"
    if not math.isclose(old.noise, new.noise, rel_tol=RELATIVE):
        return f"noise: stored {old.noise:g}, now {new.noise:g}"
    return None
