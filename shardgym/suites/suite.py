"""Suite: a versioned list of tasks with its judge and its oracle, how one is loaded, and how its tasks come about."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, overload

from shardgym.arguments import check_index, check_instance, check_name
from shardgym.errors import InputError, UnknownNameError
from shardgym.pools import TablePool, load_pool
from shardgym.pools.load import load_model
from shardgym.records import read_text
from shardgym.suites.spec import (
    SIMULATED,
    CostChoice,
    DrawnGroup,
    DrawnTasks,
    PublishedTasks,
    SuiteSpec,
    Track,
    read_suite_file,
)
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask, block_bytes
from shardgym.topology import Topology

DATA = Path(__file__).with_name("data")


@dataclass(frozen=True, eq=False)
class Suite(Sequence[ShardingTask]):
    """Tasks by index, built at their first use.

    Attributes:
        name: as loaded, e.g. "dlrm4-v1".
        description: one sentence.
        tracks: ways to score plans, the default one first.
        source: builds the tasks.
        digests: one per task, compared with every task that is built; None where none are published.
        solvers: what `shardgym run` runs where no solver is named, each written as for `--solver`; empty where the
            suite names none.
    """

    name: str
    description: str
    tracks: tuple[Track, ...]
    source: TaskSource = field(repr=False)
    digests: tuple[str, ...] | None = field(default=None, repr=False)
    solvers: tuple[str, ...] = ()
    _built: dict[int, ShardingTask] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.digests is not None and len(self.digests) != len(self.source):
            raise InputError(
                f"suite '{self.name}' has {len(self.source)} tasks and {len(self.digests)} digests; "
                "one of its two files was changed or truncated"
            )

    @property
    def judge(self) -> str:
        """Name of the cost model that scores plans by default."""
        return self.tracks[0].judge.cost

    @property
    def oracle(self) -> str:
        """Name of the cost model that solvers may query by default."""
        return self.tracks[0].oracle.cost

    def track(self, judge: str | None = None) -> Track:
        """Return how plans are scored.

        Args:
            judge: name of a cost model, e.g. "simulator" for the simulated track; the suite's own when None.

        Returns:
            Judge and oracle with their settings. A judge that the suite has no track for goes with the default
            oracle, "simulator" with the simulator's own judge.

        Raises:
            InputError: `judge` is no name.
        """
        if judge is None:
            return self.tracks[0]
        check_instance("judge", judge, str, "the name of a cost model")
        for track in self.tracks:
            if track.judge.cost == judge:
                return track
        return SIMULATED if judge == SIMULATED.judge.cost else Track(CostChoice(judge), self.tracks[0].oracle)

    def __len__(self) -> int:
        return len(self.source)

    @overload
    def __getitem__(self, index: int) -> ShardingTask: ...
    @overload
    def __getitem__(self, index: slice) -> list[ShardingTask]: ...
    def __getitem__(self, index: int | slice) -> ShardingTask | list[ShardingTask]:
        """Return a task, or a list of tasks.

        Raises:
            IndexError: no such task.
            InputError: a task differs from the one that was published, or `index` is no number.
        """
        if isinstance(index, slice):
            return [self._task(i) for i in range(len(self))[index]]
        return self._task(check_index(f"suite '{self.name}'", "task", index, len(self)))

    def _task(self, index: int) -> ShardingTask:
        if index not in self._built:
            task = self.source.build(index, f"{self.name}/{index}")
            # A suite is a promise: results of different versions of ShardGym are about the same tasks.
            if self.digests is not None and task.digest != self.digests[index]:
                raise InputError(
                    f"task {index} of suite '{self.name}' is {task.digest[:12]}, published was "
                    f"{self.digests[index][:12]}: the suite's data or its pool was changed; reinstall shardgym"
                )
            self._built[index] = task
        return self._built[index]

    def group(self, index: int) -> str:
        """Return the name of a task's group, e.g. "max_dim=16"; raises `IndexError`."""
        return self.source.group(check_index(f"suite '{self.name}'", "task", index, len(self)))

    @property
    def groups(self) -> list[str]:
        """Names of the groups in the order of their first tasks."""
        return list(dict.fromkeys(self.source.group(i) for i in range(len(self))))


