"""EncodedKinds: under which numbers the simulator knows kinds of shards."""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Ints
from shardgym.costs.base import CostModel
from shardgym.costs.simulator import SimulatorCost
from shardgym.costs.simulator.predictor import AdditivePredictor
from shardgym.envs.vector.task_shards import TaskShards


class EncodedKinds:
    """Encodes all shards of a task when the first of them is asked for.

    Args:
        cost: an oracle.
        shards: of the tasks.
        dense: whether single environments encode tables in the task's order, instead of that of plans.

    Attributes:
        predictor: of these shards.
    """

    def __init__(self, cost: SimulatorCost, shards: TaskShards, *, dense: bool) -> None:
        self._cost, self._shards, self._order = cost, shards, "position" if dense else "rank"
        self.predictor, self._number = self._nothing()

    def numbers(self, slots: Ints, kinds: Ints) -> Ints:
        """Return the numbers of kinds, all of these tasks.

        Raises:
            InputError: a task is of a kind that the weights were not trained on.
        """
        unknown = len(self._shards.kinds) - len(self._number)
        self._number = np.concatenate([self._number, np.full(unknown, -1)])
        if (self._number[kinds] < 0).any():
            for slot in np.unique(slots).tolist():
                self._add(slot)
        return self._number[kinds]

    def tasks(self, slots: Ints) -> Ints:
        """Return the predictor's numbers of tasks."""
        figures = self._shards.figures
        return np.array([self.predictor.add_task(figures[slot].task) for slot in slots.tolist()])

    def forget(self) -> None:
        """Forget all shards, as kinds have other numbers now."""
        self.predictor, self._number = self._nothing()

    def _nothing(self) -> tuple[AdditivePredictor, Ints]:
        return self._cost.predictor(), np.zeros(0, dtype=np.int64)

    def _add(self, slot: int) -> None:
        """Add all kinds of shards of a task, whole tables first, in the order in which single environments encode them.

        How shards lie in a matrix may change last bits of products with it.
        """
        task, kinds = self._shards.figures[slot].task, self._shards.kinds_of(slot)
        if self._number[kinds[0]] >= 0:
            return
        columns = self._shards.kinds
        kinds = kinds[np.lexsort([columns[self._order][kinds], columns["width_share"][kinds] < 1])]
        shards = [self._shards.kinds.shard(kind, 0, 0) for kind in kinds.tolist()]
        self._number[kinds] = self.predictor.encode(task, shards)


def encoded_kinds(cost: CostModel, shards: TaskShards, *, dense: bool) -> EncodedKinds | None:
    """Return encoded kinds where the cost model is an oracle that predicts communication too, or None."""
    if type(cost) is SimulatorCost and cost.role == "oracle" and cost.predicts_exchanges:
        return EncodedKinds(cost, shards, dense=dense)
    return None
