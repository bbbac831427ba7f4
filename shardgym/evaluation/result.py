"""The records of a run: `Result`, one solver on one task, and `RunInfo`, what the results of a folder share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from shardgym.costs.base import CONFIG as COST_CONFIG
from shardgym.costs.base import PlanCost
from shardgym.errors import InputError
from shardgym.files import write_whole
from shardgym.plan import ShardingPlan
from shardgym.records import CONFIG, Digest, Name, Record, Whole, canonical_json

RUN_INFO = "run.json"

#: `ok`: a plan with a finite cost. `infeasible`: the solver found no feasible plan, or returned an infeasible one.
#: `error`: the solver raised. `unmeasured`: the plan is feasible and the judge could not score it.
Status = Literal["ok", "infeasible", "error", "unmeasured"]

#: Identifies a result within its folder: task index, solver, seed.
Key = tuple[int, str, int]


def recipe(made_from: str | None, settings: Mapping[str, Any]) -> str:
    """Return what a solver was made of as text: its settings as JSON, after the name that a label stands for."""
    text = canonical_json(dict(settings))
    return text if made_from is None else f"{made_from} {text}"


@dataclass(frozen=True, eq=False, config=COST_CONFIG)
class Result(Record):
    """One solver, one task, one seed, one judge: enough to score the plan again.

    Attributes:
        suite: name of the suite.
        task_index: position of the task in the suite.
        task_hash: `digest` of the task.
        solver: name the solver was asked for by, or its label in this run.
        made_from: the name that `solver` is a label for; None when it is the name.
        solver_settings: keyword arguments it was made with.
        weights_digest: SHA-256 of the weights that a learned solver solved with; "" for others, and in older records.
        training_time_s: seconds that these weights took to train; no part of `solve_time_s`. None where not known.
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
    weights_digest: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    training_time_s: Annotated[float, Field(ge=0)] | None = None
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
    def key(self) -> Key:
        """What identifies the result within its folder."""
        return (self.task_index, self.solver, self.seed)

    @property
    def recipe(self) -> str:
        """What the solver was made of: its name, unless `solver` is it, and its settings."""
        return recipe(self.made_from, self.solver_settings)

    @property
    def total_ms(self) -> float:
        """The judge's cost; infinite when status is not "ok"."""
        return self.cost.total_ms if self.cost is not None else float("inf")


#: Fields of `RunInfo` that grow with every run in the same folder; the others must stay as they are.
_GROWING = ("num_tasks", "solvers", "seeds")


@dataclass(frozen=True, config=CONFIG)
class RunInfo(Record):
    """What one folder of results is about: `run.json`, beside them so that they are never mixed with others.

    Attributes:
        suite: name of the suite.
        judge: name of the cost model that scores plans.
        judge_version: its version.
        judge_settings: keyword arguments it was made with.
        hardware: its hardware tag.
        oracle: name of the cost model that solvers query.
        oracle_settings: keyword arguments it was made with.
        time_limit_s: given to solvers; None when there was none.
        num_tasks: how many of the suite's tasks were asked for, counted from its first.
        solvers: names or labels of the solvers that were asked for.
        seeds: seeds that were asked for.
    """

    suite: Name
    judge: Name
    judge_version: str
    judge_settings: dict[str, Any]
    hardware: str
    oracle: Name
    oracle_settings: dict[str, Any]
    time_limit_s: float | None
    num_tasks: Annotated[Whole, Field(ge=0)]
    solvers: tuple[Name, ...]
    seeds: tuple[Whole, ...]
    schema: Literal["shardgym.run/1"] = "shardgym.run/1"

    @classmethod
    def beside(cls, folder: Path) -> Self | None:
        """Read the file of a folder; None when it has none."""
        path = folder / RUN_INFO
        return cls.load(path) if path.exists() else None

    def write(self, folder: Path) -> None:
        """Write the file of a folder; raises `InputError` when that fails."""
        write_whole(folder / RUN_INFO, self.to_json(indent=2) + "\n")

    def join(self, folder: Path) -> RunInfo:
        """Return this run together with those that the folder already holds.

        Raises:
            InputError: the folder is about something else; the first field that differs is named.
        """
        old = RunInfo.beside(folder)
        if old is None:
            return self
        for field in dataclasses.fields(self):
            was = getattr(old, field.name)
            now = getattr(self, field.name)
            if field.name not in _GROWING and was != now:
                raise InputError(
                    f"{folder} holds records of {field.name} {was!r}, this run has {now!r}: "
                    "give another folder, or --resume all to start afresh"
                )
        return dataclasses.replace(
            self,
            num_tasks=max(old.num_tasks, self.num_tasks),
            solvers=tuple(dict.fromkeys(old.solvers + self.solvers)),
            seeds=tuple(sorted({*old.seeds, *self.seeds})),
        )

    def check(self, result: Result, where: str) -> None:
        """Check that a stored result is of this run.

        Raises:
            InputError: it is of another suite, judge, judge version, hardware, oracle or time limit.
        """
        version = self.judge_version if result.cost is None else result.cost.version
        if version != self.judge_version:
            raise InputError(
                f"{where} holds a record of judge_version {version!r}, this run has {self.judge_version!r}: "
                "give another folder"
            )
        for name in ("suite", "judge", "hardware", "oracle", "judge_settings", "time_limit_s"):
            was = getattr(result, name)
            now = getattr(self, name)
            if was != now:
                raise InputError(f"{where} holds a record of {name} {was!r}, this run has {now!r}: give another folder")
