"""ShardGym: benchmark and Gymnasium environments for embedding-table sharding.

Everything public is importable from here; each name is loaded when first used, so that importing the package loads
neither torch nor fbgemm.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from shardgym.envs import register_envs

if TYPE_CHECKING:
    from shardgym.costs import CostModel, PlanCost, make_cost
    from shardgym.errors import (
        InfeasiblePlanError,
        InputError,
        MeasurementError,
        MissingDependencyError,
        NoFeasiblePlanError,
        ShardGymError,
    )
    from shardgym.evaluation import evaluate, read_results, verify
    from shardgym.evaluation.result import Result
    from shardgym.evaluation.solver import Observer, Solver, make_solver
    from shardgym.plans.plan import ShardingPlan
    from shardgym.plans.shard import Shard
    from shardgym.tables.pools import TablePool, load_pool
    from shardgym.tables.streams.stream import open_stream
    from shardgym.tables.table import EmbeddingTable, RangeIds, RecordedIds, UniformIds, ZipfIds
    from shardgym.tables.tables_of_streams import DrawnStream, pool_of_stream
    from shardgym.tasks.step_memory import StepMemory
    from shardgym.tasks.suites import Suite, load_suite
    from shardgym.tasks.task import ShardingTask
    from shardgym.tasks.topology import Topology

__version__ = "0.1.0"

_HOME = {
    "CostModel": "costs", "PlanCost": "costs", "make_cost": "costs",
    "InfeasiblePlanError": "errors", "InputError": "errors", "MeasurementError": "errors",
    "MissingDependencyError": "errors", "NoFeasiblePlanError": "errors", "ShardGymError": "errors",
    "Result": "evaluation.result", "evaluate": "evaluation", "read_results": "evaluation", "verify": "evaluation",
    "Observer": "evaluation.solver", "Solver": "evaluation.solver", "make_solver": "evaluation.solver",
    "Shard": "plans.shard", "ShardingPlan": "plans.plan",
    "EmbeddingTable": "tables.table", "RangeIds": "tables.table", "RecordedIds": "tables.table",
    "UniformIds": "tables.table", "ZipfIds": "tables.table",
    "TablePool": "tables.pools", "load_pool": "tables.pools", "DrawnStream": "tables.tables_of_streams",
    "open_stream": "tables.streams.stream", "pool_of_stream": "tables.tables_of_streams",
    "ShardingTask": "tasks.task", "StepMemory": "tasks.step_memory", "Suite": "tasks.suites",
    "Topology": "tasks.topology", "load_suite": "tasks.suites",
}  # fmt: skip

__all__ = [
    "CostModel", "DrawnStream", "EmbeddingTable", "InfeasiblePlanError", "InputError", "MeasurementError",
    "MissingDependencyError", "NoFeasiblePlanError", "Observer", "PlanCost", "RangeIds", "RecordedIds", "Result",
    "Shard", "ShardGymError", "ShardingPlan", "ShardingTask", "Solver", "StepMemory", "Suite", "TablePool", "Topology",
    "UniformIds", "ZipfIds", "__version__", "evaluate", "load_pool", "load_suite", "make_cost", "make_solver",
    "open_stream", "pool_of_stream", "read_results", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'shardgym' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"shardgym.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


register_envs()
