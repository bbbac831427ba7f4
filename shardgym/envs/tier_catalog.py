"""TierCatalog: tasks whose tables are cut into tiers, as arrays that N episodes look things up in."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from shardgym.arrays import Floats, GrowingArrays, Ints
from shardgym.envs.features import LOG_DIM, LOG_POOLING, LOG_ROWS
from shardgym.plan import ShardingPlan
from shardgym.row_tiers import Tiers, most_bytes, node_size, rows_of_shares, tier_plan
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask

#: Entries of `obs["table"]`, see `RowTiersEnv`; the last two are those of the episode.
TABLE_FEATURES = (
    "log_rows", "log_dim", "log_pooling", "bytes_share", "lookup_share", "unpooled", "second_step", "everywhere_share",
)  # fmt: skip
#: Entries of `obs["task"]`; the first two are those of the episode.
TASK_FEATURES = ("tables_cut", "free_share", "log_nodes", "log_node_size", "bandwidth_ratio")

#: Number of the entry that stands for no table.
NO_TABLE = 0


class TierCatalog:
    """Tasks and their tables under numbers. Tables of a task follow each other in the order in which they come up.

    Args:
        levels: of cut points, K.

    Attributes:
        tasks: by number.
        task: arrays with an entry for each task. `first`: number of its first table; `tables`: their number; `nodes`:
            whether there is a tier of nodes; `room`: bytes of the smallest device; `least`: bytes of all tables without
            copies; `features`: see `TASK_FEATURES`; `hash`; `name`.
        table: arrays with an entry for each table. `rows`: of every level, shape (K,); `num_bytes`: that it takes at
            most on a device, by the levels of both cut points, infinite for pairs that are no choice, shape (K, K);
            `cheapest`: the least of these by the first level, shape (K,); `after`: bytes that the tables after it take
            without copies; `features`: see `TABLE_FEATURES`; `name`; `position` in `task.tables`.
    """

    def __init__(self, levels: int) -> None:
        self._levels = levels
        self.clear()

    def clear(self) -> None:
        """Forget all tasks."""
        number = ((), np.int64)
        real = ((), np.float64)
        label = ((), np.object_)
        levels = self._levels
        self.tasks: list[ShardingTask] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._parts: dict[tuple[int, int], ShardingTask] = {}
        self.task = GrowingArrays(
            first=number, tables=number, nodes=((), np.bool_), room=real, least=real,
            features=((len(TASK_FEATURES),), np.float64), hash=label, name=label,
        )  # fmt: skip
        self.table = GrowingArrays(
            rows=((levels,), np.int64), num_bytes=((levels, levels), np.float64), cheapest=((levels,), np.float64),
            after=real, features=((len(TABLE_FEATURES),), np.float64), name=label, position=number,
        )  # fmt: skip
        self.table.append(
            rows=np.zeros((1, levels)), num_bytes=np.full((1, levels, levels), np.inf),
            cheapest=np.full((1, levels), np.inf), after=[0.0], features=np.zeros((1, len(TABLE_FEATURES))), name=[""],
            position=[-1],
        )  # fmt: skip

    def number(self, task: ShardingTask) -> int:
        """Return the number of a task, which is added if it is new."""
        key = task.digest, task.name
        if key not in self._numbers:
            self._add(task)
            self._numbers[key] = len(self.tasks)
            self.tasks.append(task)
        return self._numbers[key]

    def plan(self, task: int, chosen: Ints) -> ShardingPlan:
        """Return the plan of a task by the levels of its tables, shape (T, 2)."""
        first = self.task["first"][task]
        tiers = [Tiers(0, 0)] * len(chosen)
        for number, levels in enumerate(chosen):
            tiers[self.table["position"][first + number]] = Tiers(*self.table["rows"][first + number, levels].tolist())
        return tier_plan(self.tasks[task], tiers)

    def part(self, task: int, chosen: Ints) -> tuple[ShardingTask, ShardingPlan]:
        """Return a task of the first tables of another alone, and their plan by their levels, shape (n, 2), n > 0."""
        first = int(self.task["first"][task])
        numbers = range(first, first + len(chosen))
        key = task, len(chosen)
        if key not in self._parts:
            tables = tuple(self.tasks[task].tables[self.table["position"][number]] for number in numbers)
            self._parts[key] = dataclasses.replace(self.tasks[task], tables=tables, name="")
        rows = self.table["rows"]
        tiers = [Tiers(*rows[number, levels].tolist()) for number, levels in zip(numbers, chosen, strict=True)]
        return self._parts[key], tier_plan(self._parts[key], tiers)

    def _add(self, task: ShardingTask) -> None:
        sizes = np.array([task.table_bytes(table) for table in task.tables], dtype=np.float64)
        lookups = np.array([table.embedding_dim * table.pooling_factor for table in task.tables])
        order = np.argsort(-sizes, kind="stable")
        tables = [task.tables[position] for position in order.tolist()]
        shares = np.linspace(0, 1, self._levels).tolist()
        rows = np.array([[0, *rows_of_shares(table, shares[1:-1]), table.num_embeddings] for table in tables])
        num_bytes = np.stack([self._bytes(task, *of_table) for of_table in zip(tables, rows, strict=True)])
        alone = num_bytes[:, 0, 0]
        features = np.zeros((len(tables), len(TABLE_FEATURES)))
        features[:, 0] = [math.log2(table.num_embeddings) / LOG_ROWS for table in tables]
        features[:, 1] = [math.log2(table.embedding_dim) / LOG_DIM for table in tables]
        features[:, 2] = [math.log1p(table.pooling_factor) / LOG_POOLING for table in tables]
        features[:, 3] = sizes[order] / sizes.sum()
        features[:, 4] = lookups[order] / (lookups.sum() or 1.0)
        features[:, 5] = [not table.is_pooled for table in tables]
        first = self.table.append(
            rows=rows, num_bytes=num_bytes, cheapest=num_bytes.min(axis=2),
            after=np.cumsum(alone[::-1])[::-1] - alone, features=features, name=[table.name for table in tables],
            position=order,
        )  # fmt: skip
        self.task.append(
            first=[first], tables=[len(tables)], nodes=[node_size(task) > 0], room=[float(min(task.capacity_bytes))],
            least=[alone.sum()], features=[_task_features(task)], hash=[task.digest], name=[task.name],
        )  # fmt: skip

    def _bytes(self, task: ShardingTask, table: EmbeddingTable, rows: Ints) -> Floats:
        """Return what a table takes at most on a device, by the levels of both cut points, shape (K, K).

        Of several levels with the same rows the lowest one is a choice.
        """
        found: Floats = np.full((self._levels, self._levels), np.inf)
        new = np.flatnonzero(np.diff(rows, prepend=-1)).tolist()
        for first in new:
            for last in new if node_size(task) else [first]:
                if last >= first:
                    found[first, last] = most_bytes(task, table, Tiers(int(rows[first]), int(rows[last])))
        return found


def _task_features(task: ShardingTask) -> list[float]:
    """Return what `TASK_FEATURES` say of a task, 0 for what depends on the episode."""
    topology = task.topology
    size = min(topology.fast_domain_size, task.num_devices)
    nodes = -(-task.num_devices // size)
    ratio = min(1.0, topology.inter_bandwidth / topology.intra_bandwidth)
    return [0.0, 0.0, math.log2(nodes) / 16, math.log2(size) / 16, ratio]
