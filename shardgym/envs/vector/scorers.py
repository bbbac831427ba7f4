"""Scorers: the costs of finished plans, as few calls of the cost model as there can be."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from shardgym.costs.base import CostModel
from shardgym.costs.plan_cost import PlanCost
from shardgym.costs.simulator.predictor import PlanBatch
from shardgym.envs.vector.encoded_kinds import EncodedKinds
from shardgym.envs.vector.plans import Finished
from shardgym.envs.vector.task_shards import TaskShards
from shardgym.errors import MeasurementError
from shardgym.plan import COLUMN_UNIT, ShardingPlan


class Scorer(Protocol):
    """Gives the cost of every plan."""

    def costs(self, done: Finished, plans: list[ShardingPlan]) -> list[PlanCost]:
        """Return the costs of complete placements, whose plans are given too; failed measurements say why."""


def scorer(cost: CostModel, shards: TaskShards, encoded: EncodedKinds | None) -> Scorer:
    """Return what scores plans with this cost model; `encoded` is None unless it is an oracle of the simulator."""
    others = EvaluatingScorer(cost, shards)
    return others if encoded is None else SimulatorScorer(encoded, shards, others)


class EvaluatingScorer:
    """Has the plans of each task evaluated together.

    Args:
        cost: any cost model.
        shards: of the tasks.
    """

    def __init__(self, cost: CostModel, shards: TaskShards) -> None:
        self._cost, self._shards = cost, shards

    def costs(self, done: Finished, plans: list[ShardingPlan]) -> list[PlanCost]:
        """See `Scorer`."""
        costs: dict[int, PlanCost] = {}
        for slot in np.unique(done.slots):
            group = np.flatnonzero(done.slots == slot).tolist()
            costs |= zip(group, self._evaluate(int(slot), [plans[n] for n in group]), strict=True)
        return [costs[n] for n in range(len(plans))]

    def _evaluate(self, slot: int, plans: list[ShardingPlan]) -> list[PlanCost]:
        task = self._shards.figures[slot].task
        try:
            return self._cost.evaluate(task, plans)
        except MeasurementError as error:
            return [self._cost.no_cost(task, str(error)) for _ in plans]


class SimulatorScorer:
    """Has the plans of all tasks with equally many devices predicted together.

    What is placed has room and covers its task, so plans are not checked again. Tasks with a width that no kernel
    takes have no feasible plan, and are left to the cost model itself.

    Args:
        encoded: shards, and the oracle.
        shards: of the tasks.
        others: scores the plans of those tasks.
    """

    def __init__(self, encoded: EncodedKinds, shards: TaskShards, others: EvaluatingScorer) -> None:
        self._encoded, self._shards, self._others = encoded, shards, others

    def costs(self, done: Finished, plans: list[ShardingPlan]) -> list[PlanCost]:
        """See `Scorer`."""
        costs: dict[int, PlanCost] = {}
        odd = self._odd(done)
        devices = np.where(odd, 0, self._shards.tasks["devices"][done.slots])
        for count in np.unique(devices):
            group = np.flatnonzero(devices == count)
            part = done.pick(group)
            if count:
                costs |= zip(group.tolist(), self._predict(part, int(count)), strict=True)
            else:
                costs |= zip(group.tolist(), self._others.costs(part, [plans[n] for n in group]), strict=True)
        return [costs[n] for n in range(len(plans))]

    def _odd(self, done: Finished) -> npt.NDArray[np.bool_]:
        """Say which placements hold a width that no kernel takes, shape (P,)."""
        starts = np.cumsum(done.counts) - done.counts
        odd = self._shards.kinds["width"][done.kinds] % COLUMN_UNIT > 0
        return np.asarray(np.logical_or.reduceat(odd, starts), dtype=np.bool_)

    def _predict(self, done: Finished, num_devices: int) -> list[PlanCost]:
        numbers = self._encoded.numbers(done.slots, done.kinds)
        return self._encoded.predictor.plan_costs(PlanBatch(num_devices, done.counts, numbers, done.devices))
