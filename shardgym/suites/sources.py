"""How the tasks of a suite come about: drawn at random, published models, or written down."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from shardgym.errors import InputError
from shardgym.pools import TablePool, load_pool
from shardgym.pools.published import load_model
from shardgym.suites.spec import DrawnGroup, DrawnTasks, PublishedTasks
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask, block_bytes
from shardgym.topology import Topology

#: Redraws after which a group's limits are taken to be impossible.
MAX_DRAWS = 100_000


class TaskSource(Protocol):
    """Builds the tasks of a suite one by one."""

    def __len__(self) -> int:
        """Tasks in all."""
        ...

    def group(self, index: int) -> str:
        """Name of the group of a task."""
        ...

    def build(self, index: int, name: str) -> ShardingTask:
        """Build a task and give it `name`."""
        ...


class DrawnSource:
    """Tasks drawn at random from a pool, the same ones for ever.

    The protocol is NeuroShard's (tools/gen_tasks.py there): draw the number of tables, then draw tables and widths
    again and again until their total size is within limits. Unlike there, a table occurs at most once in a task, and
    only one half of the pool is drawn from. Every task has its own random stream, so any one can be built alone.

    Args:
        spec: pool, groups and seed.
        path: the suite file, for errors; pool files are looked for beside it.
    """

    def __init__(self, spec: DrawnTasks, path: Path) -> None:
        self._spec = spec
        self._path = path
        self._topologies = [Topology.preset(g.topology, g.num_devices, g.memory_bytes) for g in spec.groups]
        # Groups take turns; those with fewer tasks run out earlier. Entries are (group, position within the group).
        longest = max(group.count for group in spec.groups)
        self._order = [(g, k) for k in range(longest) for g, group in enumerate(spec.groups) if k < group.count]
        self._tables: dict[tuple[int, int], EmbeddingTable] = {}

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
            UnknownNameError: no such pool; the closest names are in the message.
        """
        groups = tuple(dataclasses.replace(group, count=count) for group in self._spec.groups)
        source = DrawnSource(dataclasses.replace(self._spec, pool=pool, half=half, groups=groups), self._path)
        _ = source._scaled_pool  # loads the pool now, so that a wrong name is an error here
        return source

    def group(self, index: int) -> str:
        """Return the group that the spec names."""
        return self._spec.groups[self._order[index][0]].name

    def build(self, index: int, name: str) -> ShardingTask:
        """Draw the task.

        Raises:
            InputError: the pool is too small, or nothing drawn meets the size limits.
        """
        spec = self._spec
        drawn = [self._table(table, dim) for table, dim in self._draw(index)]
        topology = self._topologies[self._order[index][0]]
        return ShardingTask(tuple(drawn), topology, spec.batch_size, spec.precision, spec.optimizer, name)

    def _draw(self, index: int) -> list[tuple[int, int]]:
        """Draw the tables of a task, as positions in the half of the pool, each with its width."""
        number, position = self._order[index]
        spec = self._spec
        group = spec.groups[number]
        if group.num_tables[1] > len(self._rows):
            raise InputError(
                f"{self._path}: group '{group.name}' draws up to {group.num_tables[1]} tables, "
                f"the {spec.half} half of pool '{spec.pool}' has {len(self._rows)}"
            )
        rng = _random_stream(spec.seed, number, position)
        count = group.num_tables[0] + _below(rng, group.num_tables[1] - group.num_tables[0] + 1)
        for _ in range(MAX_DRAWS):
            tables = _sample(rng, len(self._rows), count)
            dims = [group.dims[_below(rng, len(group.dims))] for _ in range(count)]
            drawn = list(zip(tables, dims, strict=True))
            # Sizes are compared before scaling, so that the scaled and the full-size suite draw the same.
            sizes = [block_bytes(self._rows[table], dim, spec.precision, spec.optimizer) for table, dim in drawn]
            total_fits = group.min_total_bytes * spec.scale <= sum(sizes) <= group.max_total_bytes * spec.scale
            if total_fits and max(sizes) <= group.max_table_bytes * spec.scale:
                return drawn
        raise InputError(
            f"{self._path}: group '{group.name}': no {count} tables within its size limits in {MAX_DRAWS} draws"
        )

    def _table(self, table: int, dim: int) -> EmbeddingTable:
        """Return a table of the scaled pool with another width; tasks share what was made once."""
        if (table, dim) not in self._tables:
            self._tables[table, dim] = dataclasses.replace(self._scaled_pool[table], embedding_dim=dim)
        return self._tables[table, dim]

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
    def _scaled_pool(self) -> TablePool:
        scaled = self._pool.scaled(self._spec.scale)
        if scaled.batch_size != self._spec.batch_size:
            raise InputError(
                f"{self._path}: batch_size is {self._spec.batch_size}, but pool '{self._spec.pool}' scaled by "
                f"{self._spec.scale} describes batches of {scaled.batch_size}"
            )
        return scaled


def _random_stream(seed: int, group: int, position: int) -> random.Random:
    """Return the random stream of one task. Only `random()` of it is used: Python keeps that stable."""
    # Hashing makes the streams of neighbouring tasks independent, whatever their numbers.
    digest = hashlib.sha256(f"{seed}/{group}/{position}".encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))


def _below(rng: random.Random, bound: int) -> int:
    return int(rng.random() * bound)


def _sample(rng: random.Random, size: int, count: int) -> list[int]:
    """Draw `count` of `size` positions without replacement: the first steps of a Fisher-Yates shuffle."""
    items = list(range(size))
    for i in range(count):
        j = i + _below(rng, size - i)
        items[i], items[j] = items[j], items[i]
    return items[:count]


class PublishedSource:
    """One task per published model; every model is a group."""

    def __init__(self, spec: PublishedTasks) -> None:
        self._entries = spec.models
        self._topologies = [Topology.preset(entry.topology, entry.num_devices) for entry in spec.models]
        self._models = [load_model(entry.model) for entry in spec.models]

    def __len__(self) -> int:
        return len(self._models)

    def group(self, index: int) -> str:
        """Return the model's name."""
        return self._entries[index].model

    def build(self, index: int, name: str) -> ShardingTask:
        """Put the model on its devices."""
        model = self._models[index]
        pool = model.pool
        return ShardingTask(
            pool.tables, self._topologies[index], pool.batch_size, model.precision, model.optimizer, name
        )


class ListedSource:
    """Tasks of one's own, grouped by the number of devices.

    Args:
        tasks: task records, or paths of task files as seen from the suite file.
        path: the suite file.
    """

    def __init__(self, tasks: Sequence[str | dict[str, Any]], path: Path) -> None:
        self._tasks = []
        for i, task in enumerate(tasks):
            if isinstance(task, str):
                self._tasks.append(ShardingTask.load(path.parent / task))
            else:
                where = f"{path}, task {i}" if len(tasks) > 1 else str(path)
                self._tasks.append(ShardingTask.from_dict(task, where))

    def __len__(self) -> int:
        return len(self._tasks)

    def group(self, index: int) -> str:
        """Return how many devices the task has."""
        return f"{self._tasks[index].num_devices} devices"

    def build(self, index: int, name: str) -> ShardingTask:
        """Return the task under its own name if it has one."""
        task = self._tasks[index]
        return task if task.name else dataclasses.replace(task, name=name)
