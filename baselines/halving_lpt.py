"""Longest processing time first, with tables cut where whole ones do not fit or cannot be balanced."""

from __future__ import annotations

import contextlib

import numpy as np

from baselines.column_greedy import Pieces, halved, halves, merged, place_with_cuts, whole_tables
from baselines.lpt import LPTWhole
from neuroshard.plus.sharing import even_rows, takes_rows
from shardgym.costs.base import CostModel
from shardgym.costs.ties import quantized
from shardgym.errors import NoFeasiblePlanError
from shardgym.evaluation.solver import check_solve_arguments
from shardgym.plans.feasibility import check_possible, exceeds_devices
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import COLUMN_UNIT, Shard
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask


class LPT:
    """The longest shard first, each to the device with the smallest sum of times that has room; tables may be halved.

    As `lpt_whole`, with cuts by columns for two reasons. Where a shard fits nowhere, the one of most bytes is halved.
    And no plan of whole tables is balanced when one takes longer, alone, than an even share of all. Such tables are
    halved until no shard does. Both halves need all lookups, so this can cost more than it brings: where there are such
    tables, the oracle is asked for the plans with and without these cuts, and the cheaper one is returned. Where shards
    fit nowhere however they are halved, the largest go first instead of the longest, see `place_with_cuts`.

    A table of which no device holds even the narrowest piece of columns is cut evenly by rows over all devices, and the
    others have what room is left. Tables that are larger than all devices together are placed as by `lpt_whole`, some
    in the memory of hosts.
    """

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return a plan; `seed` makes no difference, as nothing is drawn.

        Raises:
            NoFeasiblePlanError: shards fit nowhere however they are cut.
            InputError: an argument is of another kind, or `cost` cannot price tasks of this kind.
            MeasurementError: `cost` has no time for single shards.
        """
        check_solve_arguments(task, cost, seed)
        if cost.host_memory and exceeds_devices(task):
            return LPTWhole().solve(task, cost, seed)
        check_possible(task)
        by_rows = [table for table in task.tables if takes_rows(table, task.num_devices) and not fits(task, table)]
        if not by_rows:
            return halved_plan(task, cost)
        pieces = [piece for table in by_rows for piece in even_rows(table, task.num_devices)]
        room = list(task.capacity_bytes)
        for piece in pieces:
            room[piece.devices[0]] -= piece.bytes(task)
        if min(room) < 0:
            names = ", ".join(table.name for table in by_rows)
            raise NoFeasiblePlanError(f"no plan: cut evenly by rows over all devices, {names} leave too little room")
        others = [table for table in task.tables if table not in by_rows]
        if not others:
            return ShardingPlan.of(task, pieces)
        return ShardingPlan.of(task, [*pieces, *halved_plan(task.part(room, others), cost).shards])


def fits(task: ShardingTask, table: EmbeddingTable) -> bool:
    """Say whether some device holds the narrowest piece of a table's columns."""
    piece = Shard.whole(table, 0).with_columns(0, min(COLUMN_UNIT, table.embedding_dim))
    return piece.bytes(task) <= max(task.capacity_bytes)


def halved_plan(task: ShardingTask, cost: CostModel) -> ShardingPlan:
    """Return the plan of column shards that `LPT` describes.

    Raises:
        NoFeasiblePlanError: shards fit nowhere however they are halved.
    """
    whole = whole_tables(task, cost)
    balanced = balanced_pieces(task, cost, whole)
    try:
        plans = [merged(task, place_with_cuts(task, cost, whole)[1])]
    except NoFeasiblePlanError:
        return merged(task, place_with_cuts(task, cost, balanced)[1])
    if balanced is whole:
        return plans[0]
    with contextlib.suppress(NoFeasiblePlanError):
        plans.append(merged(task, place_with_cuts(task, cost, balanced)[1]))
    total_ms = quantized(np.array([answer.total_ms for answer in cost.evaluate(task, plans)]))
    return plans[int(total_ms.argmin())]


def balanced_pieces(task: ShardingTask, cost: CostModel, pieces: Pieces) -> Pieces:
    """Return pieces none of which takes longer, alone, than an even share of those given; the same where none did.

    A piece that is too narrow to be halved stays as it is.
    """
    share = sum(pieces.alone_ms) / task.num_devices
    while True:
        able = [n for n, ms in enumerate(pieces.alone_ms) if ms > share and halves(pieces.shards[n])]
        if not able:
            return pieces
        pieces = halved(task, cost, pieces, max(able, key=lambda n: pieces.alone_ms[n]))
