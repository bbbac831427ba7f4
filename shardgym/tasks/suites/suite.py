"""Suite: a versioned list of tasks with its judge and its oracle, and how one is loaded."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

from shardgym.errors import InputError, UnknownNameError
from shardgym.files import read_text
from shardgym.tasks.suites.mixed import MixedSource
from shardgym.tasks.suites.sources import DrawnSource, DriftSource, ListedSource, SequenceSource, TaskSource
from shardgym.tasks.suites.spec import (
    SIMULATED,
    CostChoice,
    DrawnTasks,
    DriftTasks,
    MixedTasks,
    PublishedTasks,
    SequenceTasks,
    SuiteSpec,
    Track,
    read_suite_file,
)
from shardgym.tasks.task import ShardingTask

DATA = Path(__file__).with_name("data")


@dataclass(frozen=True, eq=False)
class Suite(Sequence[ShardingTask]):
    """Tasks by index, built at their first use.

    Attributes:
        name: name to load it by, e.g. "dlrm4-v2".
        description: one sentence.
        tracks: ways to score plans, the default one first.
        source: builds the tasks.
        digests: one per task, compared with every task that is built; None if none are published.
        solvers: solvers of `shardgym run` if none is named, each written as for `--solver`.
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
        """
        if judge is None:
            return self.tracks[0]
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
            InputError: a task differs from the one that was published.
        """
        if isinstance(index, slice):
            return [self._task(i) for i in range(len(self))[index]]
        return self._task(self._place(index))

    def _place(self, index: int) -> int:
        try:
            return range(len(self))[index]
        except IndexError:
            raise IndexError(f"suite '{self.name}' has {len(self)} tasks, so there is no task {index}") from None

    def _task(self, index: int) -> ShardingTask:
        if index not in self._built:
            task = self.source.build(index, f"{self.name}/{index}")
            # A suite is a promise: results of different versions of ShardGym are about the same tasks.
            if self.digests is not None and task.digest != self.digests[index]:
                raise InputError(
                    f"task {index} of suite '{self.name}' has digest {task.digest[:12]}, expected "
                    f"{self.digests[index][:12]}: the suite's data or its pool was changed; reinstall shardgym"
                )
            self._built[index] = task
        return self._built[index]

    def group(self, index: int) -> str:
        """Return the name of a task's group, e.g. "max_dim=16"; raises `IndexError`."""
        return self.source.group(self._place(index))


def suite_names() -> list[str]:
    """Names of the suites that come with the package."""
    return sorted(path.stem for path in DATA.glob("*.yaml"))


def digests_path(name: str) -> Path:
    """Return the file with the digests of a suite that comes with the package."""
    return DATA / f"{name}.digests"


def load_suite(name_or_path: str | Path, *, verify: bool = True) -> Suite:
    """Load a suite; each task is built at its first use. A process loads each suite of the package once.

    Args:
        name_or_path: a name from `suite_names()`, or the path of a file of your own: a suite in YAML or JSON, one task
            in JSON, or a JSON list of tasks.
        verify: whether the tasks of a suite that comes with the package are compared with their published digests.

    Raises:
        UnknownNameError: neither a known name nor a path; the closest names are in the message.
        InputError: the file cannot be read, has an unknown field or one out of range.
    """
    text = str(name_or_path)
    if not text.endswith((".yaml", ".yml", ".json")):
        if text not in suite_names():
            raise UnknownNameError("suite", text, suite_names())
        return _load_shipped(text, verify)
    path = Path(text)
    data = read_suite_file(path)
    if isinstance(data, dict) and "tables" in data:
        data = [data]  # a single task
    if isinstance(data, list):
        if not data:
            raise InputError(f"{path}: an empty list, expected tasks")
        track = Track(CostChoice("fbgemm"), CostChoice("roofline"))
        return Suite(path.stem, f"tasks of {path.name}", (track,), ListedSource.read(data, path))
    return _from_spec(path, SuiteSpec.from_dict(data, str(path)), None)


@functools.cache
def shipped_suite(name: str) -> Suite | None:
    """Return the suite of this name that comes with the package; None when there is none."""
    return load_suite(name) if name in suite_names() else None


@functools.cache
def _load_shipped(name: str, verify: bool) -> Suite:
    if verify and not digests_path(name).exists():
        raise InputError(f"suite '{name}' has no digests: 'python tools/draw_suite.py digests {name}' writes them")
    digests = tuple(read_text(digests_path(name)).split()) if verify else None
    path = DATA / f"{name}.yaml"
    return _from_spec(path, SuiteSpec.from_dict(read_suite_file(path), str(path)), digests)


def _from_spec(path: Path, spec: SuiteSpec, digests: tuple[str, ...] | None) -> Suite:
    source: TaskSource
    match spec.tasks:
        case DrawnTasks():
            source = DrawnSource(spec.tasks, path)
        case SequenceTasks():
            source = SequenceSource(spec.tasks)
        case DriftTasks():
            source = DriftSource(spec.tasks, path)
        case MixedTasks():
            source = MixedSource(spec.tasks, path)
        case PublishedTasks():
            source = ListedSource.of_models(spec.tasks)
        case _:
            source = ListedSource.read(spec.tasks.tasks, path)
    return Suite(path.stem, spec.description, spec.tracks(), source, digests, spec.solvers)
