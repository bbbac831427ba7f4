"""Engine: what prices devices and places shards, compiled where that is possible."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import NamedTuple, TypeGuard

import numpy as np

from neuroshard.budget import Budget
from neuroshard.contents import Contents
from neuroshard.cutoff import Cutoff
from neuroshard.evaluated_contents import EvaluatedContents
from neuroshard.grid_search import GridSearch
from neuroshard.kinds import Kinds
from neuroshard.simulator_contents import SimulatorContents
from neuroshard.threads import InnerSearch, ThreadedSearch
from shardgym.arrays import Floats
from shardgym.costs.base import CostModel
from shardgym.costs.simulator import SimulatorCost
from shardgym.errors import InputError, MissingDependencyError
from shardgym.plan import COLUMN_UNIT
from shardgym.task import ShardingTask

#: What compiled code needs; scipy brings numba the matrix product.
_NEEDED = ("numba", "scipy")


class Engine(NamedTuple):
    """Contents of one task, and what makes the inner search over them for a grid of width limits."""

    contents: Contents
    inner: Callable[[Floats, Budget], InnerSearch]


def use_compiled(wanted: bool | None) -> bool:
    """Say whether to compile; when None, if it is possible.

    Raises:
        InputError: neither a bool nor None.
        MissingDependencyError: it is wanted and not possible.
    """
    if wanted is not None and not isinstance(wanted, bool):
        raise InputError(f"compiled must be true, false or none (where numba is installed), got {wanted!r}")
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if wanted and missing:
        raise MissingDependencyError(missing[0], "search", "the compiled search")
    return not missing if wanted is None else wanted


def engine(kinds: Kinds, cost: CostModel, *, compiled: bool, threads: int = 1) -> Engine:
    """Return what fits the cost model: only simulators that are oracles are priced incrementally.

    Threads are for compiled code; what runs in Python stays on one.

    Raises:
        InputError: `cost` cannot price tasks of this kind.
    """
    if not _is_incremental(cost):
        return _plain(EvaluatedContents(kinds, cost))
    if not compiled:
        return _plain(SimulatorContents(kinds, cost))
    from neuroshard.compiled.contents import CompiledContents
    from neuroshard.compiled.search import CompiledGridSearch

    contents = [CompiledContents(kinds, cost) for _ in range(threads)]

    def inner(caps: Floats, budget: Budget) -> InnerSearch:
        searches = [CompiledGridSearch(own, caps, budget) for own in contents]
        return ThreadedSearch(searches) if threads > 1 else searches[0]

    return Engine(contents[0], inner)


def compile_ahead(task: ShardingTask, cost: CostModel) -> None:
    """Have everything compiled by placing one table: a time limit is for searching."""
    if _is_incremental(cost):
        possible = [table for table in task.tables if table.embedding_dim % COLUMN_UNIT == 0]
        if not possible:
            return
        kinds = Kinds(dataclasses.replace(task, tables=tuple(possible[:1]), name=""))
        parts = engine(kinds, cost, compiled=True)
        parts.contents.singles(kinds.whole)
        parts.inner(np.array([np.inf]), Budget()).place(kinds.whole[None], Cutoff(1))


def _is_incremental(cost: CostModel) -> TypeGuard[SimulatorCost]:
    return isinstance(cost, SimulatorCost) and cost.role == "oracle"


def _plain(contents: Contents) -> Engine:
    return Engine(contents, lambda caps, budget: GridSearch(contents, caps, budget))
