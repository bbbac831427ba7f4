"""Two plans of one task by one cost: whether their difference is above the cost's error of such differences.

The error is measured on pairs of plans of one task that were run. It is the median of |ln(predicted ratio of the two
totals / ratio that was measured)|, over pairs that the cost has within a factor of `FARTHEST` of each other. What a
cost gets wrong alike for all plans of a task does not count. `tools/difference_errors.py` measures it and writes
`difference_errors.json`; a cost of another version than those of the file has an error that is not known.
"""

import functools
import math
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.costs.devices import DEVICES
from shardgym.costs.plan_cost import PlanCost
from shardgym.plans.plan import ShardingPlan
from shardgym.records import CONFIG, Name, Record, Whole
from shardgym.tasks.task import ShardingTask

#: What `tools/difference_errors.py` wrote.
ERRORS = Path(__file__).with_name("difference_errors.json")

#: Ratio of two totals up to which a pair counts: plans that are weighed against each other are rarely farther apart.
FARTHEST = 2.0

#: Standard errors of a difference within which two measured costs tie; about its 95 % interval.
TIE_ERRORS = 2.0

#: How plans cut tables: by columns at most, or also by rows and with replicas.
Cuts = Literal["columns", "rows"]
Devices = Literal["cpu", "gpu"]
#: Whether a difference is above the error of a cost.
Verdict = Literal["above", "within", "unknown"]
Share = Annotated[float, Field(ge=0, le=1)]

#: What is said of a difference that is above the error of a cost and within its noise.
NOISY = f"is within {TIE_ERRORS:g} standard errors of the two measurements."


@dataclass(frozen=True, config=CONFIG)
class DifferenceError(Record):
    """How wrong a cost is about differences between plans of one task."""

    cost: Name
    version: Name
    devices: Devices  #: kind of device that the measurements are of
    cuts: Cuts
    error: Annotated[float, Field(gt=0)]  #: median error of the logarithm of a ratio of two totals
    pairs: Annotated[Whole, Field(ge=1)]  #: how many pairs it is the median of
    #: Share of the pairs with a predicted difference above the error that are in the predicted order.
    above: Share | None
    within: Share | None  #: likewise, of the other pairs
    against: Name


@dataclass(frozen=True, config=CONFIG)
class DifferenceErrors(Record):
    """What is known of all costs."""

    errors: tuple[DifferenceError, ...]  #: at most one for each cost, version, kind of device and of cuts
    schema: Literal["shardgym.difference_errors/1"] = "shardgym.difference_errors/1"


class Comparison(NamedTuple):
    """Two plans of one task, the first and the second, by one cost."""

    cost: str
    change: float  #: the second total over the first, less 1
    noise: float  #: `TIE_ERRORS` standard errors of the difference of two measurements, relative; 0 of predictions
    error: DifferenceError | None  #: of the cost for such plans; None where it is not known

    @property
    def limit(self) -> float | None:
        """Relative difference above which the two are told apart; None where it is not known."""
        return None if self.error is None else max(math.expm1(self.error.error), self.noise)

    @property
    def verdict(self) -> Verdict:
        """Whether the difference is above the error of the cost."""
        if self.error is None or self.limit is None:
            return "unknown"
        # As ratios, so that it does not matter which of two plans comes first.
        return "above" if abs(math.log1p(self.change)) > math.log1p(self.limit) else "within"

    def sentence(self) -> str:
        """Say so."""
        if not self.change:
            return "Both cost the same."
        size = f"The dearer plan costs {math.expm1(abs(math.log1p(self.change))):.1%} more, which"
        if self.error is not None and self.verdict == "within" and self.noise > math.expm1(self.error.error):
            return f"{size} {NOISY}"
        return f"{size} {verdict_text(self.cost, self.error, self.verdict)}"

    def to_dict(self) -> dict[str, Any]:
        """Return it JSON-ready."""
        error = None if self.error is None else self.error.to_dict()
        return {"change": self.change, "verdict": self.verdict, "limit": self.limit, "error": error}


def compare(
    task: ShardingTask, plans: tuple[ShardingPlan, ShardingPlan], costs: tuple[PlanCost, PlanCost]
) -> Comparison | None:
    """Compare two plans of a task by their costs; None where one has no cost or takes 0 ms."""
    first, second = costs
    if not (first.feasible and second.feasible and first.total_ms and second.total_ms):
        return None
    noise = difference_noise(first, second) / first.total_ms
    by_rows = any(plan.has_replicas or any(shard.rows[0] for shard in plan.shards) for plan in plans)
    device = first.hardware
    if first.compute != "measured":  # the tag names a device if that is not the task's
        device = next((name for name in DEVICES if name in device), task.topology.device)
    kind: Devices = "cpu" if device.startswith("cpu") else "gpu"
    error = error_of(first.cost, first.version, kind, "rows" if by_rows else "columns")
    return Comparison(first.cost, second.total_ms / first.total_ms - 1, noise, error)


def verdict_text(cost: str, error: DifferenceError | None, verdict: Verdict) -> str:
    """Return what is said of a difference by a cost with this error, e.g. "is above the error of ..."."""
    if error is None:
        return f"cannot be judged: the error of '{cost}' for such plans is not known."
    share = error.above if verdict == "above" else error.within
    like_this = "farther apart" if verdict == "above" else "closer"
    right = "" if share is None else f"; of pairs predicted {like_this}, {share:.0%} were in that order"
    known = f"a median of {math.expm1(error.error):.1%} over {error.pairs} pairs ({error.against})"
    return f"is {verdict} the error of '{cost}' for such plans, {known}{right}."


def error_of(cost: str, version: str, devices: Devices, cuts: Cuts) -> DifferenceError | None:
    """Return the error of a cost for plans of a kind; None where it was not measured."""
    return _errors().get((cost, version, devices, cuts))


def difference_noise(first: PlanCost, second: PlanCost) -> float:
    """Return `TIE_ERRORS` standard errors of the difference of two costs, in ms, if their errors are independent."""
    return TIE_ERRORS * math.hypot(first.noise * first.total_ms, second.noise * second.total_ms)


@functools.cache
def _errors() -> dict[tuple[str, str, Devices, Cuts], DifferenceError]:
    known = DifferenceErrors.load(ERRORS).errors
    return {(one.cost, one.version, one.devices, one.cuts): one for one in known}
