"""Tasks with tables of several pools: published models and synthetic tables in shares that differ from task to task."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Literal

from shardgym.errors import InputError
from shardgym.tables.pools import TablePool
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.suites.sources import GroupedSource, pool_of_suite
from shardgym.tasks.suites.spec import MixedTasks
from shardgym.tasks.task import ShardingTask, block_bytes
from shardgym.tasks.topology import Topology

#: Redraws after which limits are taken to be impossible.
_MAX_DRAWS = 1_000
#: Weights of pools are random numbers to this power, so that a few pools make up most of a task.
_POWER = 3


class MixedSource(GroupedSource):
    """Tasks of mixed pools; the same spec gives the same tasks in every version of ShardGym.

    Every task draws a weight for each pool, and takes that share of its tables from it, none of them twice. Tables are
    named by pool and table. They keep the law of their ids and lose what was counted in batches of another size.

    Args:
        spec: how tasks are drawn.
        path: the suite file; pool files are looked for beside it.
        half: half of each pool that tables come from.
    """

    def __init__(self, spec: MixedTasks, path: Path, half: Literal["train", "test", "all"] = "all") -> None:
        super().__init__(spec.seed, spec.groups)
        self._spec = spec
        self._path = path
        self._half = half
        self._topologies = [Topology.preset(group.topology, group.num_devices) for group in spec.groups]

    def redrawn(self, half: Literal["train", "test"], times: int) -> MixedSource:
        """Return a source of other tasks drawn alike from one half of each pool, `times` as many in each group."""
        groups = tuple(dataclasses.replace(group, count=times * group.count, draws=()) for group in self._spec.groups)
        return MixedSource(dataclasses.replace(self._spec, groups=groups), self._path, half)

    def build(self, index: int, name: str) -> ShardingTask:
        """Draw the task."""
        spec = self._spec
        number, _ = self._order[index]
        group = spec.groups[number]
        draw = self._stream(index)
        least, most = spec.total_bytes
        fewest, largest = spec.num_tables
        for _ in range(_MAX_DRAWS):
            count = fewest + int(draw() * (largest - fewest + 1))
            tables: list[EmbeddingTable] = []
            weights = [draw() ** _POWER for _ in spec.pools]
            left = [list(of_pool) for of_pool in self._pools]
            while len(tables) < count:
                point = draw() * sum(weights)
                pool = 0
                while pool + 1 < len(weights) and point >= weights[pool]:
                    point -= weights[pool]
                    pool += 1
                of_pool = left[pool]
                tables.append(self._with_width(of_pool.pop(int(draw() * len(of_pool))), spec.pools[pool].dims, draw()))
                if not of_pool:
                    weights[pool] = 0.0
                if not any(weights) and len(tables) < count:
                    raise InputError(f"group '{group.name}' draws {count} tables, but its pools have {len(tables)}")
            if least <= sum(self._bytes(table) for table in tables) <= most:
                return ShardingTask(
                    tuple(tables),
                    self._topologies[number],
                    spec.samples_per_device * group.num_devices,
                    spec.precision,
                    spec.optimizer,
                    name,
                    group_sync_interval=spec.group_sync_interval,
                )
        raise InputError(f"group '{group.name}': no tables within total_bytes {[least, most]} in {_MAX_DRAWS} draws")

    def _bytes(self, table: EmbeddingTable) -> int:
        precision = table.precision or self._spec.precision
        optimizer = table.optimizer or self._spec.optimizer
        return block_bytes(table.num_embeddings, table.embedding_dim, precision, optimizer)

    @staticmethod
    @functools.lru_cache(maxsize=65536)
    def _of_width(table: EmbeddingTable, width: int) -> EmbeddingTable:
        return dataclasses.replace(table, embedding_dim=width)

    def _with_width(self, table: EmbeddingTable, dims: tuple[int, ...], number: float) -> EmbeddingTable:
        """Return a table with one of some widths, by a number from 0 to 1; with its own where there are none."""
        return self._of_width(table, dims[int(number * len(dims))]) if dims else table

    @functools.cached_property
    def _pools(self) -> list[list[EmbeddingTable]]:
        return [
            [
                dataclasses.replace(table, name=f"{entry.pool}/{table.name}", reuse_histogram=None)
                for table in self._of_half(pool_of_suite(entry.pool, self._path))
            ]
            for entry in self._spec.pools
        ]

    def _of_half(self, pool: TablePool) -> TablePool:
        if self._half == "all":
            return pool
        train, test = pool.split()
        return train if self._half == "train" else test
