"""Longest processing time first, with cuts by columns for memory or balance."""

import contextlib
from typing import NamedTuple

import numpy as np

from baselines.greedy import LPTWhole, alone_ms, place_greedily
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


class Pieces(NamedTuple):
    """Shards of tables, with their times alone on a device."""

    shards: list[Shard]  #: shards that hold every cell of every table once; their devices do not matter
    alone_ms: list[float]  #: compute of each alone on a device
    #: Compute of all pieces so far, by table and number of columns, so that none is priced twice.
    priced: dict[tuple[str, int], float]


def whole_tables(task: ShardingTask, cost: CostModel) -> Pieces:
    """Return the uncut tables of a task and their times alone on a device, in one query."""
    shards = [Shard.whole(table, 0) for table in task.tables]
    return Pieces(shards, alone_ms(task, cost, shards).tolist(), {})


def place_with_cuts(task: ShardingTask, cost: CostModel, pieces: Pieces) -> tuple[Pieces, ShardingPlan]:
    """Place pieces, the longest first; if one fits nowhere, halve the piece with most bytes and start again.

    If no piece can be halved any more, start once more with the largest piece first, each on the device with the fewest
    bytes, and halve all of the largest at once.

    Raises:
        NoFeasiblePlanError: shards fit nowhere however they are halved.
        MeasurementError: `cost` has no time for single shards.
    """
    given = pieces
    by_bytes = False
    while True:
        sizes = [shard.bytes(task) for shard in pieces.shards]
        try:
            return pieces, place_greedily(task, sizes if by_bytes else pieces.alone_ms, pieces.shards)
        except NoFeasiblePlanError:
            able = [n for n, shard in enumerate(pieces.shards) if shard.num_columns >= 2 * COLUMN_UNIT]
            if not able and by_bytes:
                raise
        if not able:
            pieces = given
            by_bytes = True
        elif by_bytes:
            largest = max(sizes[n] for n in able)
            for n in reversed([n for n in able if sizes[n] == largest]):
                pieces = halved(task, cost, pieces, n)
        else:
            pieces = halved(task, cost, pieces, max(able, key=lambda n: sizes[n]))


def halved(task: ShardingTask, cost: CostModel, pieces: Pieces, position: int) -> Pieces:
    """Halve one of the pieces and price both halves."""
    parts = halves(pieces.shards[position])
    shards = [*pieces.shards[:position], *parts, *pieces.shards[position + 1 :]]
    keys = [(part.table, part.num_columns) for part in parts]
    if any(key not in pieces.priced for key in keys):
        pieces.priced.update(zip(keys, alone_ms(task, cost, parts).tolist(), strict=True))
    parts_ms = [pieces.priced[key] for key in keys]
    return Pieces(shards, [*pieces.alone_ms[:position], *parts_ms, *pieces.alone_ms[position + 1 :]], pieces.priced)


def halves(shard: Shard) -> tuple[Shard, ...]:
    """Return the halves of a shard by columns, the left one not wider than the right; () if it is too narrow."""
    units = shard.num_columns // COLUMN_UNIT
    if units < 2:
        return ()
    first, last = shard.columns
    middle = first + units // 2 * COLUMN_UNIT
    return shard.with_columns(first, middle), shard.with_columns(middle, last)


def merged(task: ShardingTask, plan: ShardingPlan) -> ShardingPlan:
    """Merge the column shards of a table on each device into one, assigning columns from the left by device number.

    Tables that are cut by rows or replicated do not change.
    """
    shards = []
    columns: dict[tuple[str, int], int] = {}
    for shard in plan.shards:
        if shard.num_rows < task.table(shard.table).num_embeddings or len(shard.devices) > 1:
            shards.append(shard)
        else:
            place = shard.table, shard.devices[0]
            columns[place] = columns.get(place, 0) + shard.num_columns
    next_column = dict.fromkeys((table for table, _ in columns), 0)
    for table, device in sorted(columns):
        first = next_column[table]
        next_column[table] = first + columns[table, device]
        shards.append(Shard.whole(task.table(table), device).with_columns(first, next_column[table]))
    return ShardingPlan.of(task, shards)


class LPT:
    """The longest shard first, each to the device with the smallest sum of times that has room; tables may be halved.

    This is `lpt_whole` with cuts by columns for two reasons. If a shard fits nowhere, the largest shard is halved; see
    `place_with_cuts`. And tables that take longer alone than an even share of all, which no plan of whole tables
    can balance, are halved until no shard does. Because both halves need all lookups, this may not pay: the oracle
    prices the plans with and without these cuts, and the cheaper one is returned.

    A table whose narrowest piece of columns fits on no device is cut evenly by rows over all devices, and the others
    get the remaining room. Tables that exceed the memory of all devices are placed by `lpt_whole`, some on hosts.
    """

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return a plan, see `Solver`; `seed` is ignored."""
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
            raise NoFeasiblePlanError(f"no plan fits: {names}, cut evenly by rows over all devices, overfill them")
        others = [table for table in task.tables if table not in by_rows]
        if not others:
            return ShardingPlan.of(task, pieces)
        return ShardingPlan.of(task, [*pieces, *halved_plan(task.part(room, others), cost).shards])


def fits(task: ShardingTask, table: EmbeddingTable) -> bool:
    """Say whether some device holds the narrowest piece of a table's columns."""
    piece = Shard.whole(table, 0).with_columns(0, min(COLUMN_UNIT, table.embedding_dim))
    return piece.bytes(task) <= max(task.capacity_bytes)


def halved_plan(task: ShardingTask, cost: CostModel) -> ShardingPlan:
    """Return the plan of column shards as described in `LPT`."""
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
    """Halve pieces until none takes longer alone than an even share of those given, or is too narrow to be halved."""
    share = sum(pieces.alone_ms) / task.num_devices
    while True:
        able = [n for n, ms in enumerate(pieces.alone_ms) if ms > share and halves(pieces.shards[n])]
        if not able:
            return pieces
        pieces = halved(task, cost, pieces, max(able, key=lambda n: pieces.alone_ms[n]))
