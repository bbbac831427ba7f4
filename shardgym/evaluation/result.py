"""Result: everything about one solver on one task, enough to score it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from shardgym.costs.plan_cost import CONFIG, PlanCost
from shardgym.plan import ShardingPlan
from shardgym.records import Digest, Name, Record, Whole, canonical_json

#: `ok`: a plan with a finite cost. `infeasible`: the solver found no feasible plan, or returned an infeasible one.
#: `error`: the solver raised. `unmeasured`: the plan is feasible and the judge could not score it.
Status = Literal["ok", "infeasible", "error", "unmeasured"]


def recipe(made_from: str | None, settings: Mapping[str, Any]) -> str:
    """Return what a solver was made of as text: its settings as JSON, after the name that a label stands for."""
    text = canonical_json(dict(settings))
    return text if made_from is None else f"{made_from} {text}"


@dataclass(frozen=True, eq=False, config=CONFIG)
class Result(Record):
    """One row of the record: one solver, one task, one seed, one judge.

    Attributes:
        suite: name of the suite.
        task_index: position of the task in the suite.
        task_hash: `digest` of the task.
        solver: name the solver was asked for by, or its label in this run.
        made_from: the name that `solver` is a label for; None when it is the name.
        solver_settings: keyword arguments it was made with.
        seed: given to the solver.
        judge: name of the cost model that scored the plan.
        oracle: name of the cost model that the solver could query.
        hardware: the judge's hardware tag.
        status: see `Status`.
        reason: one line, why status is not "ok".
        plan: None when the solver returned none.
        cost: None when there is no plan.
        solve_time_s: seconds the solver took.
        time_limit_s: given to the solver; None when there was none.
        judge_settings: keyword arguments the judge was made with.
        started: UTC, ISO 8601.
        versions: of shardgym, Python, torch, fbgemm and others that matter.
        commit: of the checkout, with "+" when it was modified; "" when not run from one.
    """

    suite: Name
    task_index: Annotated[Whole, Field(ge=0)]
    task_hash: Digest
    solver: Name
    seed: Annotated[Whole, Field(ge=0)]
    judge: Name
    oracle: Name
    hardware: str
    status: Status
    solve_time_s: Annotated[float, Field(ge=0)]
    started: str
    time_limit_s: Annotated[float, Field(gt=0)] | None = None
    reason: str | None = None
    plan: ShardingPlan | None = None
    cost: PlanCost | None = None
    made_from: Name | None = None
    solver_settings: dict[str, Any] = Field(default_factory=dict)
    judge_settings: dict[str, Any] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    commit: str = ""
    schema: Literal["shardgym.result/1"] = "shardgym.result/1"

    @model_validator(mode="after")
    def _consistent(self) -> Result:
        scored = self.cost is not None and self.cost.feasible
        if (self.status == "ok") != (scored and self.plan is not None):
            raise ValueError(f"status '{self.status}' does not agree with the plan and its cost")
        if (self.status == "ok") == (self.reason is not None):
            raise ValueError("a result is ok or has a reason why not")
        if self.plan is not None and self.plan.task_hash != self.task_hash:
            raise ValueError("the plan is for another task")
        return self

    @property
    def recipe(self) -> str:
        """What the solver was made of: its name, unless `solver` is it, and its settings."""
        return recipe(self.made_from, self.solver_settings)

    @property
    def total_ms(self) -> float:
        """The judge's cost; infinite when status is not "ok"."""
        return self.cost.total_ms if self.cost is not None else float("inf")
