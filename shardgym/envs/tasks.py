"""Tasks of episodes, given by `options` of `reset` or drawn from a suite, a list or a pool; and training tasks."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np

from shardgym.errors import InputError, UnknownNameError, check_instance, check_int
from shardgym.tasks.suites import load_suite
from shardgym.tasks.suites.sources import DrawnSource
from shardgym.tasks.task import ShardingTask

DEFAULT_SUITE = "quick-v2"
OPTIONS = ("task", "task_index")

#: Pool tasks of each group of the suite that can be drawn.
PER_GROUP = 2**14

#: Default number of pool tasks that environments play. Each is drawn and prepared once, which takes as long as several
#: episodes of it, and then kept.
POOL_TASKS = 4096


class TaskSampler:
    """Draws tasks from a sequence, uniformly, unless `options` name one.

    Args:
        suite: name of a suite; `DEFAULT_SUITE` when neither suite nor tasks are given.
        tasks: your own tasks instead of a suite.
        pool: pool whose train half tasks like those of the suite are drawn from; see `PoolTasks`.
        pool_tasks: number of different tasks of the pool; `POOL_TASKS` when not given.
        max_devices: maximum number of devices of a task; that of the sequence when not given.
        max_tables: maximum number of tables of a task, likewise.
        counts_tables: whether the number of tables is limited.

    Raises:
        InputError: tasks are given together with a suite or a pool, there are no tasks, or a bound is not a positive
            integer.
        UnknownNameError: no such suite or pool.
    """

    def __init__(
        self,
        suite: str | None,
        tasks: Sequence[ShardingTask] | None,
        pool: str | None,
        pool_tasks: int | None,
        max_devices: int | None,
        max_tables: int | None,
        *,
        counts_tables: bool,
    ) -> None:
        if pool_tasks is not None and pool is None:
            raise InputError("pool_tasks needs a pool: give pool, too")
        if tasks is None:
            name = DEFAULT_SUITE if suite is None else suite
            count = POOL_TASKS if pool_tasks is None else pool_tasks
            tasks = load_suite(name) if pool is None else PoolTasks(pool, name, count)
        elif suite is not None or pool is not None:
            raise InputError(f"expected {'a suite' if pool is None else 'a pool'} or tasks, got both: leave one out")
        if isinstance(tasks, ShardingTask):
            raise InputError("tasks: expected a list of tasks, got one: give tasks=[task]")
        self._tasks = tasks if isinstance(tasks, Sequence) else list(tasks)
        if not len(self._tasks):
            raise InputError("expected at least one task, got none")
        self.max_devices = self._bound("max_devices", max_devices, "num_devices")
        self.max_tables = self._bound("max_tables", max_tables, "num_tables") if counts_tables else None

    def pick(self, rng: np.random.Generator, options: Mapping[str, Any]) -> tuple[int, ShardingTask]:
        """Return the index and the task that `options` name, or a random one.

        Args:
            rng: random generator, used only if `options` name no task.
            options: {"task_index": int}, {"task": ShardingTask} or nothing. The index of a given task is -1.

        Raises:
            InputError: options are unknown, contradict each other, or name a task that is out of range.
        """
        for name in options:
            if name not in OPTIONS:
                raise UnknownNameError("reset option", name, OPTIONS)
        if len(options) > 1:
            raise InputError("expected one of the reset options task and task_index, got both")
        if "task" in options:
            check_instance("task", options["task"], ShardingTask, "for the index of a task, give task_index")
            return -1, self._checked(options["task"])
        count = len(self._tasks)
        index = check_int("task_index", options["task_index"]) if options else int(rng.integers(count))
        if index >= count:
            raise InputError(f"task_index {index} is out of range: expected 0 to {count - 1}")
        return index, self._checked(self._tasks[index])

    def _bound(self, name: str, given: int | None, count: str) -> int:
        if given is not None:
            return check_int(name, given, 1)
        known = getattr(self._tasks, name, None)
        return max(getattr(task, count) for task in self._tasks) if known is None else int(known)

    def _checked(self, task: ShardingTask) -> ShardingTask:
        for noun, count, most in (
            ("devices", task.num_devices, self.max_devices), ("tables", task.num_tables, self.max_tables)
        ):  # fmt: skip
            if most is not None and count > most:
                raise InputError(
                    f"task '{task.name}' has {count} {noun}, but the environment was made for at most "
                    f"{most}: make it with max_{noun}={count}"
                )
        return task


class PoolTasks(Sequence[ShardingTask]):
    """Tasks of the train half of a pool, sized like those of a suite. A task is drawn when it is indexed.

    Args:
        pool: name or path of a pool.
        suite: name or path of a suite with randomly drawn tasks. Its groups take turns, and set the numbers of tables
            and devices, widths, sizes and memory.
        count: number of tasks, which are kept once drawn; when None, `PER_GROUP` of each group, which are not kept.

    Raises:
        InputError: the suite's tasks are not drawn at random.
        UnknownNameError: no such pool or suite.
    """

    def __init__(self, pool: str, suite: str, count: int | None = None) -> None:
        source = load_suite(suite).source
        if not isinstance(source, DrawnSource):
            raise InputError(f"suite '{suite}' is not drawn at random, so it cannot say how to draw tasks from a pool")
        self._name = f"{pool}/train"
        self._source = source.redrawn(pool, "train", PER_GROUP)
        self._count = len(self._source) if count is None else check_int("pool_tasks", count, 1)
        if self._count > len(self._source):
            raise InputError(f"pool_tasks {self._count}: expected at most {len(self._source)}")
        self._kept: dict[int, ShardingTask] | None = None if count is None else {}
        groups = self._source.groups
        self.max_devices = max(group.num_devices for group in groups)  #: of a task
        self.max_tables = max(group.num_tables[1] for group in groups)  #: likewise

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> ShardingTask: ...
    @overload
    def __getitem__(self, index: slice) -> list[ShardingTask]: ...
    def __getitem__(self, index: int | slice) -> ShardingTask | list[ShardingTask]:
        positions = range(len(self))[index]
        return self._build(positions) if isinstance(positions, int) else [self._build(i) for i in positions]

    def _build(self, index: int) -> ShardingTask:
        task = None if self._kept is None else self._kept.get(index)
        if task is None:
            task = self._source.build(index, f"{self._name}/{index}")
            if self._kept is not None:
                self._kept[index] = task
        return task


def training_tasks(suites: str | Sequence[str], count: int, seed: int = 0) -> list[ShardingTask]:
    """Draw tasks to fit a solver on: like those of suites, from the train half of each suite's own pool.

    Suites are names or paths, with tasks drawn at random from the test half of a pool. Tasks of a suite are adjacent,
    because every tenth task may be kept for validation; the suite's groups take turns.

    Raises:
        InputError: a suite's tasks are not drawn from a test half, so that there is no train half.
        UnknownNameError: no such suite.
    """
    check_int("count", count, 1)
    check_int("seed", seed)
    names = [suites] if isinstance(suites, str) else list(suites)
    ends = np.linspace(0, count, len(names) + 1).round().astype(int).tolist()
    shares = [last - first for first, last in itertools.pairwise(ends)]
    return [task for name, share in zip(names, shares, strict=True) for task in _drawn_like(name, share, seed)]


def _drawn_like(suite: str, count: int, seed: int) -> list[ShardingTask]:
    source = load_suite(suite).source
    if not isinstance(source, DrawnSource) or source.spec.half != "test":
        raise InputError(
            f"suite '{suite}' is not drawn from the test half of a pool, so there is no train half to learn from: "
            "fit on a suite that is, such as dlrm4-v2, and judge on this one"
        )
    tasks = PoolTasks(source.spec.pool, suite)
    num_groups = len(source.groups)
    positions = np.random.default_rng(seed).permutation(PER_GROUP)
    return [tasks[int(positions[i // num_groups]) * num_groups + i % num_groups] for i in range(count)]
