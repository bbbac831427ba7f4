"""Costs of complete and of partial placements: many at once, in few calls of the cost model."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from shardgym.arguments import check_dict, describe
from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.plan_cost import PHASES, PlanCost
from shardgym.envs.placements import Placements
from shardgym.envs.reference import references_ms
from shardgym.envs.shard_catalog import Placed
from shardgym.errors import InputError, MeasurementError
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask

#: Placed shards whose `Shard` objects are kept for later plans.
_SHARDS_KEPT = 2**20


class OrderedShards(NamedTuple):
    """Shards of complete placements in the order of plans, see `PlanScorer._in_order`; each of shape (n, S)."""

    shards: Ints
    starts: Ints
    devices: Ints


class PlanScorer:
    """Scores placements with any cost model. Methods take `rows`, numbers of episodes, shape (n,).

    Args:
        cost: the cost model.
        placements: what is scored.
    """

    def __init__(self, cost: CostModel, placements: Placements) -> None:
        self._cost = cost
        self._placements = placements
        self._in_plans: dict[Placed, tuple[Shard, ...]] = {}
        self._stand_ins: dict[tuple[int, int], EmbeddingTable] = {}
        #: Reference costs of the catalog's tasks in ms, not a number for those that were not asked for yet.
        self._references: Floats = np.zeros(0)

    def keep(self, tasks: Ints, shards: Ints) -> None:  # noqa: ARG002
        """Follow the catalog, which has forgotten tasks.

        Args:
            tasks: former numbers of those that it has kept.
            shards: new numbers by the former ones, see `ShardCatalog.keep`.
        """
        self._stand_ins.clear()
        self._references = self._references[tasks[tasks < len(self._references)]]

    def start(self, rows: Ints) -> None:
        """Prepare partial costs of placements that have just been started; overridden where that takes work."""

    def place(self, rows: Ints, devices: Ints) -> None:
        """Update partial costs for the next shards, which are about to be placed on these devices."""

    def finish(self, rows: Ints) -> tuple[list[ShardingPlan], list[PlanCost]]:
        """Return the plans of complete placements and their costs. A failed measurement is an infinite cost."""
        ordered = self._in_order(rows)
        plans = self._plans(rows, ordered)
        return plans, self._costs_of(rows, plans, ordered)

    def _plans(self, rows: Ints, ordered: OrderedShards) -> list[ShardingPlan]:
        """Return the plans of complete placements without validation, which takes longer than a step."""
        p = self._placements
        if len(self._in_plans) > _SHARDS_KEPT:
            self._in_plans.clear()
        exists = ordered.shards > 0
        placed = p.catalog.placed(*(array[exists] for array in ordered))
        in_plans = [self._in_plans.get(shard) or self._kept(shard) for shard in placed]
        plans = []
        first = 0
        for task, count in zip(p.catalog.task["hash"][p.task[rows]].tolist(), exists.sum(axis=1).tolist(), strict=True):
            held = tuple(itertools.chain.from_iterable(in_plans[first : first + count]))
            if p.kinds is not None:
                # Column blocks that are cut by rows come in the order of rows.
                held = tuple(sorted(held, key=operator.attrgetter("table", "rows", "columns")))
            plans.append(ShardingPlan.unchecked(task_hash=task, shards=held))
            first += count
        return plans

    def _in_order(self, rows: Ints) -> OrderedShards:
        """Return the shards of complete placements, `NOTHING` behind the last, their first columns, and their devices.

        They are in the order of plans: by the table's name, then by columns. Each has shape (n, most shards).
        """
        p = self._placements
        shards, starts, devices = (array[rows, : p.placed[rows].max()] for array in (p.shards, p.starts, p.devices))
        # There are at most 2**16 columns.
        key = (p.catalog.shard["rank"][shards] << 17) + starts
        order = np.argsort(np.where(shards > 0, key, 2**62), axis=1)
        here = np.arange(len(rows))[:, None]
        return OrderedShards(shards[here, order], starts[here, order], devices[here, order])

    def _costs_of(self, rows: Ints, plans: Sequence[ShardingPlan], ordered: OrderedShards) -> list[PlanCost]:  # noqa: ARG002
        """Return the costs of complete placements, whose plans are given; those of one task are evaluated together."""
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

    def totals_ms(self, rows: Ints, complete: int) -> tuple[Floats, dict[int, str]]:
        """Return what complete placements cost, the first ones of these, and incomplete ones as `partial_ms` does.

        Nobody wants the plans, so they are only made where the cost model needs them.
        """
        _, costs = self.finish(rows[:complete]) if complete else ([], [])
        ms, reasons = self.partial_ms(rows[complete:])
        for row, cost in zip(rows[:complete].tolist(), costs, strict=True):
            if cost.reason is not None:
                reasons[row] = cost.reason
        return np.concatenate([[cost.total_ms for cost in costs], ms]), reasons

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
        """Return the phases of every device for the placed shards, shape (D, 5), as `PlanCost.per_device`.

        The cost model scores a task that is made up for it, of the placed tables only. A shard of some columns becomes
        a table of that width, with the same holders.

        Raises:
            MeasurementError: the cost model cannot score it; the message says why.
        """
        p = self._placements
        task = p.catalog.tasks[p.task[row]]
        placed = slice(p.placed[row])
        shards, starts, devices = (array[row, placed] for array in (p.shards, p.starts, p.devices))
        if not len(shards):
            return np.zeros((task.num_devices, len(PHASES)))
        pairs = zip(shards.tolist(), starts.tolist(), strict=True)
        tables = tuple(itertools.starmap(functools.partial(self._stand_in, task), pairs))
        part = dataclasses.replace(task, tables=tables, name="")
        held = [
            dataclasses.replace(piece, table=table.name, columns=(0, table.embedding_dim))
            for table, shard in zip(tables, p.catalog.placed(shards, starts, devices), strict=True)
            for piece in shard.in_plan()
        ]
        [cost] = self._cost.evaluate(part, [ShardingPlan.of(part, held)])
        if cost.reason is not None:
            raise MeasurementError(cost.reason)
        return cost.per_device

    def references_ms(self, rows: Ints) -> Floats:
        """Return the reference costs of tasks, each priced once, shape (n,); see `reference.py`.

        Raises:
            InputError: the cost model has no time for it.
        """
        tasks = self._placements.task[rows]
        missing = len(self._placements.catalog.tasks) - len(self._references)
        self._references = np.pad(self._references, (0, missing), constant_values=np.nan)
        unknown = np.unique(tasks[np.isnan(self._references[tasks])])
        if len(unknown):
            unknown_tasks = [self._placements.catalog.tasks[number] for number in unknown.tolist()]
            self._references[unknown] = references_ms(self._cost, self._additive(), unknown_tasks)
        return self._references[tasks]

    def _additive(self) -> AdditiveCosts | None:
        """Return the additive costs of the cost model; overridden where it has any."""
        return None

    def time_shares(self) -> Floats:
        """Return compute of all devices over the even share: now, and with the next shard; shape (N, D, 2).

        0 where there is no device. Only additive costs can say it: see `AdditiveScorer`.
        """
        raise NotImplementedError

    def save(self, row: int) -> Any:
        """Return the state that `load` needs to restore partial costs."""

    def load(self, row: int, saved: Any) -> None:
        """Restore the partial costs of a placement that has been restored."""

    def copy(self, row: int, rows: Ints) -> None:
        """Make partial costs of other episodes those of one, whose placement they have."""

    def _kept(self, placed: Placed) -> tuple[Shard, ...]:
        """Return the shards of a plan, and keep them for others."""
        shards = self._in_plans[placed] = placed.in_plan()
        return shards

    def _stand_in(self, task: ShardingTask, shard: int, start: int) -> EmbeddingTable:
        """Return a shard as a table: the task's own table where it has all columns."""
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
