"""FlexShard: rows of every table in tiers by how likely they are."""

from __future__ import annotations

import itertools
import logging

import numpy as np

from baselines.flexshard.cuts import Choices, best_tiers, choices_of, expected_ms
from shardgym.arguments import check_int
from shardgym.costs.base import CostModel
from shardgym.costs.ties import quantized
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.evaluation.solver import check_solve_arguments
from shardgym.plans.feasibility import check_possible, plan_problems
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.row_tiers import STRIPES, Tiers, tier_plan
from shardgym.plans.shard import Shard
from shardgym.tables.row_access import position_matters
from shardgym.tables.table import EmbeddingTable, RangeIds, RecordedIds, ZipfIds
from shardgym.tasks.task import ShardingTask

#: Shares of links inside of nodes in the time of an all-to-all that are tried, see `best_tiers`.
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
#: Of the memory, what is tried where rounding leaves a device with too much.
_BUDGETS = (1.0, 0.99, 0.97, 0.9)

_logger = logging.getLogger("shardgym.solvers.flexshard")


class FlexShard:
    """Hot rows on every device, warm ones on one device of each node, cold ones on one device of all.

    FlexShard (Sethi et al., arXiv 2301.02959) is for unpooled tables, of which a row travels for every id: rows are
    replicated by how likely they are, within memory, with nodes in mind. Its abstract says so much. How cut points are
    chosen and pieces are placed is ours:

    1. Every table has pairs of cut points, spaced by the logarithm of their rows. Expected times follow from the
       probability of the rows (`shardgym.tables.row_access`), the links of the topology, and dense gradients of copies.
    2. A price of memory, the same for all tables, is lowered by bisection until copies fill the memory: see
       `best_tiers`. The slower of links inside and between nodes counts, so this is done for five weights of the two.
    3. Tiers are cut into stripes, and these over devices, so that all are asked for about as much: see `tier_plan`.
    4. The oracle chooses among the five plans, and the one without copies, if it prices tiers as `replay` does;
       otherwise the expected times do.

    Where even cuts do not fit, as with devices of unlike memory, rows are cut in proportion to memory, without copies.

    Rows have to be in order of frequency (`ZipfIds.row_order="by_frequency"`, or `RangeIds` with falling shares). Where
    nobody knows the order, all rows of a table count as equally likely. Of pooled tables a tier has all rows or none,
    as partial sums are as wide for few rows as for many. A task in which no table gains from tiers is logged.

    Args:
        extra_memory: share by which a device may take more than it takes where each table is cut evenly by rows over
            all devices, which no plan is below on average. None lets copies fill the task's memory.
        stripes: into which a tier is cut.

    Raises:
        InputError: a share that is no number from 0 on, or a number of stripes that is not whole and positive.
    """

    def __init__(self, extra_memory: float | None = None, stripes: int = STRIPES) -> None:
        is_number = isinstance(extra_memory, int | float) and not isinstance(extra_memory, bool)
        if extra_memory is not None and not (is_number and 0 <= extra_memory < float("inf")):
            raise InputError(f"extra_memory: expected a share from 0 on, or None, got {extra_memory!r:.40}")
        self.extra_memory = extra_memory
        self.stripes = check_int("stripes", stripes, 1)

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return the best plan in tiers; `seed` makes no difference, as nothing is drawn.

        Raises:
            NoFeasiblePlanError: tables cut by rows over all devices do not fit, in proportion to memory neither.
            InputError: an argument is of another kind, or popular rows of a table lie anywhere.
        """
        check_solve_arguments(task, cost, seed)
        check_possible(task)
        for table in task.tables:
            check_order(table)
        if not any(not table.is_pooled and position_matters(table) for table in task.tables):
            pooled = sum(table.is_pooled for table in task.tables)
            _logger.info(
                "flexshard: no table gains from tiers, which are for unpooled tables with rows in order of frequency "
                "(row_order='by_frequency' says so): %d of %d tables are pooled",
                pooled, task.num_tables,
            )  # fmt: skip
        choices = [choices_of(task, table) for table in task.tables]
        plans: dict[tuple[Tiers, ...], ShardingPlan] = {}
        for share in _SHARES:
            self._add_plan(plans, task, choices, share)
        without_copies = tuple(Tiers(0, 0) for _ in task.tables)
        if without_copies not in plans:
            plan = tier_plan(task, without_copies, self.stripes)
            if not plan_problems(task, plan.shards):
                plans[without_copies] = plan
        if not plans:
            plan = rows_by_memory(task)
            problems = plan_problems(task, plan.shards)
            if problems:
                raise NoFeasiblePlanError(f"cut by rows over all devices: {problems[0]}")
            return plan
        if cost.row_tiers:
            answers = cost.evaluate(task, list(plans.values()))
            times = [float(quantized(answer.total_ms)) for answer in answers]
        else:
            times = [expected_ms(task, choices, tiers) for tiers in plans]
        return min(zip(times, itertools.count(), plans.values(), strict=False))[2]

    def _add_plan(
        self, plans: dict[tuple[Tiers, ...], ShardingPlan], task: ShardingTask, choices: list[Choices], share: float
    ) -> None:
        """Add the plan for one weight of the links, with as many copies as fit."""
        budget = task.total_capacity_bytes / task.num_devices
        if self.extra_memory is not None:
            least = sum(float(of_table.num_bytes.min()) for of_table in choices)
            budget = min(budget, (1 + self.extra_memory) * least)
        for part in _BUDGETS:
            tiers = best_tiers(choices, part * budget, share)
            if tiers is None or tuple(tiers) in plans:
                return
            plan = tier_plan(task, tiers, self.stripes)
            if not plan_problems(task, plan.shards):
                plans[tuple(tiers)] = plan
                return


def rows_by_memory(task: ShardingTask) -> ShardingPlan:
    """Return a plan that cuts every table by rows, as many for a device as it has memory."""
    ends = np.cumsum(np.array(task.capacity_bytes, dtype=np.float64))
    shards = []
    for table in task.tables:
        edges = [0, *np.rint(table.num_embeddings * ends / ends[-1]).astype(np.int64).tolist()]
        shards += [
            Shard(table.name, rows, (0, table.embedding_dim), (device,))
            for device, rows in enumerate(itertools.pairwise(edges))
            if rows[0] < rows[1]
        ]
    return ShardingPlan.of(task, shards)


def check_order(table: EmbeddingTable) -> None:
    """Refuse a table whose popular rows are known to lie elsewhere than at its beginning.

    Raises:
        InputError: they are scattered, in blocks, or in ranges of rows whose shares rise.
    """
    ids = table.ids
    shares: tuple[float, ...] = ()
    if isinstance(ids, ZipfIds):
        ordered = ids.s == 0 or ids.row_order in (None, "by_frequency")
    else:
        if isinstance(ids, RangeIds | RecordedIds):
            shares = ids.shares if isinstance(ids, RangeIds) else ids.range_shares or ()
        ordered = all(share >= after for share, after in itertools.pairwise(shares))
    if not ordered:
        raise InputError(
            f"table '{table.name}': its popular rows are not its first ones, and tiers are cut by rows in order of "
            "frequency: remap its rows, and say so with row_order='by_frequency'"
        )
