"""What can be checked of a record without scoring its plan."""

from __future__ import annotations

from shardgym.costs.base import CostModel
from shardgym.costs.plan_cost import PlanCost
from shardgym.evaluation.verify.checked import Checked, CheckStatus
from shardgym.evaluation.verify.stored import Stored
from shardgym.plan import plan_problems
from shardgym.task import ShardingTask


def without_judge(stored: Stored, task: ShardingTask) -> Checked | None:
    """Check what needs no fresh cost; None when one is needed."""
    result = stored.result
    if result.plan is None:
        return stored.row("skipped", f"{result.status}: {result.reason}")
    if result.status == "error":
        return stored.row("mismatch", "recorded as an error, which has no plan, and it has one")
    problems = plan_problems(task, result.plan.shards)
    if result.status == "infeasible":
        if problems:
            return stored.row("ok", f"infeasible as recorded: {problems[0]}")
        return stored.row("mismatch", "recorded as infeasible, and the plan is feasible")
    if problems:
        return stored.row("mismatch", f"the plan is infeasible: {problems[0]}")
    return None if result.cost is None else _inconsistency(stored, result.cost, task)


def _inconsistency(stored: Stored, cost: PlanCost, task: ShardingTask) -> Checked | None:
    if cost.per_device.shape[0] != task.num_devices:
        return stored.row("mismatch", f"cost of {cost.per_device.shape[0]} devices, the task has {task.num_devices}")
    if cost.hardware != stored.result.hardware:
        return stored.row("mismatch", f"cost is of {cost.hardware}, the record says {stored.result.hardware}")
    return None


def other_judge(stored: Stored, cost: PlanCost, judge: CostModel) -> Checked | None:
    """Refuse to compare with costs of another model, version or hardware; None when they can be compared."""
    if cost.cost != judge.name:
        return stored.row("mismatch", f"cost is by {cost.cost}, the record's judge is {judge.name}")
    if cost.version != judge.version:
        return stored.row("skipped", f"scored by {judge.name} {cost.version}, this is {judge.version}")
    if cost.hardware != judge.hardware:
        status: CheckStatus = "mismatch" if judge.deterministic else "skipped"
        return stored.row(status, f"times of hardware {cost.hardware}, this is {judge.hardware}")
    return None
