"""Costs of complete and of partial placements: many at once, in few calls of the cost model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardgym.arguments import check_dict, describe
from shardgym.arrays import Floats, Ints
from shardgym.costs.base import PHASES, CostModel, PlanCost, make_cost
from shardgym.costs.simulator import SimulatorCost
from shardgym.costs.simulator.predictor import AdditivePredictor, PlanBatch
from shardgym.envs.placements import Placements
from shardgym.errors import InputError, MeasurementError
from shardgym.plan import COLUMN_UNIT, Shard, ShardingPlan
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask

#: `Shard` objects that are kept for later plans.
_SHARDS_KEPT = 2**20

#: Memory of a device on which every task fits.
_MUCH_MEMORY = 2**60


class PlanScorer:
    """Scores placements with any cost model. Methods take `rows`, numbers of episodes, shape (n,).

    Args:
        cost: the cost model.
        placements: what is scored.
    """

    def __init__(self, cost: CostModel, placements: Placements) -> None:
        self._cost = cost
        self._placements = placements
        self.forget()

    def forget(self) -> None:
        """Drop everything that refers to numbers of the catalog, which has been cleared."""
        self._plan_shards: dict[tuple[int, int, int], Shard] = {}
        self._stand_ins: dict[tuple[int, int], EmbeddingTable] = {}
        self._even_shares: dict[int, float] = {}

    def start(self, rows: Ints) -> None:
        """Prepare partial costs of placements that have just been started; overridden where that takes work."""

    def place(self, rows: Ints, devices: Ints) -> None:
        """Update partial costs for the next shards, which are about to be placed on these devices."""

    def plans(self, rows: Ints) -> list[ShardingPlan]:
        """Return the plans of complete placements."""
        p = self._placements
        if len(self._plan_shards) > _SHARDS_KEPT:
            self._plan_shards.clear()
        counts = p.placed[rows]
        shards, starts, devices = (array[rows, : counts.max()] for array in (p.shards, p.starts, p.devices))
        # Plans are sorted by the table's name, then by columns, which are at most 2**16.
        key = (p.catalog.shard["rank"][shards] << 17) + starts
        order = np.argsort(np.where(shards > 0, key, 2**62), axis=1)
        columns = (np.take_along_axis(array, order, 1).tolist() for array in (shards, starts, devices))
        return [
            self._plan(int(task), list(zip(*columns_of_plan, strict=True))[:count])
            for task, count, *columns_of_plan in zip(p.task[rows], counts, *columns, strict=True)
        ]

    def costs(self, rows: Ints, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """Return the costs of complete placements, whose plans are given; those of one task are evaluated together.

        A failed measurement is an infinite cost that says why.
        """
        p = self._placements
        costs: dict[int, PlanCost] = {}
        tasks = p.task[rows]
        for number in np.unique(tasks).tolist():
            group = np.flatnonzero(tasks == number).tolist()
            task = p.catalog.tasks[number]
            try:
                found = self._cost.evaluate(task, [plans[n] for n in group])
            except MeasurementError as error:
                found = [self._cost.no_cost(task, str(error))] * len(group)
            costs |= zip(group, found, strict=True)
        return [costs[n] for n in range(len(plans))]

    def partial_ms(self, rows: Ints) -> tuple[Floats, dict[int, str]]:
        """Return the slowest device's time of incomplete placements, shape (n,); infinite where there is none.

        Also returns the reasons why there is none, by row.
        """
        ms = np.full(len(rows), math.inf)
        reasons = {}
        for n, row in enumerate(rows.tolist()):
            try:
                ms[n] = self.partial_per_device(row).sum(axis=1).max()
            except MeasurementError as error:
                reasons[row] = str(error)
        return ms, reasons

    def partial_per_device(self, row: int) -> Floats:
        """Return the phases of every device for the placed shards, shape (D, 4), as `PlanCost.per_device`.

        The cost model scores a task that is made up for it, of the placed tables only. A shard of some columns becomes
        a table of that width.

        Raises:
            MeasurementError: the cost model cannot score it; the message says why.
        """
        p = self._placements
        task = p.catalog.tasks[p.task[row]]
        placed = slice(p.placed[row])
        shards = list(zip(p.shards[row, placed].tolist(), p.starts[row, placed].tolist(), strict=True))
        if not shards:
            return np.zeros((task.num_devices, len(PHASES)))
        part = dataclasses.replace(task, tables=tuple(self._stand_in(task, *shard) for shard in shards), name="")
        [cost] = self._cost.evaluate(part, [ShardingPlan.table_wise(part, p.devices[row, placed].tolist())])
        if cost.reason is not None:
            raise MeasurementError(cost.reason)
        return cost.per_device

    def even_share_ms(self, rows: Ints) -> Floats:
        """Return the time of all tables of a task on one device, over the number of devices, shape (n,).

        Raises:
            InputError: the cost model has no time for it.
        """
        shares = []
        for number in self._placements.task[rows].tolist():
            if number not in self._even_shares:
                self._even_shares[number] = even_share_ms(self._cost, self._placements.catalog.tasks[number])
            shares.append(self._even_shares[number])
        return np.array(shares)

    def save(self, row: int) -> Any:
        """Return the state that `load` needs to restore partial costs."""

    def load(self, row: int, saved: Any) -> None:
        """Restore the partial costs of a placement that has been restored."""

    def _plan(self, task: int, shards: list[tuple[int, int, int]]) -> ShardingPlan:
        """Return a plan without validation, which takes longer than a step: its shards are valid and sorted."""
        plan = object.__new__(ShardingPlan)
        task_hash = self._placements.catalog.tasks[task].digest
        plan.__dict__.update(
            task_hash=task_hash, shards=tuple(map(self._plan_shard, shards)), schema=ShardingPlan.schema
        )
        return plan

    def _plan_shard(self, key: tuple[int, int, int]) -> Shard:
        shard = self._plan_shards.get(key)
        if shard is None:
            shard = self._plan_shards[key] = self._placements.catalog.placed(*key)
        return shard

    def _stand_in(self, task: ShardingTask, shard: int, start: int) -> EmbeddingTable:
        """Return a shard as a table: the task's own table where it is whole."""
        key = shard, start
        if key not in self._stand_ins:
            catalog = self._placements.catalog.shard
            position = int(catalog["position"][shard])
            width = int(catalog["width"][shard])
            table = task.tables[position]
            if width != table.embedding_dim:
                name = f"columns {start} to {start + width - 1} of {position}"
                while task.has_table(name):
                    name += "'"
                table = dataclasses.replace(table, name=name, embedding_dim=width)
            self._stand_ins[key] = table
        return self._stand_ins[key]


