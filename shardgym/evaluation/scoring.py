"""Judge: scores the plans of all solvers for a task, and makes records of them."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from shardgym.costs.base import CostModel, PlanCost
from shardgym.errors import InputError, MeasurementError, MissingDependencyError, one_line
from shardgym.evaluation.result import Result, RunInfo, Status
from shardgym.evaluation.solving import Attempt, ErrorLog
from shardgym.plan import ShardingPlan
from shardgym.provenance import commit, versions
from shardgym.task import ShardingTask


@dataclass(frozen=True)
class Judge:
    """Scores the plans of all solvers for a task.

    Attributes:
        cost: the cost model that scores.
        judging: opens it to this thread; see `judges_closed`.
        run: what the results are part of.
        log: takes tracebacks.
    """

    cost: CostModel
    judging: Callable[[], AbstractContextManager[None]]
    run: RunInfo
    log: ErrorLog

    def score(
        self, task: ShardingTask, index: int, attempts: Sequence[Attempt], old: Sequence[Result] = ()
    ) -> tuple[list[Result], list[Result]]:
        """Score all plans of a task in one call, so that a measured judge interleaves them.

        Args:
            task: the task.
            index: its position in the suite.
            attempts: new ones.
            old: results of the task that are compared with them. A cost that is not deterministic measures their plans
                again, in the same call: what is compared must not have drifted apart.

        Returns:
            One result per attempt, in order, and the old results with new costs, as far as these could be had.
        """
        plans = [a.plan for a in attempts if a.failure is None and a.plan is not None]
        again: list[Result] = []
        if plans and not self.cost.deterministic:
            again = [r for r in old if r.status == "ok"]
        costs = iter(self._costs(task, [*plans, *(r.plan for r in again if r.plan is not None)]) if plans else ())
        new = [self._result(task, index, a, next(costs) if a.failure is None else None) for a in attempts]
        renewed = [dataclasses.replace(r, cost=cost) for r, cost in zip(again, costs, strict=True) if cost.feasible]
        return new, renewed

    def _costs(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        try:
            with self.judging():
                costs = self.cost.evaluate(task, plans)
        except (InputError, MissingDependencyError):
            raise  # e.g. an extra is not installed: it would fail for every other task, too
        except Exception as error:
            if not isinstance(error, MeasurementError):
                self.log(f"judge {self.run.judge}, task {task.name or task.digest[:12]}", traceback.format_exc())
            return [self.cost.no_cost(task, one_line(error))] * len(plans)
        if len(costs) != len(plans):
            raise TypeError(f"cost '{self.run.judge}' returned {len(costs)} costs for {len(plans)} plans")
        return costs

    def _result(self, task: ShardingTask, index: int, attempt: Attempt, cost: PlanCost | None) -> Result:
        status: Status = attempt.failure or "ok"
        reason = attempt.reason
        if cost is not None and not cost.feasible:
            status = "unmeasured"
            reason = cost.reason
        if attempt.plan is not None and reason is not None and cost is None:
            cost = self.cost.no_cost(task, reason)
        return Result(
            suite=self.run.suite,
            task_index=index,
            task_hash=task.digest,
            solver=attempt.spec.title,
            made_from=attempt.spec.made_from,
            solver_settings=dict(attempt.spec.settings),
            resolved_settings=attempt.facts.settings,
            source_digest=attempt.facts.source_digest,
            weights_digest=attempt.answer.weights_digest,
            training_time_s=attempt.answer.training_time_s,
            seed=attempt.seed,
            judge=self.run.judge,
            judge_settings=self.run.judge_settings,
            oracle=self.run.oracle,
            hardware=self.run.hardware,
            status=status,
            reason=reason,
            plan=attempt.plan,
            cost=cost,
            solve_time_s=attempt.answer.seconds,
            cpu_time_s=attempt.answer.cpu_seconds,
            time_limit_s=self.run.time_limit_s,
            started=attempt.answer.started,
            versions=versions(),
            commit=commit(),
        )
