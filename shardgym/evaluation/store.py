"""Records on disk: `records.jsonl`, one line per result, and the tasks that do not come with shardgym."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shardgym.arguments import check_name
from shardgym.errors import InputError, import_extra
from shardgym.evaluation.result import Key, Result, RunInfo
from shardgym.files import append_flushed, drop_torn_line, make_folder, read_lines, write_whole
from shardgym.provenance import utc_now
from shardgym.task import ShardingTask

if TYPE_CHECKING:
    import pandas as pd

RECORDS = "records.jsonl"
TASKS = "tasks"


def record_files(paths: Iterable[str | Path]) -> list[Path]:
    """Return records files: files as given, and every `records.jsonl` below a folder.

    Raises:
        InputError: a path does not exist, or a folder holds no records.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        found = sorted(path.rglob(RECORDS)) if path.is_dir() else [path]
        if not path.exists():
            raise InputError(f"{path} does not exist: expected a records file, or a folder with one")
        if not found:
            raise InputError(f"{path} holds no {RECORDS}: expected the folder of a run")
        files += found
    return list(dict.fromkeys(file.resolve() for file in files)) if len(files) > 1 else files


def read_records(path: str | Path) -> list[Result]:
    """Read the whole lines of a records file; a last line that was cut off by a kill is left out.

    Raises:
        InputError: a line is damaged, or two lines are about the same task, solver and seed; file and line are named.
    """
    file = Path(path)
    results: list[Result] = []
    seen: dict[Key, int] = {}
    for line in read_lines(file):
        if not line.whole:
            break
        try:
            result = Result.from_json(line.text, source=line.where(file))
        except InputError as error:
            raise InputError(
                f"{error}; remove the line, and a run makes the record again; "
                "'shardgym verify' names all lines that are damaged"
            ) from None
        first = seen.setdefault(result.key, line.number)
        if first != line.number:
            raise InputError(
                f"{line.where(file)}: solver '{result.solver}', task {result.task_index}, seed {result.seed} "
                f"has a record on line {first} already: remove one of them"
            )
        results.append(result)
    return results


def read_results(path: str | Path) -> pd.DataFrame:
    """Read results into a pandas DataFrame, one row per record, in the order of files and lines.

    Columns: `suite`, `task_index`, `task_hash`, `solver` (the name or label that tables show), `made_from` (the name
    that it was made from), `seed`, `status`, `reason`, `total_ms` and `standard_error_ms` (NaN where there is none),
    `solve_time_s`, `time_limit_s`, `judge`, `judge_version`, `oracle`, `hardware`, `started`, `commit`, `file`.

    Args:
        path: a records file, or a folder that is searched for `records.jsonl`.

    Raises:
        InputError: there are no records, or a line is damaged; file and line are named.
        MissingDependencyError: pandas is not installed.
    """
    pandas = import_extra("pandas", "reading results into a table", extra="pandas")
    nan = float("nan")
    rows = []
    for file in record_files([check_name("path", path)]):
        for result in read_records(file):
            cost = result.cost if result.status == "ok" else None
            rows.append({
                "suite": result.suite,
                "task_index": result.task_index,
                "task_hash": result.task_hash,
                "solver": result.solver,
                "made_from": result.made_from or result.solver,
                "seed": result.seed,
                "status": result.status,
                "reason": result.reason,
                "total_ms": nan if cost is None else cost.total_ms,
                "standard_error_ms": nan if cost is None or not cost.noise else cost.noise * cost.total_ms,
                "solve_time_s": result.solve_time_s,
                "time_limit_s": nan if result.time_limit_s is None else result.time_limit_s,
                "judge": result.judge,
                "judge_version": None if result.cost is None else result.cost.version,
                "oracle": result.oracle,
                "hardware": result.hardware,
                "started": result.started,
                "commit": result.commit,
                "file": str(file),
            })  # fmt: skip
    if not rows:
        raise InputError(f"{path}: no records yet; expected at least one whole line")
    frame: pd.DataFrame = pandas.DataFrame(rows)
    return frame


