"""Tasks drawn at random from a pool, the same ones for ever.

The protocol is NeuroShard's (tools/gen_tasks.py there): draw the number of tables, then draw tables and widths again
and again until they fit into a given total size. Unlike there, a table occurs at most once in a task, and only one half
of the pool is drawn from.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import random
from pathlib import Path
from typing import Literal, NamedTuple

from shardgym.errors import InputError
from shardgym.pools import TablePool, load_pool
from shardgym.suites.spec import DrawnGroup, DrawnTasks
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask, block_bytes
from shardgym.topology import Topology

#: Redraws after which a group's limits are taken to be impossible.
MAX_DRAWS = 100_000


class Draw(NamedTuple):
    """One task in short.

    Attributes:
        tables: positions in the half of the pool.
        dims: their widths.
        attempts: draws that it took to meet the size limits.
    """

    tables: tuple[int, ...]
    dims: tuple[int, ...]
    attempts: int


class DrawnSource:
    """Builds drawn tasks; every task has its own random stream, so any one can be built alone."""

    def __init__(self, spec: DrawnTasks, path: Path) -> None:
        self._spec = spec
        self._path = path
        self._topologies = [Topology.preset(g.topology, g.num_devices, g.memory_bytes) for g in spec.groups]
        longest = max(group.count for group in spec.groups)
        self._order = [(g, k) for k in range(longest) for g, group in enumerate(spec.groups) if k < group.count]
        self._widened: dict[tuple[int, int], EmbeddingTable] = {}

    def __len__(self) -> int:
        return len(self._order)

    @property
    def groups(self) -> tuple[DrawnGroup, ...]:
        """The groups as the spec describes them."""
        return self._spec.groups

    def redrawn(self, pool: str, half: Literal["train", "test", "all"], count: int) -> DrawnSource:
        """Return a source of other tasks drawn alike.

        Args:
            pool: name or path of the pool to draw from.
            half: of the pool.
            count: tasks of each group.

        Raises:
            UnknownNameError: no such pool; the closest names are given.
        """
        groups = tuple(dataclasses.replace(group, count=count) for group in self._spec.groups)
        source = DrawnSource(dataclasses.replace(self._spec, pool=pool, half=half, groups=groups), self._path)
        _ = source._scaled
        return source

    def group(self, index: int) -> str:
        """Return the group that the spec names."""
        return self._spec.groups[self._order[index][0]].name

    def build(self, index: int, name: str) -> ShardingTask:
        """Draw the task."""
        spec, draw = self._spec, self.draw(index)
        tables = tuple(self._table(table, dim) for table, dim in zip(draw.tables, draw.dims, strict=True))
        topology = self._topologies[self._order[index][0]]
        return ShardingTask(tables, topology, spec.batch_size, spec.precision, spec.optimizer, name)

    def draw(self, index: int) -> Draw:
        """Draw which tables and widths a task has.

        Raises:
            InputError: the pool is too small, or nothing drawn meets the size limits.
        """
        number, position = self._order[index]
        group, rows = self._spec.groups[number], self._rows
        if group.num_tables[1] > len(rows):
            raise InputError(
                f"{self._path}: group '{group.name}' draws up to {group.num_tables[1]} tables, "
                f"the {self._spec.half} half of pool '{self._spec.pool}' has {len(rows)}"
            )
        rng = _stream(self._spec.seed, number, position)
        count = group.num_tables[0] + _below(rng, group.num_tables[1] - group.num_tables[0] + 1)
        for attempt in range(1, MAX_DRAWS + 1):
            tables = _sample(rng, len(rows), count)
            dims = tuple(group.dims[_below(rng, len(group.dims))] for _ in range(count))
            if self._fits(group, tables, dims):
                return Draw(tables, dims, attempt)
        raise InputError(
            f"{self._path}: group '{group.name}': no {count} tables within its size limits in {MAX_DRAWS} draws"
        )

    def _fits(self, group: DrawnGroup, tables: tuple[int, ...], dims: tuple[int, ...]) -> bool:
        """Compare sizes before scaling, so that the scaled and the full-size suite draw the same."""
        spec = self._spec
        sizes = [
            block_bytes(self._rows[table], dim, spec.precision, spec.optimizer)
            for table, dim in zip(tables, dims, strict=True)
        ]
        low, high, largest = group.min_total_bytes, group.max_total_bytes, group.max_table_bytes
        return low * spec.scale <= sum(sizes) <= high * spec.scale and max(sizes) <= largest * spec.scale

    def _table(self, table: int, dim: int) -> EmbeddingTable:
        key = table, dim
        if key not in self._widened:
            self._widened[key] = dataclasses.replace(self._scaled[table], embedding_dim=dim)
        return self._widened[key]

    @functools.cached_property
    def _pool(self) -> TablePool:
        name = self._spec.pool
        beside = self._path.parent / name
        pool = load_pool(beside if beside.is_file() else name)
        if self._spec.half == "all":
            return pool
        train, test = pool.split()
        return test if self._spec.half == "test" else train

    @functools.cached_property
    def _rows(self) -> list[int]:
        return [table.num_embeddings for table in self._pool]

    @functools.cached_property
    def _scaled(self) -> TablePool:
        scaled = self._pool.scaled(self._spec.scale)
        if scaled.batch_size != self._spec.batch_size:
            raise InputError(
                f"{self._path}: batch_size is {self._spec.batch_size}, but pool '{self._spec.pool}' scaled by "
                f"{self._spec.scale} describes batches of {scaled.batch_size}"
            )
        return scaled


def _stream(seed: int, group: int, position: int) -> random.Random:
    """Return the random stream of one task. Only `random()` of it is used: Python keeps that stable."""
    digest = hashlib.sha256(f"{seed}/{group}/{position}".encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))


def _below(rng: random.Random, bound: int) -> int:
    return int(rng.random() * bound)


def _sample(rng: random.Random, size: int, count: int) -> tuple[int, ...]:
    """Draw `count` of `size` positions without replacement: the first steps of a Fisher-Yates shuffle."""
    items = list(range(size))
    for i in range(count):
        j = i + _below(rng, size - i)
        items[i], items[j] = items[j], items[i]
    return tuple(items[:count])
