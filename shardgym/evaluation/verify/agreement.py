"""When stored and fresh costs agree: the rule, which `RULE` says in words, and what measuring a board again showed."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.costs.plan_cost import PlanCost
from shardgym.files import read_bytes, write_whole
from shardgym.records import CONFIG, Digest, Label, Record, Whole

#: Of deterministic figures: other processors and libraries round the last digits differently.
EXACT = 1e-6
#: A measured plan may be off the factor of its board by this share either way, ...
PLAN_SHARE = 0.2
#: ... and the plans of one solver by this share on average.
SOLVER_SHARE = 0.05
#: Of the mean over the plans of a file that solvers made again with other processors, versions or source: under other
#: kernels of BLAS, means over the simulated boards differed by at most 0.02 %.
COST_SHARE = 0.01

RULE = f"""Plans must be feasible. Deterministic costs must agree to {EXACT:g} in every number, and in their labels and
notes. Measured plans are measured again, those of a task interleaved. The factor of a board is the median of new/old
over its different plans. Each plan must be within {PLAN_SHARE:.0%} of the factor, each solver's geometric mean within
{SOLVER_SHARE:.0%}, and labels must be the same. What was found is written beside the records, and tables say so; before
that they say "not measured again".

Records without a cost: a stored plan that is recorded as infeasible must be. A plan that is recorded as unmeasured must
have no cost now either if the judge is deterministic. All others are failures that cannot be checked.

Solving again: with the processor, kernels, versions and source of the record, a solver must make the same plan. With
others it may make another one; the costs of all plans of a file, made again over stored, must then agree to
{COST_SHARE:.0%} on average. A failure must stay one.

Runs: a record must be of the suite, judge, settings, oracle, time limit, solvers, seeds and tasks of the run.json
beside it. Records of run.json that are missing are named, and so is a file without one."""

#: Beside the records of a board whose plans were measured again.
MEASURED_AGAIN = "measured-again.json"

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
    """The stored and the fresh cost of a plan.

    Attributes:
        solver: that made the plan.
        task: index of its task.
        plan: digest of the plan.
        old: stored cost.
        new: fresh cost.
    """

    solver: str
    task: int
    plan: str
    old: PlanCost
    new: PlanCost

    @property
    def ratio(self) -> float:
        """New time over stored time; infinite for a stored time of zero."""
        return self.new.total_ms / self.old.total_ms if self.old.total_ms > 0 else math.inf


def board_factor(plans: Iterable[Remeasured]) -> float:
    """Return how many times as long a board's plans take now: the median, a plan of several solvers counting once."""
    return statistics.median({(plan.task, plan.plan): plan.ratio for plan in plans}.values())


def measured_problem(plan: Remeasured, factor: float) -> str | None:
    """Return what disagrees between a plan's stored and fresh measurement; None when nothing does."""
    problem = _label_problem(plan.old, plan.new, _MEASURED_LABELS)
    if problem is not None:
        return problem
    if not _is_within(plan.ratio, factor, PLAN_SHARE):
        return (
            f"stored {plan.old.total_ms:.4g} ms, measured {plan.new.total_ms:.4g} ms: {plan.ratio:.2f} times, the "
            f"factor of the board is {factor:.2f}, expected within {PLAN_SHARE:.0%} of it"
        )
    return None


def solver_problems(plans: Iterable[Remeasured], factor: float) -> list[str]:
    """Return a sentence for every solver whose plans are off the factor of the board on average."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for plan in plans:
        ratios[plan.solver].append(plan.ratio)
    problems = []
    for solver, own in ratios.items():
        mean = statistics.geometric_mean(own) if min(own) > 0 else 0.0
        if not _is_within(mean, factor, SOLVER_SHARE):
            problems.append(
                f"plans of {solver} take {mean:.3f} times the stored time on average, the factor of the board is "
                f"{factor:.3f}, expected within {SOLVER_SHARE:.0%} of it"
            )
    return problems


def _is_within(ratio: float, factor: float, share: float) -> bool:
    """Say whether a ratio is within a share of a factor: 1.2 times too fast counts as much as 1.2 times too slow."""
    return factor / (1 + share) <= ratio <= factor * (1 + share) < math.inf


def _label_problem(old: PlanCost, new: PlanCost, labels: Sequence[str]) -> str | None:
    for label in labels:
        stored = getattr(old, label)
        fresh = getattr(new, label)
        if stored != fresh:
            return f"{label}: stored {stored!r}, now {fresh!r}"
    return None


@dataclass(frozen=True, config=CONFIG)
class MeasuredAgain(Record):
    """What measuring all plans of a records file again showed; `verify` writes it beside the file.

    Attributes:
        records_digest: SHA-256 of the file, unpacked, so that it says nothing of any other records.
        agrees: whether every plan and every solver was as the rule asks.
        num_plans: records that were measured again: all that claim a cost.
        factor: of the board.
        measured: UTC.
        commit: of the code that measured; "" where it is not known.
    """

    records_digest: Digest
    agrees: bool
    num_plans: Annotated[Whole, Field(ge=1)]
    factor: Annotated[float, Field(gt=0)]
    measured: Label
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{0,64}\+?$")]
    schema: Literal["shardgym.measured_again/1"] = "shardgym.measured_again/1"

    @staticmethod
    def digest_of(records: Path) -> str:
        """Return the digest of a records file; raises `InputError` when it cannot be read."""
        return hashlib.sha256(read_bytes(records)).hexdigest()

    @classmethod
    def beside(cls, records: Path) -> Self | None:
        """Read what is known of a records file; None when nothing is, or when it is about other records."""
        path = records.parent / MEASURED_AGAIN
        if not path.exists():
            return None
        found = cls.load(path)
        return found if found.records_digest == cls.digest_of(records) else None

    def write(self, records: Path) -> None:
        """Write it beside a records file; raises `InputError` when that fails."""
        write_whole(records.parent / MEASURED_AGAIN, self.to_json(indent=2) + "\n")
