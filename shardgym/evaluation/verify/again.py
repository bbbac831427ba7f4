"""Measuring the plans of a task again, and once more where one disagrees."""

from __future__ import annotations

from collections.abc import Sequence

from shardgym.costs.base import CostModel
from shardgym.errors import InputError, MeasurementError
from shardgym.evaluation.verify.checked import Checked
from shardgym.evaluation.verify.claim import Claim
from shardgym.evaluation.verify.drift import Remeasured, measured_problems, relative_to_task
from shardgym.task import ShardingTask

#: A mismatch disagrees in each of so many measurements of its task.
MEASUREMENTS = 3


def measure_again(claims: Sequence[Claim], task: ShardingTask, judge: CostModel) -> list[Checked]:
    """Measure all plans of a task until each has agreed once, at most `MEASUREMENTS` times.

    Raises:
        InputError, MeasurementError: the first measurement failed as a whole.
    """
    rows = _measure(claims, task, judge)
    for _ in range(MEASUREMENTS - 1):
        if all(row.status == "ok" for row in rows):
            break
        try:
            repeated = _measure(claims, task, judge)
        except (InputError, MeasurementError):
            break  # what disagreed has not been shown to agree
        rows = [old if old.status == "ok" else new for old, new in zip(rows, repeated, strict=True)]
    return rows


def _measure(claims: Sequence[Claim], task: ShardingTask, judge: CostModel) -> list[Checked]:
    fresh = judge.evaluate(task, [claim.plan for claim in claims])
    pairs = list(zip(claims, fresh, strict=True))
    compared = [Remeasured(claim.plan.digest, claim.cost, cost) for claim, cost in pairs if cost.feasible]
    problems = iter(measured_problems(compared))
    relative = iter(relative_to_task(compared))
    return [
        claim.verdict(cost, next(problems), next(relative))
        if cost.feasible
        else claim.verdict(cost, f"cannot be measured again: {cost.reason}")
        for claim, cost in pairs
    ]
