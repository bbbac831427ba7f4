"""Where tasks of a suite come from: drawn from a pool, drifting, made up, made of published models, or written down."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

from shardgym.errors import InputError
from shardgym.tables.pools import TablePool, load_pool
from shardgym.tables.pools.load import load_model
from shardgym.tables.table import EmbeddingTable, RowOrder, ZipfIds, scaled_table
from shardgym.tasks.suites.spec import (
    DrawnGroup,
    DrawnTasks,
    DriftTasks,
    MixedGroup,
    PublishedTasks,
    SequenceGroup,
    SequenceTasks,
)
from shardgym.tasks.task import ShardingTask, block_bytes
from shardgym.tasks.topology import Topology

#: Redraws after which a group's limits are taken to be impossible.
MAX_DRAWS = 100_000
#: Memory that follows from a fullness is rounded up to pages.
_PAGE_BYTES = 4096

#: Digits that are kept of what drifts, so that all processors draw the same tasks.
_DIGITS = 6
#: Exponents stay between these.
_SKEWS = (0.0, 3.0)


class TaskSource(ABC):
    """Builds the tasks of a suite one by one."""

    @abstractmethod
    def __len__(self) -> int:
        """Tasks in all."""

    @abstractmethod
    def group(self, index: int) -> str:
        """Name of the group of a task."""

    @abstractmethod
    def build(self, index: int, name: str) -> ShardingTask:
        """Build a task and give it `name`; raises `InputError` where nothing drawn meets the limits."""


class GroupedSource(TaskSource):
    """Tasks of groups that take turns; those with fewer tasks run out earlier. Each draws from a stream of its own."""

    def __init__(self, seed: int, groups: Sequence[DrawnGroup | SequenceGroup | MixedGroup]) -> None:
        self._groups = groups
        self._seed = seed
        turns = range(max(group.count for group in groups))
        #: Numbers of the group and of the draw, by task.
        self._order = [
            (n, _draw(group, turn)) for turn in turns for n, group in enumerate(groups) if turn < group.count
        ]

    def __len__(self) -> int:
        return len(self._order)

    def group(self, index: int) -> str:
        """Return the group that the spec names."""
        return self._groups[self._order[index][0]].name

    def _stream(self, index: int) -> Callable[[], float]:
        return random_stream(self._seed, *self._order[index]).random


def _draw(group: DrawnGroup | SequenceGroup | MixedGroup, turn: int) -> int:
    draws = () if isinstance(group, SequenceGroup) else group.draws
    return draws[turn] if draws else turn


class DrawnSource(GroupedSource):
    """Tasks drawn at random from a pool; the same spec gives the same tasks in every version of ShardGym.

    The protocol is NeuroShard's (tools/gen_tasks.py there): draw the number of tables, then draw tables and widths
    again and again until their total size is within limits. Unlike there, a table occurs at most once in a task, and
    only one half of the pool is drawn from. Every draw has its own random stream, so any one can be built alone. Groups
    that name `draws` were chosen: `tools/draw_suite.py` keeps draws in which solvers differ.

    Args:
        spec: pool, groups and seed.
        path: the suite file, for errors; pool files are looked for beside it.
    """

    def __init__(self, spec: DrawnTasks, path: Path) -> None:
        super().__init__(spec.seed, spec.groups)
        self._spec = spec
        self._path = path
        self._topologies = [Topology.preset(g.topology, g.num_devices, g.memory_bytes) for g in spec.groups]
        self._tables: dict[tuple[int, int, RowOrder | None, int | None], EmbeddingTable] = {}

    @property
    def spec(self) -> DrawnTasks:
        """How tasks are drawn."""
        return self._spec

    @property
    def groups(self) -> tuple[DrawnGroup, ...]:
        """The groups as the spec describes them."""
        return self._spec.groups

    def redrawn(self, pool: str, half: Literal["train", "test", "all"], count: int) -> DrawnSource:
        """Return a source of `count` other tasks of each group, drawn alike from a half of a pool, and not selected.

        Raises:
            UnknownNameError: no such pool; the closest names are in the message.
        """
        groups = tuple(dataclasses.replace(group, count=count, draws=()) for group in self._spec.groups)
        source = DrawnSource(dataclasses.replace(self._spec, pool=pool, half=half, groups=groups), self._path)
        _ = source._pool  # loads the pool now, so that a wrong name is an error here
        return source

    def build(self, index: int, name: str) -> ShardingTask:
        """Draw the task."""
        spec = self._spec
        group_number, _ = self._order[index]
        group = spec.groups[group_number]
        tables = tuple(self._table(position, dim, group) for position, dim in self._draw(index))
        topology = self._topologies[group_number]
        total = sum(self._bytes(table, table.embedding_dim) for table in tables)
        if group.fullness is not None:
            shares = group.memory_shares or (1,) * group.num_devices
            topology = dataclasses.replace(topology, memory_bytes=_memory(group.fullness, shares, total))
        if group.host_fullness is not None:
            pages = math.ceil(total / group.host_fullness / topology.num_hosts / _PAGE_BYTES)
            topology = dataclasses.replace(topology, host_memory_bytes=pages * _PAGE_BYTES)
        return ShardingTask(tables, topology, spec.batch_size, spec.precision, spec.optimizer, name)

    def _draw(self, index: int) -> list[tuple[int, int]]:
        """Draw the tables of a task, as positions in the half of the pool, each with its width."""
        spec = self._spec
        group = spec.groups[self._order[index][0]]
        if group.num_tables[1] > len(self._rows):
            raise InputError(
                f"{self._path}: group '{group.name}' draws up to {group.num_tables[1]} tables, but "
                f"the {spec.half} half of pool '{spec.pool}' has {len(self._rows)}"
            )
        draw = self._stream(index)
        count = group.num_tables[0] + int(draw() * (group.num_tables[1] - group.num_tables[0] + 1))
        num_dims = len(group.dims)
        # Sizes are compared before scaling, so that the scaled and the full-size suite draw the same.
        least, most = group.min_total_bytes * spec.scale, group.max_total_bytes * spec.scale
        largest = group.max_table_bytes * spec.scale
        sizes = self._sizes
        for _ in range(MAX_DRAWS):
            positions = _sample(draw, range(len(self._rows)), count)
            dims = [group.dims[int(draw() * num_dims)] for _ in range(count)]
            drawn = [sizes[dim][position] for position, dim in zip(positions, dims, strict=True)]
            if least <= sum(drawn) <= most and max(drawn) <= largest:
                return list(zip(positions, dims, strict=True))
        raise InputError(
            f"{self._path}: group '{group.name}': no {count} tables within its size limits in {MAX_DRAWS} draws"
        )

    def _table(self, position: int, dim: int, group: DrawnGroup) -> EmbeddingTable:
        """Return a table of the pool, scaled, with another width and order of rows; tasks share what was made once."""
        key = (position, dim, group.row_order, group.row_blocks)
        if key not in self._tables:
            table = dataclasses.replace(scaled_table(self._pool[position], self._spec.scale), embedding_dim=dim)
            if group.row_order is not None:
                table = dataclasses.replace(table, ids=self._in_order(table, group))
            self._tables[key] = table
        return self._tables[key]

    def _in_order(self, table: EmbeddingTable, group: DrawnGroup) -> ZipfIds:
        """Return the ids of a table whose popular rows lie as a group says."""
        if not isinstance(table.ids, ZipfIds):
            raise InputError(
                f"{self._path}: row_order '{group.row_order}' of group '{group.name}' needs ids of kind 'zipf', but "
                f"table '{table.name}' of pool '{self._spec.pool}' has kind '{table.ids.kind}'"
            )
        block_rows = None if group.row_blocks is None else -(-table.num_embeddings // group.row_blocks)
        return dataclasses.replace(table.ids, row_order=group.row_order, block_rows=block_rows)

    @functools.cached_property
    def _pool(self) -> TablePool:
        """The half that is drawn from, not scaled."""
        name = self._spec.pool
        pool = pool_of_suite(name, self._path)
        batch_size = pool.scaled_batch_size(self._spec.scale)
        if batch_size != self._spec.batch_size:
            raise InputError(
                f"{self._path}: batch_size is {self._spec.batch_size}, but pool '{name}' scaled by "
                f"{self._spec.scale} describes batches of {batch_size}"
            )
        if self._spec.half == "all":
            return pool
        train, test = pool.split()
        return test if self._spec.half == "test" else train

    @functools.cached_property
    def _rows(self) -> list[int]:
        return [table.num_embeddings for table in self._pool.tables]

    @functools.cached_property
    def _sizes(self) -> dict[int, list[int]]:
        """Bytes of the unscaled tables, by width."""
        widths = {dim for group in self._spec.groups for dim in group.dims}
        return {dim: [self._bytes(table, dim) for table in self._pool.tables] for dim in widths}

    def _bytes(self, table: EmbeddingTable, dim: int) -> int:
        """Return the bytes of a table with another width."""
        precision = table.precision or self._spec.precision
        return block_bytes(table.num_embeddings, dim, precision, table.optimizer or self._spec.optimizer)


def pool_of_suite(name: str, path: Path) -> TablePool:
    """Return the pool that a suite file names: a file beside it, or one by name or path."""
    beside = path.parent / name
    return load_pool(beside if beside.is_file() else name)


def _memory(fullness: float, shares: Sequence[int], total_bytes: int) -> tuple[int, ...]:
    """Return the bytes of every device, in whole pages, of which tables take a share; devices have shares, too."""
    pages = total_bytes / fullness / sum(shares) / _PAGE_BYTES
    return tuple(math.ceil(pages * share) * _PAGE_BYTES for share in shares)


def random_stream(seed: int, group: int, draw: int) -> random.Random:
    """Return the random stream of one task. Only `random()` of it is used: Python keeps that stable."""
    # Hashing makes the streams of neighbouring tasks independent, whatever their numbers.
    digest = hashlib.sha256(f"{seed}/{group}/{draw}".encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))


def _sample(draw: Callable[[], float], positions: Sequence[int], count: int) -> list[int]:
    """Draw `count` positions without replacement: the first steps of a Fisher-Yates shuffle."""
    items = list(positions)
    left = len(items)
    for i in range(count):
        j = i + int(draw() * left)
        left -= 1
        items[i], items[j] = items[j], items[i]
    return items[:count]


class SequenceSource(GroupedSource):
    """Tasks of unpooled tables that are made up; the same spec gives the same tasks in every version of ShardGym."""

    def __init__(self, spec: SequenceTasks) -> None:
        super().__init__(spec.seed, spec.groups)
        self._spec = spec

    def build(self, index: int, name: str) -> ShardingTask:
        """Draw the task."""
        spec = self._spec
        group = spec.groups[self._order[index][0]]
        draw = self._stream(index)

        def one_of(values: Sequence[Any]) -> Any:
            return values[int(draw() * len(values))]

        fewest, most = spec.num_tables
        law = ZipfIds(group.skew, spec.shift, lengths="poisson", row_order="by_frequency")
        tables = tuple(
            EmbeddingTable(
                f"sequence {n}", one_of(spec.rows), one_of(spec.dims), one_of(spec.lengths), law, pooling="none"
            )
            for n in range(fewest + int(draw() * (most - fewest + 1)))
        )
        total = sum(block_bytes(t.num_embeddings, t.embedding_dim, spec.precision, spec.optimizer) for t in tables)
        topology = Topology.preset(group.topology, group.num_devices)
        memory = _memory(one_of(spec.fullness), (1,) * group.num_devices, total)
        topology = dataclasses.replace(topology, memory_bytes=memory)
        return ShardingTask(tables, topology, spec.batch_size, spec.precision, spec.optimizer, name)


class ListedSource(TaskSource):
    """Tasks that exist already, each with the name of its group; those without a name are named by the suite."""

    def __init__(self, tasks: Sequence[ShardingTask], groups: Sequence[str]) -> None:
        self._tasks = tasks
        self._groups = groups

    @classmethod
    def read(cls, entries: Sequence[str | dict[str, Any]], path: Path) -> ListedSource:
        """Read task records, or task files as seen from the suite file; groups are by number of devices."""
        tasks = []
        for i, entry in enumerate(entries):
            if isinstance(entry, str):
                tasks.append(ShardingTask.load(path.parent / entry))
            else:
                tasks.append(ShardingTask.from_dict(entry, f"{path}, task {i}" if len(entries) > 1 else str(path)))
        return cls(tasks, [f"{task.num_devices} devices" for task in tasks])

    @classmethod
    def of_models(cls, spec: PublishedTasks) -> ListedSource:
        """Put published models on their devices; every model is a group."""
        tasks = []
        for entry in spec.models:
            model = load_model(entry.model)
            pool = model.pool
            topology = Topology.preset(entry.topology, entry.num_devices)
            tasks.append(ShardingTask(pool.tables, topology, pool.batch_size, model.precision, model.optimizer))
        return cls(tasks, [entry.model for entry in spec.models])

    def __len__(self) -> int:
        return len(self._tasks)

    def group(self, index: int) -> str:
        """Return the group that was given."""
        return self._groups[index]

    def build(self, index: int, name: str) -> ShardingTask:
        """Return the task under its own name if it has one."""
        task = self._tasks[index]
        return task if task.name else dataclasses.replace(task, name=name)


class DriftSource(TaskSource):
    """Every drawn task in several steps, as many as the spec says: a task of the suite for each step.

    Tables of the first step are as drawn. Then, from step to step, each pooling factor is multiplied by a log-normal
    factor, and the exponent of each Zipf law moves by a normal one. Reuse histograms, which are of the law as it was,
    are left out from the first step on. Rows, widths and memory stay, so a plan for one step is one for all.
    """

    def __init__(self, spec: DriftTasks, path: Path) -> None:
        self._spec = spec
        self._drawn = DrawnSource(spec.drawn, path)
        # Steps of one drift follow each other, each from the last.
        self._tables = functools.lru_cache(maxsize=2 * spec.steps)(self._tables_at)

    def __len__(self) -> int:
        return len(self._drawn) * self._spec.steps

    def group(self, index: int) -> str:
        """Return the group of the drawn task, and the number of the drift."""
        drift = index // self._spec.steps
        return f"{self._drawn.group(drift)}, drift {drift}"

    def build(self, index: int, name: str) -> ShardingTask:
        """Draw the task and let it drift to its step."""
        drift, step = divmod(index, self._spec.steps)
        drawn = self._drawn.build(drift, name)
        for earlier in range(step):  # in this order, as each asks for the one before: Python's stack is limited
            self._tables(drift, earlier)
        return dataclasses.replace(drawn, tables=self._tables(drift, step))

    def _tables_at(self, drift: int, step: int) -> tuple[EmbeddingTable, ...]:
        if step == 0:
            drawn = self._drawn.build(drift, "").tables
            return tuple(dataclasses.replace(table, reuse_histogram=None) for table in drawn)
        draw = random_stream(self._spec.seed, drift, step).random
        normal = NormalDist().inv_cdf
        return tuple(
            self._moved(table, normal(_inside(draw())), normal(_inside(draw())))
            for table in self._tables(drift, step - 1)
        )

    def _moved(self, table: EmbeddingTable, pooling: float, skew: float) -> EmbeddingTable:
        factor = _rounded(table.pooling_factor * math.exp(self._spec.pooling_change * pooling))
        ids = table.ids
        if isinstance(ids, ZipfIds):
            exponent = min(max(ids.s + self._spec.skew_change * skew, _SKEWS[0]), _SKEWS[1])
            ids = dataclasses.replace(ids, s=_rounded(exponent))
        return dataclasses.replace(table, pooling_factor=factor, ids=ids)


def _inside(uniform: float) -> float:
    """Return a number of [0, 1) as one of (0, 1), where the normal law has a quantile."""
    return min(max(uniform, 1e-12), 1 - 1e-12)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