class Store:
    """The records file of one folder, open for appending. The caller has locked the folder (`only_writer`).

    Args:
        folder: where the file is.
        run: what is about to run; joined with what the folder holds.

    Attributes:
        path: the records file.
        run: what all records of the folder are about; written before the first of them.
        results: the records that it holds.
        notices: what was done to the file when it was opened, one sentence each.

    Raises:
        InputError: the folder holds records of something else, or a damaged line.
    """

    def __init__(self, folder: Path, run: RunInfo) -> None:
        self.folder = folder
        self.path = folder / RECORDS
        self.notices: list[str] = []
        self.results = read_records(self.path) if self.path.exists() else []
        torn = drop_torn_line(self.path)
        if torn is not None:
            self.notices.append(f"{torn.where(self.path)}: dropped a record that was cut off while it was written")
        # A run that failed before its first record leaves nothing that another one could be mixed with.
        self.run = run.join(folder) if self.results else run

    def keep(self, results: Sequence[Result]) -> None:
        """Keep only `results`; when that drops any, the file as it was stays under another name."""
        dropped = len(self.results) - len(results)
        if not dropped:
            return
        aside = _unused_name(self.path)
        # A link and a rename: at no moment is there neither file.
        os.link(self.path, aside)
        write_whole(self.path, _lines(results))
        self.results = list(results)
        self.notices.append(f"{dropped} failed results will be made again; the old records are in {aside}")

    def add(self, results: Sequence[Result], renewed: Sequence[Result] = ()) -> None:
        """Append records with one write and flush them to the disk.

        Args:
            results: new records.
            renewed: records that take the place of those of the same task, solver and seed. The file is then written
                anew, as a whole.

        Raises:
            InputError: the disk took only a part, which was removed again.
        """
        if not self.results:
            self.run.write(self.folder)
        if renewed:
            by_key = {result.key: result for result in renewed}
            self.results = [by_key.get(result.key, result) for result in self.results] + list(results)
            write_whole(self.path, _lines(self.results))
        else:
            append_flushed(self.path, _lines(results).encode())
            self.results += results


def _lines(results: Iterable[Result]) -> str:
    return "".join(result.to_json() + "\n" for result in results)


def set_aside(folder: Path) -> Path | None:
    """Rename the records of a folder; returns the new name, or None when there are none."""
    path = folder / RECORDS
    return path.rename(_unused_name(path)) if path.exists() else None


def _unused_name(path: Path) -> Path:
    """Return a name for an old records file that is not taken."""
    stem = f"records-{utc_now()[:19].replace(':', '')}"
    names = (path.with_name(f"{stem}{number or ''}.old") for number in itertools.count())
    return next(name for name in names if not name.exists())


class TaskSequence(Protocol):
    """What a run needs of a suite: a name, and tasks by position."""

    @property
    def name(self) -> str:
        """Name of the suite, version included."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> ShardingTask: ...


@functools.cache
def _shipped_suite(name: str) -> Sequence[ShardingTask] | None:
    """Return the suite of this name that comes with shardgym; None when there is none."""
    from shardgym.suites import load_suite, suite_names

    return load_suite(name) if name in suite_names() else None


def write_task(folder: Path, suite: TaskSequence, index: int, task: ShardingTask) -> None:
    """Write a task next to its records unless it comes with shardgym.

    Raises:
        InputError: a suite has the name, but not the tasks, of one that comes with shardgym.
    """
    shipped = _shipped_suite(suite.name)
    if shipped is None:
        path = folder / TASKS / f"{task.digest}.json"
        if not path.exists():
            make_folder(path.parent)
            write_whole(path, task.to_json() + "\n")
    elif index >= len(shipped) or shipped[index].digest != task.digest:
        raise InputError(f"suite '{suite.name}' differs from the suite of that name in shardgym: give it another name")


def read_task(result: Result, folder: Path) -> ShardingTask:
    """Return the task that a record in `folder` is about.

    Raises:
        InputError: no task is at hand that has the record's hash.
    """
    shipped = _shipped_suite(result.suite)
    if shipped is None:
        path = folder / TASKS / f"{result.task_hash}.json"
        if not path.exists():
            raise InputError(f"suite '{result.suite}' does not come with shardgym and {path} is missing")
        task = ShardingTask.load(path)
        if task.digest != result.task_hash:
            raise InputError(f"{path} holds task {task.digest[:12]}, not what its name says")
        return task
    if result.task_index >= len(shipped):
        raise InputError(
            f"suite '{result.suite}' has {len(shipped)} tasks, the record is about task {result.task_index}"
        )
    task = shipped[result.task_index]
    if task.digest != result.task_hash:
        raise InputError(
            f"task {result.task_index} of suite '{result.suite}' is {task.digest[:12]}, "
            f"the record is about {result.task_hash[:12]}"
        )
    return task
