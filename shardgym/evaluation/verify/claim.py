"""Claim: what a record says that can be scored again."""

from __future__ import annotations

from typing import NamedTuple

from shardgym.costs.plan_cost import PlanCost
from shardgym.evaluation.verify.checked import Checked
from shardgym.evaluation.verify.stored import Stored
from shardgym.plan import ShardingPlan


class Claim(NamedTuple):
    """A stored plan with the cost that is claimed for it."""

    stored: Stored
    plan: ShardingPlan
    cost: PlanCost

    def verdict(self, fresh: PlanCost, problem: str | None, relative: float | None = None) -> Checked:
        """Return the row of the report: a mismatch, if there is a problem; `relative` as in `Checked`."""
        if problem is not None:
            return self.stored.row("mismatch", problem, relative)
        return self.stored.row("ok", f"stored {self.cost.total_ms:.4g} ms, now {fresh.total_ms:.4g} ms", relative)
