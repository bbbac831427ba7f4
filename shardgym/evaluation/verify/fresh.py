"""Scoring the stored plans of one task again, in one call, and comparing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from shardgym.costs.plan_cost import PlanCost
from shardgym.errors import InputError, MeasurementError
from shardgym.evaluation.verify.judges import Judges
from shardgym.evaluation.verify.report import Checked
from shardgym.evaluation.verify.rules import deterministic_problem, measured_problems
from shardgym.evaluation.verify.static import other_judge
from shardgym.evaluation.verify.stored import Stored
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask


class Claim(NamedTuple):
    """A stored plan with the cost that is claimed for it."""

    stored: Stored
    plan: ShardingPlan
    cost: PlanCost


class Scored(NamedTuple):
    """A claim with the fresh cost of its plan."""

    claim: Claim
    fresh: PlanCost


def score(claims: Sequence[Claim], task: ShardingTask, judges: Judges) -> list[Checked]:
    """Score the plans of one task afresh; all claims name the same judge with the same settings."""
    first = claims[0].stored.result
    judge, why_not = judges.get(first.judge, first.judge_settings)
    if judge is None:
        return [claim.stored.row("skipped", why_not) for claim in claims]
    settled = [(claim, other_judge(claim.stored, claim.cost, judge)) for claim in claims]
    checked = [row for _, row in settled if row is not None]
    left = [claim for claim, row in settled if row is None]
    try:
        fresh = judge.evaluate(task, [claim.plan for claim in left]) if left else []
    except (InputError, MeasurementError) as error:
        return checked + [claim.stored.row("skipped", f"the judge cannot score it here: {error}") for claim in left]
    scored = [Scored(*pair) for pair in zip(left, fresh, strict=True)]
    failed = [s for s in scored if not s.fresh.feasible]
    compared = [s for s in scored if s.fresh.feasible]
    checked += [s.claim.stored.row("mismatch", f"cannot be scored again: {s.fresh.reason}") for s in failed]
    return checked + (_deterministic(compared) if judge.deterministic else _measured(compared))


def _deterministic(scored: Sequence[Scored]) -> list[Checked]:
    return [_verdict(s, deterministic_problem(s.claim.cost, s.fresh)) for s in scored]


def _measured(scored: Sequence[Scored]) -> list[Checked]:
    """Apply the rule for measured costs to every stored session apart."""
    sessions: dict[str, list[Scored]] = defaultdict(list)
    for s in scored:
        sessions[s.claim.cost.session].append(s)
    return [
        _verdict(s, problem)
        for members in sessions.values()
        for s, problem in zip(members, measured_problems([(m.claim.cost, m.fresh) for m in members]), strict=True)
    ]


def _verdict(scored: Scored, problem: str | None) -> Checked:
    stored, cost, fresh = scored.claim.stored, scored.claim.cost, scored.fresh
    if problem is not None:
        return stored.row("mismatch", problem)
    return stored.row("ok", f"stored {cost.total_ms:.4g} ms, now {fresh.total_ms:.4g} ms")
