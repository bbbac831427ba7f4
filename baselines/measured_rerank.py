"""Measured rerank: measure a solver's best plans, and return the best by measurement."""

import functools
import inspect
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.base import GROUP, CostModel, make_cost
from shardgym.costs.ties import quantized
from shardgym.errors import NO_PLAN, InputError, MeasurementError, check_int
from shardgym.evaluation.solver import Budget, Observer, call_solver, check_solve_arguments, make_solver, warm_up
from shardgym.plans.feasibility import check_possible
from shardgym.plans.plan import ShardingPlan
from shardgym.registry import find_class
from shardgym.tasks.task import ShardingTask

#: Seed of a measurer that draws ids. Judges have 0 unless a user chose another one.
_SEED = 20_231_107
#: Share of a time limit for searching.
_SEARCHING = 0.5
#: Least share of a task's work on different devices for two plans to count as different.
_DISTANCE = 0.05
#: Assumed seconds to measure a plan, before the first was measured.
_SECONDS_PER_PLAN = 2.0


class MeasuredRerank:
    """Selects among a solver's plans with a second cost model, against the winner's curse.

    A search exploits the errors of its oracle, so its best plan is the one that the oracle flatters most. This solver
    calls another solver several times with different seeds. A *measurer* prices the cheapest of its reported plans that
    differ, all in one call, and the cheapest one is returned. The measurer is a cost model of this solver's own: never
    the judge, and with another seed of ids.

    Args:
        solver: solver to call, by name or as `module:Class`.
        queries: maximum number of plans that the measurer prices per task. Queries of the oracle are not limited.
        starts: maximum number of calls of the solver, which end when a call finds no new plan.
        measurer: name of the measurer. When None: "fbgemm" if the oracle is learned, else the oracle itself.
        solver_settings: keyword arguments for the solver's class.
        measurer_settings: keyword arguments for the measurer. Unless they have a seed, a measurer that takes one gets a
            seed that judges do not use.

    Raises:
        UnknownNameError: no such solver or measurer.
        InputError: a setting is out of range or of another type, does not suit the solver or the measurer, or the
            measurer is a judge.
        MissingDependencyError: solver or measurer need an extra that is not installed.
    """

    def __init__(
        self,
        solver: str = "neuroshard_plus",
        queries: int = 8,
        starts: int = 4,
        measurer: str | None = None,
        solver_settings: dict[str, Any] | None = None,
        measurer_settings: dict[str, Any] | None = None,
    ) -> None:
        self.solver = solver
        self.queries = check_int("queries", queries, 1)
        self.starts = check_int("starts", starts, 1)
        self.measurer = measurer
        self.solver_settings = dict(solver_settings or {})
        self.measurer_settings = dict(measurer_settings or {})
        if measurer is None and self.measurer_settings:
            raise InputError("measurer_settings need a measurer: name it, e.g. measurer='fbgemm'")
        self._searcher = make_solver(solver, **self.solver_settings)
        self._own = None if measurer is None else _make_measurer(measurer, self.measurer_settings)
        self._seconds_per_plan = _SECONDS_PER_PLAN

    def warm_up(self, task: ShardingTask, cost: CostModel) -> None:
        """Warm up the solver, and start the measurer's processes."""
        warm_up(self._searcher, task, cost)
        measurer = self._measurer_beside(cost)
        if not measurer.deterministic:
            measurer.evaluate(task, [ShardingPlan.table_wise(task, [0] * task.num_tables)])

    def solve(
        self,
        task: ShardingTask,
        cost: CostModel,
        seed: int = 0,
        *,
        time_limit_s: float | None = None,
        initial_plan: ShardingPlan | None = None,
        observer: Observer | None = None,
    ) -> ShardingPlan:
        """Return the plan that the measurer finds cheapest, and call `observer` with this one only; see `Solver`.

        The same seed gives the same plan if oracle and measurer are deterministic. The search takes half of a time
        limit; the number of measured plans follows from the rest and from the time of earlier measurements.
        """
        check_solve_arguments(task, cost, seed, time_limit_s=time_limit_s, initial_plan=initial_plan)
        check_possible(task)
        budget = Budget(time_limit_s)
        searching = Budget(None if time_limit_s is None else _SEARCHING * time_limit_s)
        found = self._search(task, cost, int(seed), searching, initial_plan)
        measurer = self._measurer_beside(cost)
        count = self.queries
        if not measurer.deterministic and budget.limited:
            count = min(count, max(int(budget.left_s / self._seconds_per_plan), 1))
        plans = diverse_best(task, found, count)
        if len(plans) == 1:  # nothing to choose from
            times = [found[plans[0]]]
        else:
            clock = time.perf_counter()
            costs = measurer.evaluate(task, plans)
            self._seconds_per_plan = (time.perf_counter() - clock) / len(plans)
            times = [answer.total_ms for answer in costs]
            if min(times) == math.inf:
                raise MeasurementError(
                    f"measurer '{measurer.name}' could price none of {len(plans)} plans: {costs[0].reason}"
                )
        best = int(quantized(np.array(times)).argmin())
        if observer is not None:
            observer(plans[best], times[best])
        return plans[best]

    def _search(
        self, task: ShardingTask, cost: CostModel, seed: int, budget: Budget, initial_plan: ShardingPlan | None
    ) -> dict[ShardingPlan, float]:
        """Return all improvements that the solver reports, with their costs by the oracle."""
        found: dict[ShardingPlan, float] = {}
        if initial_plan is not None:
            initial_plan.validate(task)
            found[initial_plan] = cost.evaluate(task, [initial_plan])[0].total_ms

        def improved(plan: ShardingPlan, cost_ms: float) -> None:
            found[plan] = cost_ms

        for start in range(self.starts):
            before = len(found)
            limit_s = budget.left_s / (self.starts - start) if budget.limited else None
            # Runs with different seeds share no start, and the first start of seed 0 is the solver's own plan.
            own_seed = seed * self.starts + start
            try:
                plan = call_solver(
                    self._searcher, task, cost, own_seed,
                    time_limit_s=limit_s, initial_plan=initial_plan, observer=improved,
                )  # fmt: skip
            except NO_PLAN:
                if not found:
                    raise
                break
            if plan not in found:
                found[plan] = cost.evaluate(task, [plan])[0].total_ms
            if len(found) == before or (budget.limited and not budget.left_s):
                break
        return found

    def _measurer_beside(self, oracle: CostModel) -> CostModel:
        """Return the measurer, which keeps its processes between calls."""
        if self._own is not None:
            return self._own
        return self._fbgemm if oracle.learned else oracle

    @functools.cached_property
    def _fbgemm(self) -> CostModel:
        return _make_measurer("fbgemm", {})


