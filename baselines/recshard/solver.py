"""RecShard: rows of tables by frequency into the memory of devices and hosts."""

from __future__ import annotations

import contextlib
import math

from baselines.queries import IncumbentSearch, SearchRun
from baselines.recshard.program import assign
from baselines.recshard.search import Search
from neuroshard.row_splits import splits_of
from shardgym.arguments import check_instance, check_int
from shardgym.costs.base import CostModel
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.evaluation.incumbent import OutOfTime
from shardgym.plans.feasibility import ROOM_ADVICE, check_possible
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ShardingTask


class RecShard(IncumbentSearch):
    """Puts each table on one device, and of each the popular rows into its memory, the others into the host's.

    Of the paper (Sethi et al., "RecShard: Statistical Feature-Based Memory Optimization for Industry-Scale Neural
    Recommendation", ASPLOS 2022), of which its abstract is known here and no code: rows are split by their frequencies
    over memory tiers, with the bandwidth of each, by one mixed-integer program over all tables and devices, so that the
    slowest device is fastest. The rest is ours:

    - What a split takes, the oracle says; not bytes over bandwidth. Each table has some 30 splits, of which those are
      kept that save the most time per byte (`neuroshard/row_splits.py`).
    - The program mixes splits freely (`program.py`). On each device, memory then goes to where it saves the most time.
    - Tables are moved and swapped between devices as long as that makes the plan cheaper.
    - Where rows are ordered by frequency, a table is cut: popular rows have kernel `fused`, the others `fused_uvm`.
      Elsewhere the paper remaps rows; here the table has kernel `fused_uvm_caching`, with a cache of as many rows.

    With an oracle that prices no memory of hosts, or where there is none, all rows are in the memory of devices. The
    paper's third tier, SSDs, is left out.

    Example:
        >>> plan = RecShard(row_cuts=False).solve(task, make_cost("gpu"))  # doctest: +SKIP

    Args:
        row_cuts: whether tables may be cut by rows. TorchRec has one kernel for each table: without cuts, plans can be
            exported to it.
        gap: relative gap at which the program may end.
        nodes: of its search tree at most, so that plans do not depend on the machine's speed.

    Raises:
        InputError: a setting is out of range or of another type.
    """

    def __init__(self, *, row_cuts: bool = True, gap: float = 0.02, nodes: int = 200) -> None:
        check_instance("row_cuts", row_cuts, bool)
        if not 0 <= gap < math.inf:
            raise InputError(f"gap must be a number from 0 on, got {gap!r}")
        self.row_cuts = row_cuts
        self.gap = gap
        self.nodes = check_int("nodes", nodes, 1)

    def check_ready(self, cost: CostModel) -> None:
        """Raise `InputError` where the cost does not add up over shards."""
        if cost.additive() is None:
            raise InputError(
                f"recshard needs a cost that adds up over shards, and '{cost.name}' does not: plan with 'gpu' or "
                "'roofline', which price the memory of hosts, and score the plan with it"
            )

    def check_task(self, task: ShardingTask, cost: CostModel) -> None:
        """See `IncumbentSearch`; rows may be in the memory of hosts."""
        check_possible(task, in_host=_in_host(task, cost))

    def search(self, run: SearchRun, start: ShardingPlan | None) -> None:
        """See `IncumbentSearch`; nothing is drawn."""
        del start
        task, budget, costs = run.task, run.budget, run.cost.additive()
        assert costs is not None
        splits = splits_of(task, costs, in_host=_in_host(task, run.cost), row_cuts=self.row_cuts)
        search = Search(task, costs, splits, run.incumbent)
        search.offer(search.greedy())
        limit_s = budget.left_s if budget.limited else math.inf
        if limit_s > 0:
            search.offer(
                assign(task, search.splits, search.column_ms, gap=self.gap, nodes=self.nodes, time_limit_s=limit_s)
            )
        with contextlib.suppress(OutOfTime):
            search.improve(budget)
        if run.incumbent.cost_ms == math.inf:
            raise NoFeasiblePlanError(
                "recshard found no plan: whole tables on single devices, their rows in the memory of the device or "
                f"of the host, do not fit; {ROOM_ADVICE}, or a solver that cuts columns"
            )


def _in_host(task: ShardingTask, cost: CostModel) -> bool:
    return cost.host_memory and task.topology.host_memory_bytes > 0