class SimulatorScorer(PlanScorer):
    """Scores placements with an oracle of the simulator, which predicts plans of several tasks together.

    For partial costs, one more shard takes one vector addition and one call of the predictor's head.

    Args:
        cost: the oracle.
        placements: what is scored.
        partial: whether partial costs are needed.
    """

    def __init__(self, cost: SimulatorCost, placements: Placements, *, partial: bool) -> None:
        self._oracle = cost
        self._partial = partial
        super().__init__(cost, placements)
        width = self._predictor.latents(np.zeros(0, dtype=np.int64)).shape[1]
        self._sums = np.zeros((*placements.loads.shape[:2], width if partial else 0))

    def forget(self) -> None:
        """See `PlanScorer`."""
        super().forget()
        self._predictor: AdditivePredictor = self._oracle.predictor()
        #: Numbers of the catalog's tasks and shards in the predictor, -1 for those that are not encoded yet.
        self._task_numbers = np.zeros(0, dtype=np.int64)
        self._shard_numbers = np.zeros(0, dtype=np.int64)

    def start(self, rows: Ints) -> None:
        """See `PlanScorer`; a task of a kind that the weights were not trained on is an `InputError`."""
        if self._partial:
            self._encode(self._placements.task[rows])
            self._sums[rows] = 0.0

    def place(self, rows: Ints, devices: Ints) -> None:
        """See `PlanScorer`."""
        if self._partial:
            shards = self._shard_numbers[self._placements.next[rows]]
            self._sums[rows, devices] += self._predictor.latents(shards)

    def costs(self, rows: Ints, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """See `PlanScorer`. Complete placements are feasible plans, so they are not validated again."""
        p = self._placements
        shards = p.shards[rows]
        # A width that no kernel takes makes a plan infeasible: `CostModel.evaluate` gives the reason.
        odd = (p.catalog.shard["width"][shards] % COLUMN_UNIT > 0).any(axis=1)
        num_devices = np.where(odd, 0, p.catalog.task["num_devices"][p.task[rows]])
        self._encode(p.task[rows[~odd]])
        costs: dict[int, PlanCost] = {}
        for count in np.unique(num_devices).tolist():
            group = np.flatnonzero(num_devices == count)
            if count:
                exists = shards[group] > 0
                numbers = self._shard_numbers[shards[group][exists]]
                batch = PlanBatch(count, exists.sum(axis=1), numbers, p.devices[rows[group]][exists])
                found = self._predictor.plan_costs(batch)
            else:
                found = super().costs(rows[group], [plans[n] for n in group.tolist()])
            costs |= zip(group.tolist(), found, strict=True)
        return [costs[n] for n in range(len(plans))]

    def partial_ms(self, rows: Ints) -> tuple[Floats, dict[int, str]]:
        """See `PlanScorer`; nothing is infinite."""
        p = self._placements
        ms = np.zeros(len(rows))
        tasks = p.task[rows]
        num_devices = p.catalog.task["num_devices"][tasks]
        for count in np.unique(num_devices).tolist():
            group = np.flatnonzero(num_devices == count)
            loads = p.loads[rows[group], :count]
            shards = loads[:, :, 3].astype(np.int64)
            per_device = self._predictor.per_device_ms(
                self._task_numbers[tasks[group]], self._sums[rows[group], :count], shards, loads[:, :, 1]
            )
            ms[group] = per_device.sum(axis=2).max(axis=1)
        return ms, {}

    def save(self, row: int) -> Any:
        """See `PlanScorer`."""
        return self._sums[row].copy()

    def load(self, row: int, saved: Any) -> None:
        """See `PlanScorer`."""
        self.start(np.array([row]))
        self._sums[row] = saved

    def _encode(self, tasks: Ints) -> None:
        """Let the predictor encode all shards of the tasks that are new to it."""
        catalog = self._placements.catalog
        new = len(catalog.tasks) - len(self._task_numbers)
        if new:
            self._task_numbers = np.pad(self._task_numbers, (0, new), constant_values=-1)
            missing = len(catalog.shard) - len(self._shard_numbers)
            self._shard_numbers = np.pad(self._shard_numbers, (0, missing), constant_values=-1)
        unknown = tasks[self._task_numbers[tasks] < 0]
        for number in np.unique(unknown).tolist() if len(unknown) else ():
            task = catalog.tasks[number]
            numbers = catalog.shards_of(number)
            self._task_numbers[number] = self._predictor.add_task(task)
            shards = [catalog.placed(shard, 0, 0) for shard in numbers.tolist()]
            self._shard_numbers[numbers] = self._predictor.encode(task, shards)


def plan_scorer(cost: CostModel, placements: Placements, *, partial: bool) -> PlanScorer:
    """Return the scorer for a cost model; `partial` says whether partial costs are needed."""
    if type(cost) is SimulatorCost and cost.role == "oracle":
        return SimulatorScorer(cost, placements, partial=partial)
    return PlanScorer(cost, placements)


def cost_model(cost: str | CostModel, settings: dict[str, Any] | None) -> tuple[CostModel, bool]:
    """Return the cost model given by name or as an object, and whether it was made here.

    Raises:
        InputError: neither a name nor a cost model, `settings` is not a dictionary, or settings of an object.
        UnknownNameError: no cost of this name.
    """
    settings = check_dict("cost_settings", settings)
    if isinstance(cost, str):
        return make_cost(cost, **settings), True
    if not isinstance(cost, CostModel):
        raise InputError(f"cost: expected a cost model or its name, got {describe(cost)}")
    if settings:
        raise InputError("cost_settings are for a cost given by name, a ready-made cost model was given")
    return cost, False


def even_share_ms(cost: CostModel, task: ShardingTask) -> float:
    """Return the time of all tables on one device over the number of devices.

    Raises:
        InputError: the cost model has no time for it.
    """
    topology = dataclasses.replace(task.topology, memory_bytes=(_MUCH_MEMORY,) * task.num_devices)
    roomy = dataclasses.replace(task, topology=topology)
    [on_one] = cost.evaluate(roomy, [ShardingPlan.table_wise(roomy, [0] * task.num_tables)])
    if on_one.reason is not None:
        raise InputError(f"task '{task.name}': there is no time of all tables on one device: {on_one.reason}")
    return on_one.total_ms / task.num_devices
