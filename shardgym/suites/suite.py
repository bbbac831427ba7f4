"""Suite: a versioned list of tasks with its judge and its oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload

from shardgym.arguments import check_index, check_instance
from shardgym.errors import InputError
from shardgym.suites.sources import TaskSource
from shardgym.suites.tracks import Track, track_for
from shardgym.task import ShardingTask


@dataclass(frozen=True, eq=False)
class Suite(Sequence[ShardingTask]):
    """Tasks by index, built when first asked for.

    Attributes:
        name: as loaded, e.g. "dlrm4-v1".
        description: one sentence.
        tracks: ways to score plans, the default one first.
        source: builds the tasks.
        digests: one per task, compared with every task that is built; None where none are published.
    """

    name: str
    description: str
    tracks: tuple[Track, ...]
    source: TaskSource = field(repr=False)
    digests: tuple[str, ...] | None = field(default=None, repr=False)
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
        if judge is not None:
            check_instance("judge", judge, str, "the name of a cost model")
        return track_for(judge, {track.judge.cost: track for track in self.tracks}, self.tracks[0])

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
        return self._task(self._position(index))

    def group(self, index: int) -> str:
        """Return the name of the group that a task belongs to, e.g. "max_dim=16"; raises `IndexError`."""
        return self.source.group(self._position(index))

    @property
    def groups(self) -> list[str]:
        """Names of the groups in the order of their first tasks."""
        return list(dict.fromkeys(self.source.group(i) for i in range(len(self))))

    def _position(self, index: int) -> int:
        return check_index(f"suite '{self.name}'", "task", index, len(self))

    def _task(self, index: int) -> ShardingTask:
        if index not in self._built:
            task = self.source.build(index, f"{self.name}/{index}")
            if self.digests is not None and task.digest != self.digests[index]:
                raise InputError(
                    f"task {index} of suite '{self.name}' is {task.digest[:12]}, published was "
                    f"{self.digests[index][:12]}: the suite's data or its pool was changed; reinstall shardgym"
                )
            self._built[index] = task
        return self._built[index]
