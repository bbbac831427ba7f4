"""Longest processing time first with cuts: the costliest shards are halved as long as the oracle says that it helps."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from baselines.greedy import place_greedily
from baselines.lpt import alone_ms
from shardgym.arguments import check_int
from shardgym.costs.base import CostModel
from shardgym.errors import NoFeasiblePlanError
from shardgym.evaluation.incumbent import Budget, Incumbent, OutOfTime
from shardgym.evaluation.solver import Observer, check_solve_arguments
from shardgym.plans.feasibility import check_possible
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import COLUMN_UNIT, Shard
from shardgym.tasks.task import ShardingTask


class ColumnGreedy:
    """Halve the costliest shards by columns while that helps, placing everything anew by `lpt_whole` after every cut.

    Every round halves one shard, places all by longest processing time first, and asks the oracle. A cut that does not
    make the plan cheaper is taken back, and its shard stays as it is. Pieces of one table on one device become one
    shard. Where shards do not fit into memory, the largest are halved first. The costliest shard is the one with the
    longest compute alone on a device. NeuroShard tries such cuts in a beam search (Zha et al., MLSys 2023, section 3).

    Args:
        patience: vain cuts in succession after which the search ends.

    Raises:
        InputError: `patience` is not a whole number from 1 on.
    """

    def __init__(self, patience: int = 8) -> None:
        self.patience = check_int("patience", patience, 1)

    def solve(
        self,
        task: ShardingTask,
        cost: CostModel,
        seed: int = 0,
        *,
        time_limit_s: float | None = None,
        observer: Observer | None = None,
    ) -> ShardingPlan:
        """Return the best plan found; `seed` makes no difference, as nothing is drawn.

        Raises:
            NoFeasiblePlanError: shards fit nowhere however they are halved.
            InputError: an argument is of another kind, or `cost` cannot price tasks of this kind.
            MeasurementError: `cost` has no time for single shards.
        """
        check_solve_arguments(task, cost, seed, time_limit_s=time_limit_s)
        check_possible(task)
        budget = Budget(time_limit_s)
        incumbent = Incumbent(task, cost, observer)
        pieces, plan = place_with_cuts(task, cost, whole_tables(task, cost))
        incumbent.offer(merged(task, plan))
        in_vain = 0
        with contextlib.suppress(OutOfTime):
            while in_vain < self.patience:
                budget.check()
                able = [n for n, shard in enumerate(pieces.shards) if shard.num_columns >= 2 * COLUMN_UNIT]
                if not able:
                    break
                pieces = halved(task, cost, pieces, max(able, key=lambda n: pieces.alone_ms[n]))
                best_ms = incumbent.cost_ms
                with contextlib.suppress(NoFeasiblePlanError):
                    incumbent.offer(merged(task, place_greedily(task, pieces.alone_ms, pieces.shards)))
                in_vain = 0 if incumbent.cost_ms < best_ms else in_vain + 1
        return incumbent.plan()


class Pieces(NamedTuple):
    """What tables are cut into."""

    shards: list[Shard]  #: that hold every cell of every table once; their devices do not matter
    alone_ms: list[float]  #: compute of each alone on a device
    #: That of all pieces so far, by table and number of columns, so that none is asked for twice.
    priced: dict[tuple[str, int], float]


def whole_tables(task: ShardingTask, cost: CostModel) -> Pieces:
    """Return the uncut tables of a task and what each takes alone, in one query."""
    shards = [Shard.whole(table, 0) for table in task.tables]
    return Pieces(shards, alone_ms(task, cost, shards).tolist(), {})


def place_with_cuts(task: ShardingTask, cost: CostModel, pieces: Pieces) -> tuple[Pieces, ShardingPlan]:
    """Place pieces, the longest first; where one fits nowhere, halve that of most bytes and place all anew.

    Where nothing is left to be halved, memory decides instead of time: the same once more with the largest first, each
    on the device with the fewest bytes, and all of the largest are halved at once.

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
    """Return pieces with one of them halved, and both halves priced."""
    parts = halves(pieces.shards[position])
    shards = [*pieces.shards[:position], *parts, *pieces.shards[position + 1 :]]
    keys = [(part.table, part.num_columns) for part in parts]
    if any(key not in pieces.priced for key in keys):
        pieces.priced.update(zip(keys, alone_ms(task, cost, parts).tolist(), strict=True))
    parts_ms = [pieces.priced[key] for key in keys]
    return Pieces(shards, [*pieces.alone_ms[:position], *parts_ms, *pieces.alone_ms[position + 1 :]], pieces.priced)


def halves(shard: Shard) -> tuple[Shard, ...]:
    """Return the left and the right half of a shard's columns, the left one narrower if need be; () if too narrow."""
    units = shard.num_columns // COLUMN_UNIT
    if units < 2:
        return ()
    first, last = shard.columns
    middle = first + units // 2 * COLUMN_UNIT
    return (
        shard.with_columns(first, middle),
        shard.with_columns(middle, last),
    )


def merged(task: ShardingTask, plan: ShardingPlan) -> ShardingPlan:
    """Return a plan in which every device holds at most one shard of a table that is cut by columns.

    Columns are handed out anew from the left, to the lowest device first. Tables that are cut by rows or
    replicated stay as they are.
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
