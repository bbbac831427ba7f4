"""What the shards placed so far cost, before the plan is complete."""

from __future__ import annotations

import dataclasses
from typing import Protocol, Self

from shardgym.arrays import Floats
from shardgym.costs.base import CostModel
from shardgym.costs.plan_cost import PlanCost
from shardgym.costs.simulator import SimulatorCost
from shardgym.costs.simulator.cost import PlacementState
from shardgym.envs.placement import Placement
from shardgym.errors import MeasurementError
from shardgym.plan import Shard, ShardingPlan
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask


class PartialCost(Protocol):
    """The cost of a placement that is kept up to date shard by shard."""

    def put(self, shard: Shard) -> None:
        """Add a shard to the device that it names."""

    def per_device(self) -> Floats:
        """Return the four phases of every device in ms, shape (D, 4), as `PlanCost.per_device`.

        Raises:
            MeasurementError: the cost model cannot score what is placed; the message says why.
        """

    def copy(self) -> Self:
        """Return an independent copy."""


def partial_cost(cost: CostModel, placement: Placement) -> PartialCost:
    """Return the partial cost of a placement, with what is placed already."""
    task = placement.figures.task
    partial: PartialCost
    if isinstance(cost, SimulatorCost) and cost.role == "oracle":
        partial = SimulatedPartialCost(cost, task)
    else:
        partial = EvaluatedPartialCost(cost, task)
    for shard, device in placement.done:
        partial.put(placement.shard_of(shard, device))
    return partial


class SimulatedPartialCost:
    """Adds latents: a shard more is one vector addition and one call of the simulator's head.

    Args:
        cost: an oracle.
        task: the task; its tables are encoded here, all at once.
    """

    def __init__(self, cost: SimulatorCost, task: ShardingTask) -> None:
        self._state: PlacementState = cost.begin(task)
        self._whole = {table.name: (number, table.embedding_dim) for number, table in enumerate(task.tables)}

    def put(self, shard: Shard) -> None:
        """See `PartialCost`."""
        number, width = self._whole[shard.table]
        candidate = number if shard.num_columns == width else self._state.extend([shard])[0]
        self._state.add(candidate, shard.device)

    def per_device(self) -> Floats:
        """See `PartialCost`."""
        return self._state.per_device()

    def copy(self) -> SimulatedPartialCost:
        """See `PartialCost`."""
        other = object.__new__(SimulatedPartialCost)
        other._state, other._whole = self._state.copy(), self._whole
        return other


class EvaluatedPartialCost:
    """Asks any cost model for the plan of a made-up task: the tables that are placed, and no others.

    A shard of some columns becomes a table of that width.

    Args:
        cost: any cost model.
        task: the task.
    """

    def __init__(self, cost: CostModel, task: ShardingTask) -> None:
        self._cost, self._task = cost, task
        self._placed: list[tuple[EmbeddingTable, int]] = []

    def put(self, shard: Shard) -> None:
        """See `PartialCost`."""
        table = self._task.table(shard.table)
        whole = shard.num_columns == table.embedding_dim
        self._placed.append((table if whole else self._stand_in(table, shard), shard.device))

    def per_device(self) -> Floats:
        """See `PartialCost`."""
        tables = tuple(table for table, _ in self._placed)
        task = dataclasses.replace(self._task, tables=tables, name="")
        [cost] = self._cost.evaluate(task, [self._plan(task)])
        return _times(cost)

    def copy(self) -> EvaluatedPartialCost:
        """See `PartialCost`."""
        other = EvaluatedPartialCost(self._cost, self._task)
        other._placed = list(self._placed)
        return other

    def _stand_in(self, table: EmbeddingTable, shard: Shard) -> EmbeddingTable:
        name = f"columns {shard.columns[0]} to {shard.columns[1] - 1} of {self._task.tables.index(table)}"
        while self._task.has_table(name):
            name += "'"
        return dataclasses.replace(table, name=name, embedding_dim=shard.num_columns)

    def _plan(self, task: ShardingTask) -> ShardingPlan:
        return ShardingPlan.of(task, (Shard.whole(table, device) for table, device in self._placed))


def _times(cost: PlanCost) -> Floats:
    if cost.reason is not None:
        raise MeasurementError(cost.reason)
    return cost.per_device
