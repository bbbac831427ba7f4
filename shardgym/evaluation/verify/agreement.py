"""When stored and fresh costs agree: the rule, which `RULE` says in words, and all of its constants.

How far honest measurements differ is known from three boards of quick-v1 that were committed one after another. They
hold the same 50 plans of the greedy heuristics and `random`, measured on machines of one hardware tag.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.plan_cost import PlanCost

#: Of deterministic figures: other processors and libraries round the last digits differently.
EXACT = 1e-6
#: Of a whole task, as a factor: between the three boards tasks took 0.93 to 1.68 times as long.
MAX_DRIFT = 2.0
#: Of a plan, besides the common drift: between the three boards at most 10 %, so twice of that.
TOLERANCE = 0.2
#: Of a phase's share of the time, and of a device's time relative to the slowest: a test suite on the same cores moved
#: exchanges by 0.23.
SHIFT = 0.25
#: A busy machine can disturb a measurement, hardly three of the same plan.
MEASUREMENTS = 3
#: Fewer tasks say little about a solver's average.
MIN_TASKS = 5
#: Of a solver's average: honest ones were off by 3.5 % between the three boards, and by 6 % on a machine of the same
#: tag that took 1.2 times as long. What lies between is reported, and not refused.
DOUBTED = 0.05
REFUSED = 0.08
#: Of the mean over the plans of a file that solvers made again with other processors, versions or source: under other
#: kernels of BLAS, means over the simulated boards differed by at most 0.02 %.
COST_SHARE = 0.01
#: Half a 95 % interval.
STANDARD_ERRORS = 2.0

RULE = f"""Deterministic costs must agree to {EXACT:g} in every number, and in their labels and notes. Measured costs
drift with the machine, so all plans of a task are measured again together, and their common drift, the median of
new/old over the task's different plans, is divided out; it may be at most {MAX_DRIFT:g} either way. What is left of a
plan's new/old may be off by {TOLERANCE:.0%} either way (of two plans, each is compared with the other). No phase and no
device may have moved by more than {SHIFT:.0%} of the time, labels must be the same, and equal plans that are measured
equal must be stored equal. A task that disagrees is measured again, and a plan is a mismatch if it disagrees in each of
{MEASUREMENTS} measurements. A solver with {MIN_TASKS} tasks or more is refused if its costs, so compared, are off by
more than {REFUSED:.0%} on average and the 95 % interval of that average over tasks excludes zero; from {DOUBTED:.0%} on
it is named. The interval rests on how much tasks scatter for the median solver, so that large scatter of its own does
not excuse a solver.

Records without a cost: a stored plan that is recorded as infeasible must be. A plan that is recorded as unmeasured must
have no cost now either if the judge is deterministic. All others are failures that cannot be checked.

Solving again: with the processor, kernels, versions and source of the record, a solver must make the same plan. With
others it may make another one; the costs of all plans of a file, made again over stored, must then agree to
{COST_SHARE:.0%} on average. A failure must stay one.

Runs: a record must be of the suite, judge, settings, oracle, time limit, solvers, seeds and tasks of the run.json
beside it. Records of run.json that are missing are named, and so are a file without one and tasks whose stored times
are of several sessions."""

#: What a deterministic model says about its times besides them.
_DETERMINISTIC_LABELS = ("compute", "communication", "repeats", "reason", "notes", "ids_hidden")
#: What settings and machine decide of a measurement; its notes tell of that one measurement alone.
_MEASURED_LABELS = ("compute", "communication", "repeats", "ids_hidden")


def deterministic_problem(old: PlanCost, new: PlanCost) -> str | None:
    """Return what differs between a stored and a fresh cost of a deterministic model; None when they agree."""
    if not math.isclose(old.total_ms, new.total_ms, rel_tol=EXACT):
        return f"stored {old.total_ms:.6g} ms, recomputed {new.total_ms:.6g} ms"
    for phase, stored in old.phases.items():
        fresh = new.phases[phase]
        differs = ~np.isclose(stored, fresh, rtol=EXACT, atol=0)
        if differs.any():
            device = int(differs.argmax())
            return f"{phase} of device {device}: stored {stored[device]:.6g} ms, recomputed {fresh[device]:.6g} ms"
    if not math.isclose(old.noise, new.noise, rel_tol=EXACT):
        return f"noise: stored {old.noise:g}, now {new.noise:g}"
    return _label_problem(old, new, _DETERMINISTIC_LABELS)


class Remeasured(NamedTuple):
    """The stored and the fresh cost of a plan, and the plan's digest."""

    plan: str
    old: PlanCost
    new: PlanCost

    @property
    def ratio(self) -> float:
        """New time over stored time; infinite for a stored time of zero."""
        return self.new.total_ms / self.old.total_ms if self.old.total_ms > 0 else math.inf


class Agreement(NamedTuple):
    """How a plan's stored and fresh measurement compare.

    Attributes:
        problem: what disagrees, in words; None if nothing does.
        relative: new over stored time, over the drift of the task; None where a time is zero.
    """

    problem: str | None
    relative: float | None


