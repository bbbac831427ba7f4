"""What plans cost, and placements that are not complete yet: many at once, in few calls of the cost model."""

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

#: Shards that are kept to be part of later plans too.
_SHARDS_KEPT = 2**20


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
        """Forget what is known of shards, as the catalog has been cleared."""
        self._plan_shards: dict[tuple[int, int, int], Shard] = {}
        self._stand_ins: dict[tuple[int, int], EmbeddingTable] = {}

    def start(self, rows: Ints) -> None:
        """Get ready for partial costs of placements that have been started or loaded."""

    def place(self, rows: Ints, devices: Ints) -> None:
        """Add the next shards to devices, for partial costs; called before they are placed."""

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
        """Return the slowest device's time for what is placed, shape (n,), and reasons why there is none by row.

        Times that there are not are infinite.
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
        """Return the phases of every device for what is placed, shape (D, 4), as `PlanCost.per_device`.

        The cost model scores a made-up task for it, of the tables that are placed and no others. A shard of some
        columns becomes a table of that width.

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

    def save(self, row: int) -> Any:
        """Return what `load` needs to go on with partial costs."""

    def load(self, row: int, saved: Any) -> None:
        """Go on with the partial costs of a placement that has been loaded."""

    def _plan(self, task: int, shards: list[tuple[int, int, int]]) -> ShardingPlan:
        """Return a plan without checking its parts again: the hash is a task's own, and the shards are sorted."""
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
        """Return a shard as a table: its own where it is whole."""
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
    """Scores placements with an oracle of the simulator, which predicts those of all tasks together.

    For partial costs, a shard more is one vector addition and one call of the predictor's head.

    Args:
        cost: the oracle.
        placements: what is scored.
        partial: whether partial costs will be asked for.
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
        #: Numbers of the catalog's tasks and shards in the predictor, -1 for those that it does not know.
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
        """See `PlanScorer`. What is placed has room and covers its task, so plans are not checked again."""
        p = self._placements
        shards = p.shards[rows]
        # A task with a width that no kernel takes has no feasible plan: the cost model says so.
        odd = (p.catalog.shard["width"][shards] % COLUMN_UNIT > 0).any(axis=1)
        num_devices = np.where(odd, 0, p.catalog.task["num_devices"][p.task[rows]])
        self._encode(p.task[rows[~odd]])
        costs: dict[int, PlanCost] = {}
        for count in np.unique(num_devices).tolist():
            group = np.flatnonzero(num_devices == count)
            if count:
                held = shards[group] > 0
                numbers = self._shard_numbers[shards[group][held]]
                batch = PlanBatch(count, held.sum(axis=1), numbers, p.devices[rows[group]][held])
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
        """Have the predictor encode all shards of tasks that it does not know yet."""
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
    """Return what scores placements with this cost model, and `partial` ones if asked for."""
    if type(cost) is SimulatorCost and cost.role == "oracle":
        return SimulatorScorer(cost, placements, partial=partial)
    return PlanScorer(cost, placements)


def cost_model(cost: str | CostModel, settings: dict[str, Any] | None) -> tuple[CostModel, bool]:
    """Return the cost model, and whether it was made here.

    Raises:
        InputError: neither a name nor a cost model, settings that are no dictionary, or settings for a ready-made one.
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
