"""Tables cut evenly by rows over all devices where that pays, the others by NeuroShardPlus."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from neuroshard.plus.solver import NeuroShardPlus
from shardgym.arguments import check_int
from shardgym.costs.base import CostModel
from shardgym.costs.shard_keys import ShardKey
from shardgym.errors import NO_PLAN
from shardgym.plan import Shard, ShardingPlan, check_possible
from shardgym.solver import check_solve_arguments
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask
from shardgym.ties import quantized

#: How often the numbers of tables between the best and its neighbours are tried.
_REFINEMENTS = 3


class RowWise:
    """Cut some tables evenly by rows over all devices, and place the others with `neuroshard_plus`.

    A piece of such a table looks up its share of the ids and sends partial sums of the whole width. So cutting by rows
    pays where a table has many ids per sample: ids are read once, whereas pieces of columns read all of them each. All
    devices get the same from it, so what the others leave balanced stays so. TorchRec's `row_wise` sharding is this.
    Mean-pooled tables are left to `neuroshard_plus`.

    Tables are taken in the order of what they compute whole over what all their pieces compute, best first. How many
    are taken is tried: none, 1, 2, 4, ..., all, then numbers next to the best. While numbers are tried, the others are
    placed without kicks; at last the best number and none are searched thoroughly. The plan never costs more than that
    of `neuroshard_plus` with the same seed. Costs that do not add up (`CostModel.additive`) have no prices of pieces:
    then the plan is that of `neuroshard_plus`.

    Args:
        kicks: of `neuroshard_plus`.

    Raises:
        InputError: `kicks` is no whole number.
    """

    def __init__(self, kicks: int | None = None) -> None:
        self.kicks = None if kicks is None else check_int("kicks", kicks)

    def warm_up(self, task: ShardingTask, cost: CostModel) -> None:
        """Compile the search of `neuroshard_plus`."""
        NeuroShardPlus(self.kicks).warm_up(task, cost)

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return the best plan found.

        Raises:
            NoFeasiblePlanError: no packing was found, with cuts by rows or without.
            InputError: as `neuroshard_plus`.
            MeasurementError: as `neuroshard_plus`.
        """
        check_solve_arguments(task, cost, seed)
        check_possible(task)
        order = by_gain(task, cost)
        if not order:
            return NeuroShardPlus(self.kicks).solve(task, cost, seed)
        found: dict[int, float] = {}

        def price(count: int) -> None:
            plan = self._plan(task, cost, seed, order[:count], kicks=0)
            found[count] = math.inf if plan is None else float(quantized(cost.evaluate(task, [plan])[0].total_ms))

        for count in {0, *(2**n for n in range(len(order).bit_length())), len(order)}:
            price(count)
        for _ in range(_REFINEMENTS):
            best = min(found, key=lambda count: (found[count], count))
            counts = sorted(found)
            place = counts.index(best)
            between = {(best + other) // 2 for other in counts[max(place - 1, 0) : place + 2]} - found.keys()
            for count in sorted(between):
                price(count)
        best = min(found, key=lambda count: (found[count], count))
        plans = [self._plan(task, cost, seed, order[:count], kicks=self.kicks) for count in sorted({best, 0})]
        feasible = [plan for plan in plans if plan is not None]
        if not feasible:
            return NeuroShardPlus(self.kicks).solve(task, cost, seed)  # says why there is none
        totals = quantized(np.array([answer.total_ms for answer in cost.evaluate(task, feasible)]))
        return feasible[int(totals.argmin())]

    def _plan(
        self, task: ShardingTask, cost: CostModel, seed: int, by_rows: Sequence[EmbeddingTable], *, kicks: int | None
    ) -> ShardingPlan | None:
        """Return a plan that cuts these tables by rows; None where they or the others do not fit."""
        shards = [shard for table in by_rows for shard in even_rows(table, task.num_devices)]
        room = list(task.capacity_bytes)
        for shard in shards:
            room[shard.devices[0]] -= shard.bytes(task)
        names = {table.name for table in by_rows}
        others = tuple(table for table in task.tables if table.name not in names)
        if min(room) < (1 if others else 0):
            return None
        if others:
            rest = task.part(room, others)
            try:
                shards += NeuroShardPlus(kicks).solve(rest, cost, seed).shards
            except NO_PLAN:
                return None
        return ShardingPlan.of(task, shards)


def by_gain(task: ShardingTask, cost: CostModel) -> list[EmbeddingTable]:
    """Return the sum-pooled tables that can be cut evenly by rows, those first whose compute grows least by it.

    Empty where the cost does not add up, or there is one device only.
    """
    devices = task.num_devices
    costs = cost.additive()
    able = [table for table in task.tables if takes_rows(table, devices)]
    if costs is None or not able:
        return []
    pieces = [ShardKey(table.name, even_rows(table, devices)[0].num_rows, table.embedding_dim) for table in able]
    whole = [ShardKey(table.name, table.num_embeddings, table.embedding_dim) for table in able]
    alone_ms = costs.compute_ms(costs.vectors(costs.encode_keys(task, [*whole, *pieces]))).sum(axis=-1)
    whole_ms, piece_ms = alone_ms.reshape(2, -1)
    return [able[n] for n in np.argsort(devices * piece_ms / np.maximum(whole_ms, 1e-12), kind="stable")]


def takes_rows(table: EmbeddingTable, devices: int) -> bool:
    """Say whether a table is sum-pooled and can be cut evenly by rows over so many devices, two or more."""
    # TorchRec divides mean-pooled tables that are cut by rows by the wrong bag sizes.
    return table.pooling == "sum" and devices > 1 and len(even_rows(table, devices)) == devices


def even_rows(table: EmbeddingTable, devices: int, first: int = 0) -> list[Shard]:
    """Return a table cut into pieces of ceil(rows / devices) rows, the last one smaller, as TorchRec needs them.

    Args:
        table: to be cut.
        devices: their number; they are consecutive.
        first: of these devices.
    """
    block = -(-table.num_embeddings // devices)
    starts = range(0, table.num_embeddings, block)
    columns = (0, table.embedding_dim)
    return [
        Shard(table.name, (start, min(start + block, table.num_embeddings)), columns, (device,))
        for device, start in enumerate(starts, first)
    ]