def compare_measured(plans: Sequence[Remeasured]) -> list[Agreement]:
    """Compare the plans of one task, which were measured again in one call.

    What a record says of its session does not count: a run measures all plans of a task together, and a plan that
    claims a session for itself would be its own measure.
    """
    ratios = {p.plan: p.ratio for p in plans}  # a plan that several solvers found counts once
    drift = statistics.median(ratios.values()) if ratios else 1.0
    has_drift = 0 < drift < math.inf
    agreements = []
    for p in plans:
        relative = p.ratio / drift if has_drift and 0 < p.ratio < math.inf else None
        others = [ratio for plan, ratio in ratios.items() if plan != p.plan]
        # The median of two ratios lies halfway between them and would hide half of a forgery.
        reference = others[0] if len(others) == 1 else drift
        agreements.append(Agreement(_measured_problem(p, plans, drift, reference), relative))
    return agreements


def _measured_problem(p: Remeasured, plans: Sequence[Remeasured], drift: float, reference: float) -> str | None:
    if not _is_within(drift, MAX_DRIFT):
        subject = f"all {len(plans)} plans of this task take" if len(plans) > 1 else "the plan of this task takes"
        return f"{subject} {drift:.2f} times the stored time: beyond a drift of {MAX_DRIFT}"
    problem = _label_problem(p.old, p.new, _MEASURED_LABELS) or _shift_problem(p.old, p.new)
    if problem is not None:
        return problem
    for other in plans:
        # A judge that measures equal plans once gives all of them one cost.
        if other.plan == p.plan and other.new == p.new and other.old != p.old:
            return (
                f"stored {p.old.total_ms:.6g} ms, and {other.old.total_ms:.6g} ms for the same plan of another "
                "solver: their costs are not equal"
            )
    relative = p.ratio / reference if reference > 0 else math.inf
    if not _is_within(relative, 1 + TOLERANCE):
        return (
            f"stored {p.old.total_ms:.4g} ms, measured {p.new.total_ms:.4g} ms: {relative:.2f} times the drift of "
            f"its task, allowed are {1 + TOLERANCE:.2f} times either way"
        )
    return None


def _is_within(ratio: float, bound: float) -> bool:
    """Say whether a ratio is within a factor either way: 1.3 times too fast counts as much as 1.3 times too slow."""
    return 1 / bound <= ratio <= bound


def _label_problem(old: PlanCost, new: PlanCost, labels: Sequence[str]) -> str | None:
    for label in labels:
        stored = getattr(old, label)
        fresh = getattr(new, label)
        if stored != fresh:
            return f"{label}: stored {stored!r}, now {fresh!r}"
    return None


def _shift_problem(old: PlanCost, new: PlanCost) -> str | None:
    """Return which phase or device has another part of the time than it had."""
    sums = [np.array([times.sum() for times in cost.phases.values()]) for cost in (old, new)]
    phases = [_shares(own, whole=float(own.sum())) for own in sums]
    devices = [_shares(cost.device_ms, whole=cost.total_ms) for cost in (old, new)]
    names = [f"device {device}" for device in range(len(old.per_device))]
    for what, part_names, (before, now) in (
        ("of the times", list(old.phases), phases),
        ("of the slowest device", names, devices),
    ):
        worst = int(np.abs(before - now).argmax())
        if abs(before[worst] - now[worst]) > SHIFT:
            return f"{part_names[worst]} is {before[worst]:.0%} {what} that are stored and {now[worst]:.0%} now"
    return None


def _shares(times: Floats, whole: float) -> Floats:
    return times / whole if whole > 0 else np.zeros(len(times))


class SolverBias(NamedTuple):
    """By how much a solver's stored costs are off on average, beyond chance and beyond `DOUBTED`.

    Attributes:
        mean: over tasks, of log(new / stored / drift); positive where the stored costs are too low.
        num_tasks: that were compared.
    """

    mean: float
    num_tasks: int

    @property
    def is_refused(self) -> bool:
        """Whether it is so much that the records are not verified."""
        return _share(self.mean) > REFUSED

    def __str__(self) -> str:
        way = "cheaper" if self.mean > 0 else "dearer"
        return f"{100 * abs(math.expm1(-self.mean)):.0f} % {way} in the records than now, over {self.num_tasks} tasks"


def biased_solvers(logs: Mapping[str, Sequence[float]]) -> dict[str, SolverBias]:
    """Return the solvers of one file whose stored costs are off on average.

    Args:
        logs: by solver, log(new / stored / drift) of each task.
    """
    enough = {solver: values for solver, values in logs.items() if len(values) >= MIN_TASKS}
    if not enough:
        return {}
    scatter = statistics.median(statistics.stdev(values) for values in enough.values())
    biased = {}
    for solver, values in enough.items():
        mean = statistics.fmean(values)
        half_interval = STANDARD_ERRORS * scatter / math.sqrt(len(values))
        if _share(mean) > DOUBTED and abs(mean) > half_interval:
            biased[solver] = SolverBias(mean, len(values))
    return biased


def _share(log: float) -> float:
    """Return by which share the smaller of two times with this logarithm of their ratio lies below the other."""
    return -math.expm1(-abs(log))