def suite_names() -> list[str]:
    """Names of the suites that come with the package."""
    return sorted(path.stem for path in DATA.glob("*.yaml"))


def digests_path(name: str) -> Path:
    """Return the file with the digests of a suite that comes with the package."""
    return DATA / f"{name}.digests"


def load_suite(name_or_path: str | Path, *, verify: bool = True) -> Suite:
    """Load a suite; each task is built at its first use.

    Args:
        name_or_path: a name from `suite_names()`, or the path of a file of your own: a suite in YAML or JSON, one task
            in JSON, or a JSON list of tasks.
        verify: whether the tasks of a suite that comes with the package are compared with their published digests.

    Raises:
        UnknownNameError: neither a known name nor a path; the closest names are in the message.
        InputError: no name or path, or the file cannot be read, has an unknown field or one out of range.
    """
    text = check_name("suite", name_or_path)
    if not text.endswith((".yaml", ".yml", ".json")):
        if text not in suite_names():
            raise UnknownNameError("suite", text, suite_names())
        digests = tuple(read_text(digests_path(text)).split()) if verify else None
        path = DATA / f"{text}.yaml"
        return _from_spec(path, SuiteSpec.from_dict(read_suite_file(path), str(path)), digests)
    path = Path(text)
    data = read_suite_file(path)
    if isinstance(data, dict) and "tables" in data:
        data = [data]  # a single task
    if isinstance(data, list):
        if not data:
            raise InputError(f"{path}: an empty list, expected tasks")
        track = Track(CostChoice("fbgemm"), CostChoice("roofline"))
        return Suite(path.stem, f"tasks of {path.name}", (track,), _listed(data, path))
    return _from_spec(path, SuiteSpec.from_dict(data, str(path)), None)


def _from_spec(path: Path, spec: SuiteSpec, digests: tuple[str, ...] | None) -> Suite:
    source: TaskSource
    if isinstance(spec.tasks, DrawnTasks):
        source = DrawnSource(spec.tasks, path)
    elif isinstance(spec.tasks, PublishedTasks):
        source = _published(spec.tasks)
    else:
        source = _listed(spec.tasks.tasks, path)
    return Suite(path.stem, spec.description, spec.tracks(), source, digests, spec.solvers)


#: Redraws after which a group's limits are taken to be impossible.
MAX_DRAWS = 100_000
#: Memory that follows from a fullness is rounded up to pages.
_PAGE_BYTES = 4096


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
        self._spec = spec
        self._path = path
        self._topologies = [Topology.preset(g.topology, g.num_devices, g.memory_bytes) for g in spec.groups]
        # Groups take turns; those with fewer tasks run out earlier. Entries are (group, number of the draw).
        longest = max(group.count for group in spec.groups)
        turns = [(g, k) for k in range(longest) for g, group in enumerate(spec.groups) if k < group.count]
        self._order = [(g, spec.groups[g].draws[k] if spec.groups[g].draws else k) for g, k in turns]
        self._tables: dict[tuple[int, int], EmbeddingTable] = {}

    def __len__(self) -> int:
        return len(self._order)

    @property
    def spec(self) -> DrawnTasks:
        """How tasks are drawn."""
        return self._spec

    @property
    def groups(self) -> tuple[DrawnGroup, ...]:
        """The groups as the spec describes them."""
        return self._spec.groups

    def redrawn(self, pool: str, half: Literal["train", "test", "all"], count: int) -> DrawnSource:
        """Return a source of other tasks drawn alike, none of them chosen.

        Args:
            pool: name or path of the pool to draw from.
            half: of the pool.
            count: tasks of each group.

        Raises:
            UnknownNameError: no such pool; the closest names are in the message.
        """
        groups = tuple(dataclasses.replace(group, count=count, draws=()) for group in self._spec.groups)
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
        number = self._order[index][0]
        topology = self._topologies[number]
        if spec.groups[number].fullness is not None:
            sizes = [block_bytes(t.num_embeddings, t.embedding_dim, spec.precision, spec.optimizer) for t in drawn]
            topology = dataclasses.replace(topology, memory_bytes=_memory(spec.groups[number], sum(sizes)))
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
        draw = rng.random
        count = group.num_tables[0] + int(draw() * (group.num_tables[1] - group.num_tables[0] + 1))
        num_dims = len(group.dims)
        # Sizes are compared before scaling, so that the scaled and the full-size suite draw the same.
        least, most = group.min_total_bytes * spec.scale, group.max_total_bytes * spec.scale
        largest = group.max_table_bytes * spec.scale
        sizes = self._sizes
        for _ in range(MAX_DRAWS):
            tables = _sample(draw, self._positions, count)
            dims = [group.dims[int(draw() * num_dims)] for _ in range(count)]
            drawn = [sizes[dim][table] for table, dim in zip(tables, dims, strict=True)]
            if least <= sum(drawn) <= most and max(drawn) <= largest:
                return list(zip(tables, dims, strict=True))
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
    def _positions(self) -> list[int]:
        return list(range(len(self._rows)))

    @functools.cached_property
    def _sizes(self) -> dict[int, list[int]]:
        """Bytes of the unscaled tables, by width."""
        spec = self._spec
        widths = {dim for group in spec.groups for dim in group.dims}
        return {dim: [block_bytes(rows, dim, spec.precision, spec.optimizer) for rows in self._rows] for dim in widths}

    @functools.cached_property
    def _scaled_pool(self) -> TablePool:
        scaled = self._pool.scaled(self._spec.scale)
        if scaled.batch_size != self._spec.batch_size:
            raise InputError(
                f"{self._path}: batch_size is {self._spec.batch_size}, but pool '{self._spec.pool}' scaled by "
                f"{self._spec.scale} describes batches of {scaled.batch_size}"
            )
        return scaled