def _make_measurer(name: str, settings: dict[str, Any]) -> CostModel:
    """Make a cost model that is not a judge, with a seed that judges do not use."""
    if "seed" in inspect.signature(find_class("cost", GROUP, name)).parameters:
        settings = {"seed": _SEED, **settings}
    measurer = make_cost(name, **settings)
    if measurer.scores_only:
        raise InputError(f"measurer '{name}' has role 'judge', which is for scoring: name one that solvers may query")
    return measurer


def held_work(task: ShardingTask, plan: ShardingPlan) -> Floats:
    """Return the share of a task's work that each device has from each table, shape (D, T), summing to 1.

    A table's work is columns * (pooling factor + 1), the values read and sent per sample. Its shards share it by cells.
    """
    position = {table.name: n for n, table in enumerate(task.tables)}
    held = np.zeros((task.num_devices, task.num_tables))
    for shard in plan.shards:
        table = task.table(shard.table)
        rows = shard.num_rows / table.num_embeddings
        held[list(shard.devices), position[shard.table]] += shard.num_columns * rows * (1.0 + table.pooling_factor)
    return np.asarray(held / held.sum(), dtype=np.float64)


def placement_distance(one: Floats, other: Floats) -> float:
    """Return the share of work that is on different devices, from 0 to 1, given `held_work` of two plans for a task.

    Devices are first matched greedily by common work, so that plans that only swap whole devices have distance 0.
    """
    common = np.stack([np.minimum(row[row > 0], other[:, row > 0]).sum(axis=1) for row in one])
    named_alike = float(common.trace())
    renamed = 0.0
    for _ in range(len(one)):
        pair = np.unravel_index(common.argmax(), common.shape)
        renamed += float(common[pair])
        common[pair[0]] = -1.0
        common[:, pair[1]] = -1.0
    return min(max(1.0 - max(named_alike, renamed), 0.0), 1.0)


def diverse_best(task: ShardingTask, found: Mapping[ShardingPlan, float], count: int) -> list[ShardingPlan]:
    """Return the cheapest distinct plans, each the next cheapest that is far enough from all before it."""
    plans: list[ShardingPlan] = []
    held: list[Floats] = []
    for plan in sorted(found, key=lambda plan: float(quantized(found[plan]))):
        if len(plans) == count:
            break
        work = held_work(task, plan)
        if all(placement_distance(work, other) >= _DISTANCE for other in held):
            plans.append(plan)
            held.append(work)
    return plans
