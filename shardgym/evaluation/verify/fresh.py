"""Scoring the stored plans of one task again and comparing."""

from __future__ import annotations

from collections.abc import Sequence

from shardgym.costs.base import CostModel
from shardgym.errors import InputError, MeasurementError
from shardgym.evaluation.attempt import one_line
from shardgym.evaluation.verify.again import measure_again
from shardgym.evaluation.verify.checked import Checked
from shardgym.evaluation.verify.claim import Claim
from shardgym.evaluation.verify.judges import Judges
from shardgym.evaluation.verify.rules import deterministic_problem
from shardgym.evaluation.verify.static import other_judge
from shardgym.evaluation.verify.stored import Stored
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask


def score(claims: Sequence[Claim], task: ShardingTask, judges: Judges) -> list[Checked]:
    """Score the plans of one task afresh; all claims name the same judge with the same settings."""
    first = claims[0].stored.result
    judge, why_not = judges.get(first.judge, first.judge_settings)
    if judge is None:
        return [claim.stored.row("skipped", why_not) for claim in claims]
    settled = [(claim, other_judge(claim.stored, claim.cost, judge)) for claim in claims]
    checked = [row for _, row in settled if row is not None]
    left = [claim for claim, row in settled if row is None]
    if not left:
        return checked
    compare = _deterministic if judge.deterministic else measure_again
    try:
        return checked + compare(left, task, judge)
    except (InputError, MeasurementError) as error:
        return checked + [claim.stored.row("skipped", f"the judge cannot score it here: {error}") for claim in left]


def _deterministic(claims: Sequence[Claim], task: ShardingTask, judge: CostModel) -> list[Checked]:
    fresh = judge.evaluate(task, [claim.plan for claim in claims])
    return [
        claim.verdict(
            cost,
            deterministic_problem(claim.cost, cost) if cost.feasible else f"cannot be scored again: {cost.reason}",
        )
        for claim, cost in zip(claims, fresh, strict=True)
    ]


def check_unmeasured(stored: Stored, plan: ShardingPlan, task: ShardingTask, judges: Judges) -> Checked:
    """Check a feasible plan that is recorded as unmeasured: a deterministic judge must not be able to score it."""
    result, as_recorded = stored.result, f"{stored.result.status}: {stored.result.reason}"
    judge, why_not = judges.get(result.judge, result.judge_settings)
    if judge is None:
        return stored.row("skipped", why_not)
    if not judge.deterministic:
        return stored.row("skipped", as_recorded)
    other = other_judge(stored, result.cost, judge) if result.cost is not None else None
    if other is not None:
        return other
    try:
        (fresh,) = judge.evaluate(task, [plan])
    except Exception as error:  # whatever a judge raises makes a record of a run unmeasured
        return stored.row("skipped", f"{as_recorded}; now: {one_line(error)}")
    if fresh.feasible:
        return stored.row("mismatch", f"recorded as unmeasured, and the judge says {fresh.total_ms:.4g} ms")
    return stored.row("skipped", f"{as_recorded}; now: {fresh.reason}")
