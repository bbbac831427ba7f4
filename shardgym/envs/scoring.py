"""Costs of complete and of partial placements: many at once, in few calls of the cost model."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardgym.arguments import check_dict, describe
from shardgym.arrays import Floats, Ints
from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.plan_cost import PHASES, PlanCost
from shardgym.envs.placements import Placements
from shardgym.errors import InputError, MeasurementError
from shardgym.plan import ShardingPlan
from shardgym.shard import Shard
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask

#: Placed shards whose `Shard` objects are kept for later plans.
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
        """Drop everything that refers to numbers of the catalog, which has been cleared."""
        self._plan_shards: dict[tuple[int, int, int], Shard] = {}
        self._plan_parts: dict[tuple[int, int, int], tuple[Shard, ...]] = {}
        self._stand_ins: dict[tuple[int, int], EmbeddingTable] = {}
        self._even_shares: dict[int, float] = {}

    def start(self, rows: Ints) -> None:
        """Prepare partial costs of placements that have just been started; overridden where that takes work."""

    def place(self, rows: Ints, devices: Ints) -> None:
        """Update partial costs for the next shards, which are about to be placed on these devices."""

    def plans(self, rows: Ints) -> list[ShardingPlan]:
        """Return the plans of complete placements."""
        p = self._placements
        if len(self._plan_shards) + len(self._plan_parts) > _SHARDS_KEPT:
            self._plan_shards.clear()
            self._plan_parts.clear()
        columns = (array.tolist() for array in self._in_order(rows))
        return [
            self._plan(int(task), list(zip(*columns_of_plan, strict=True))[:count])
            for task, count, *columns_of_plan in zip(p.task[rows], p.placed[rows], *columns, strict=True)
        ]

    def _in_order(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the shards of complete placements, `NOTHING` behind the last, their first columns, and their devices.

        They are in the order of plans: by the table's name, then by columns. Each has shape (n, most shards).
        """
        p = self._placements
        shards, starts, devices = (array[rows, : p.placed[rows].max()] for array in (p.shards, p.starts, p.devices))
        # There are at most 2**16 columns.
        key = (p.catalog.shard["rank"][shards] << 17) + starts
        order = np.argsort(np.where(shards > 0, key, 2**62), axis=1)
        shards, starts, devices = (np.take_along_axis(array, order, 1) for array in (shards, starts, devices))
        return shards, starts, devices

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
        """Return the phases of every device for the placed shards, shape (D, 5), as `PlanCost.per_device`.

        The cost model scores a task that is made up for it, of the placed tables only. A shard of some columns becomes
        a table of that width, with the same holders.

        Raises:
            MeasurementError: the cost model cannot score it; the message says why.
        """
        p = self._placements
        task = p.catalog.tasks[p.task[row]]
        placed = slice(p.placed[row])
        shards = list(zip(*(array[row, placed].tolist() for array in (p.shards, p.starts, p.devices)), strict=True))
        if not shards:
            return np.zeros((task.num_devices, len(PHASES)))
        tables = tuple(self._stand_in(task, shard, start) for shard, start, _ in shards)
        part = dataclasses.replace(task, tables=tables, name="")
        held = [
            dataclasses.replace(piece, table=table.name, columns=(0, table.embedding_dim))
            for table, (shard, _, device) in zip(tables, shards, strict=True)
            for piece in p.catalog.placed(shard, 0, device)
        ]
        [cost] = self._cost.evaluate(part, [ShardingPlan.of(part, held)])
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

    def time_shares(self) -> Floats:
        """Return compute of all devices over the even share: now, and with the next shard; shape (N, D, 2).

        0 where there is no device. Only additive costs can say it: see `AdditiveScorer`.
        """
        raise NotImplementedError

    def save(self, row: int) -> Any:
        """Return the state that `load` needs to restore partial costs."""

    def load(self, row: int, saved: Any) -> None:
        """Restore the partial costs of a placement that has been restored."""

    def _plan(self, task: int, shards: list[tuple[int, int, int]]) -> ShardingPlan:
        """Return a plan without validation, which takes longer than a step: its shards are valid and sorted."""
        task_hash = self._placements.catalog.tasks[task].digest
        if self._placements.kinds is None:
            held = tuple(map(self._plan_shard, shards))
        else:
            # Column blocks that are cut by rows come in the order of rows.
            parts = itertools.chain.from_iterable(map(self._parts_of, shards))
            held = tuple(sorted(parts, key=operator.attrgetter("table", "rows", "columns")))
        return ShardingPlan.unchecked(task_hash=task_hash, shards=held)

    def _plan_shard(self, key: tuple[int, int, int]) -> Shard:
        shard = self._plan_shards.get(key)
        if shard is None:
            [shard] = self._placements.catalog.placed(*key)
            self._plan_shards[key] = shard
        return shard

    def _parts_of(self, key: tuple[int, int, int]) -> tuple[Shard, ...]:
        parts = self._plan_parts.get(key)
        if parts is None:
            parts = self._plan_parts[key] = self._placements.catalog.placed(*key)
        return parts

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


def even_share_ms(cost: CostModel, task: ShardingTask) -> float:
    """Return the time of all tables on one device over the number of devices.

    Raises:
        InputError: the cost model has no time for it.
    """
    roomy = dataclasses.replace(task, topology=task.topology.roomy())
    [on_one] = cost.evaluate(roomy, [ShardingPlan.table_wise(roomy, [0] * task.num_tables)])
    if on_one.reason is not None:
        raise InputError(f"task '{task.name}': there is no time of all tables on one device: {on_one.reason}")
    return on_one.total_ms / task.num_devices
