"""Longest processing time first, with tables halved where whole ones do not fit or cannot be balanced."""

from __future__ import annotations

import contextlib

import numpy as np

from baselines.column_greedy import Pieces, halved, halves, merged, place_with_cuts, whole_tables
from baselines.lpt import LPTWhole
from shardgym.costs.base import CostModel
from shardgym.errors import NoFeasiblePlanError
from shardgym.feasibility import check_possible, exceeds_devices
from shardgym.plan import ShardingPlan
from shardgym.solver import check_solve_arguments
from shardgym.task import ShardingTask
from shardgym.ties import quantized


class LPT:
    """The longest shard first, each to the device with the smallest sum of times that has room; tables may be halved.

    As `lpt_whole`, with cuts by columns for two reasons. Where a shard fits nowhere, the one of most bytes is halved.
    And no plan of whole tables is balanced when one takes longer, alone, than an even share of all. Such tables are
    halved until no shard does. Both halves need all lookups, so this can cost more than it brings: where there are such
    tables, the oracle is asked for the plans with and without these cuts, and the cheaper one is returned. Tables that
    are larger than all devices together are placed as by `lpt_whole`, some in the memory of hosts.
    """

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return a plan of column shards; `seed` makes no difference, as nothing is drawn.

        Raises:
            NoFeasiblePlanError: shards fit nowhere however they are halved.
            InputError: an argument is of another kind, or `cost` cannot price tasks of this kind.
            MeasurementError: `cost` has no time for single shards.
        """
        check_solve_arguments(task, cost, seed)
        if cost.host_memory and exceeds_devices(task):
            return LPTWhole().solve(task, cost, seed)
        check_possible(task)
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
