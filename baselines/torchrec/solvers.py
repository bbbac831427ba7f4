"""TorchRec's planner as solvers: with its defaults, with a perf-sorted partitioner, and the best of several widths."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Literal, get_args

from shardgym.costs.base import CostModel
from shardgym.costs.mixed_tables import check_alike
from shardgym.costs.torchrec_rating import TorchRecRatingCost
from shardgym.errors import InputError, NoFeasiblePlanError, short_repr
from shardgym.evaluation.solver import Budget, check_solve_arguments
from shardgym.plans.feasibility import check_possible
from shardgym.plans.plan import Kind, ShardingPlan
from shardgym.tasks.task import ShardingTask

#: Orders in which TorchRec's partitioner places tables.
SortBy = Literal["storage", "perf"]
#: The planner takes no time limit of 0, and needs one proposal for a plan.
_LEAST_S = 0.05
#: Least widths of a piece that `TorchRecColumns` tries.
_WIDTHS = (16, 32, 64, 128)


class TorchRec:
    """TorchRec's `EmbeddingShardingPlanner` (1.8.0) with its defaults.

    The planner uses its own rating and queries no other cost. Recorded times exclude the import of TorchRec, some
    seconds. `plan_with_torchrec` lists the settings that differ from TorchRec's defaults.

    Args:
        sharding_types: types to choose from, by TorchRec's names, in this order; TorchRec's default, all but
            "grid_shard", when None. The simulator prices no replicas: `["table_wise", "column_wise"]` has none.

    Raises:
        InputError: a setting is of another type or value.
    """

    sort_by: ClassVar[SortBy] = "storage"  #: order in which the partitioner places tables, largest first

    def __init__(self, *, sharding_types: Sequence[str] | None = None) -> None:
        self.sharding_types = sharding_types
        if sharding_types is not None:
            self.sharding_types = tuple(sharding_types)
            for name in self.sharding_types or [None]:
                if name not in get_args(Kind) or name == "tiers":
                    known = ", ".join(kind for kind in get_args(Kind) if kind != "tiers")
                    raise InputError(f"sharding_types: expected some of {known}, got {short_repr(name)}")

    def check_ready(self, cost: CostModel) -> None:  # noqa: ARG002
        """Raise `MissingDependencyError` unless TorchRec is installed."""
        import shardgym.torchrec  # noqa: F401

    def warm_up(self, task: ShardingTask, cost: CostModel) -> None:
        """Import TorchRec, and run its planner on one table."""
        self.solve(dataclasses.replace(task, topology=task.topology.roomy()), cost)

    def solve(
        self, task: ShardingTask, cost: CostModel, seed: int = 0, *, time_limit_s: float | None = None
    ) -> ShardingPlan:
        """Return TorchRec's best plan within the time limit, see `Solver`; `seed` is ignored."""
        check_solve_arguments(task, cost, seed, time_limit_s=time_limit_s)
        check_possible(task)
        return self._plan(task, Budget(time_limit_s))

    def _plan(self, task: ShardingTask, budget: Budget) -> ShardingPlan:
        return self._ask(task, self.sort_by, None, budget.left_s)

    def _ask(self, task: ShardingTask, sort_by: str, min_partition: int | None, left_s: float) -> ShardingPlan:
        import shardgym.torchrec  # noqa: F401 - says what to install
        from baselines.torchrec.planner import plan_with_torchrec

        return plan_with_torchrec(
            task,
            sort_by=sort_by,
            min_partition=min_partition,
            sharding_types=self.sharding_types,
            timeout_s=None if left_s == math.inf else max(left_s, _LEAST_S),
        )


class TorchRecPerf(TorchRec):
    """TorchRec's planner with a partitioner that places the slowest tables first, `GreedyPerfPartitioner(SortBy.PERF)`.

    Args:
        sharding_types: see `TorchRec`.
    """

    sort_by: ClassVar[SortBy] = "perf"


class TorchRecColumns(TorchRec):
    """The best by TorchRec's rating of its plans with minimum widths of 16, 32, 64 and 128.

    This shows what tuning the planner's settings can reach. The partitioner orders by perf, or by storage if that finds
    no plan. All pieces of one table still have the same width.

    The cost `torchrec_rating` chooses among the plans, so the solver refuses the tasks that this cost refuses: those
    with several precisions, with per-table optimisers or features, or with weighted ids.

    Args:
        sharding_types: see `TorchRec`.
    """

    def _plan(self, task: ShardingTask, budget: Budget) -> ShardingPlan:
        check_alike(task, "solver 'torchrec_columns'", "use solver 'torchrec' or 'torchrec_perf'")
        plans: list[ShardingPlan] = []
        refused: list[NoFeasiblePlanError] = []
        for sort_by in ("perf", "storage"):
            for n, width in enumerate(_WIDTHS):
                try:
                    # Each width gets the same share of the time, and what others leave.
                    plans.append(self._ask(task, sort_by, width, budget.left_s / (len(_WIDTHS) - n)))
                except NoFeasiblePlanError as error:
                    refused.append(error)
            if plans:
                ratings = [cost.total_ms for cost in TorchRecRatingCost().evaluate(task, plans)]
                return plans[ratings.index(min(ratings))]
        raise refused[-1]