def _memory(group: DrawnGroup, total_bytes: int) -> tuple[int, ...]:
    """Return the bytes of every device, whole pages of them, that tables of so many bytes fill as the group says."""
    assert group.fullness is not None
    shares = group.memory_shares or (1,) * group.num_devices
    pages = total_bytes / group.fullness / sum(shares) / _PAGE_BYTES
    return tuple(math.ceil(pages * share) * _PAGE_BYTES for share in shares)


def _random_stream(seed: int, group: int, position: int) -> random.Random:
    """Return the random stream of one task. Only `random()` of it is used: Python keeps that stable."""
    # Hashing makes the streams of neighbouring tasks independent, whatever their numbers.
    digest = hashlib.sha256(f"{seed}/{group}/{position}".encode()).digest()
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


class ListedSource:
    """Tasks that exist already.

    Args:
        tasks: in order; those without a name are named by the suite.
        groups: name of each task's group.
    """

    def __init__(self, tasks: Sequence[ShardingTask], groups: Sequence[str]) -> None:
        self._tasks = tasks
        self._groups = groups

    def __len__(self) -> int:
        return len(self._tasks)

    def group(self, index: int) -> str:
        """Return the group that was given."""
        return self._groups[index]

    def build(self, index: int, name: str) -> ShardingTask:
        """Return the task under its own name if it has one."""
        task = self._tasks[index]
        return task if task.name else dataclasses.replace(task, name=name)


def _listed(tasks: Sequence[str | dict[str, Any]], path: Path) -> ListedSource:
    """Read task records, or task files as seen from the suite file, grouped by their number of devices."""
    read = []
    for i, task in enumerate(tasks):
        if isinstance(task, str):
            read.append(ShardingTask.load(path.parent / task))
        else:
            read.append(ShardingTask.from_dict(task, f"{path}, task {i}" if len(tasks) > 1 else str(path)))
    return ListedSource(read, [f"{task.num_devices} devices" for task in read])


def _published(spec: PublishedTasks) -> ListedSource:
    """Put published models on their devices; every model is a group."""
    tasks = []
    for entry in spec.models:
        model = load_model(entry.model)
        topology = Topology.preset(entry.topology, entry.num_devices)
        tasks.append(ShardingTask(model.pool.tables, topology, model.pool.batch_size, model.precision, model.optimizer))
    return ListedSource(tasks, [entry.model for entry in spec.models])
