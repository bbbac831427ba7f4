"""The records of a run on disk: one JSON line per result, appended and flushed, whole after a kill."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from shardgym.errors import InputError
from shardgym.evaluation.result import Result
from shardgym.evaluation.resume import Key, key_of
from shardgym.files import Line, append_flushed, drop_torn_line, read_lines, write_whole
from shardgym.provenance import utc_now

RECORDS = "records.jsonl"


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

    Args:
        path: a records file.

    Raises:
        InputError: a line is damaged, or two lines are about the same task, solver and seed; file and line are named.
    """
    file = Path(path)
    results: list[Result] = []
    seen: dict[Key, int] = {}
    for line in read_lines(file):
        if not line.whole:
            break
        result = _read(line, file)
        first = seen.setdefault(key_of(result), line.number)
        if first != line.number:
            raise InputError(
                f"{line.where(file)}: solver '{result.solver}', task {result.task_index}, seed {result.seed} "
                f"has a record on line {first} already: remove one of them"
            )
        results.append(result)
    return results


def _read(line: Line, file: Path) -> Result:
    try:
        return Result.from_json(line.text, source=line.where(file))
    except InputError as error:
        remedy = "remove the line, and a run makes the record again; 'shardgym verify' names all lines that are damaged"
        raise InputError(f"{error}; {remedy}") from None


class Store:
    """The records file of one folder, open for appending. The caller holds the folder (`only_writer`).

    Attributes:
        folder: where the file is.
        path: the records file.
        results: the records that it holds.
        notices: what was done to the file when it was opened, one sentence each.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / RECORDS
        self.notices: list[str] = []
        self.results = read_records(self.path) if self.path.exists() else []
        torn = drop_torn_line(self.path)
        if torn is not None:
            self.notices.append(f"{torn.where(self.path)}: dropped a record that was cut off while it was written")

    def keep(self, results: Sequence[Result]) -> None:
        """Keep only `results`; when that drops any, the file as it was stays under another name."""
        dropped = len(self.results) - len(results)
        if not dropped:
            return
        aside = _aside(self.path)
        # A link and a rename: at no moment is there neither file.
        os.link(self.path, aside)
        write_whole(self.path, "".join(_line(result) for result in results))
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
        if renewed:
            by_key = {key_of(result): result for result in renewed}
            held = [by_key.get(key_of(result), result) for result in self.results]
            write_whole(self.path, "".join(_line(result) for result in [*held, *results]))
            self.results = [*held, *results]
            return
        append_flushed(self.path, "".join(_line(result) for result in results).encode())
        self.results += results


def _line(result: Result) -> str:
    return result.to_json() + "\n"


def set_aside(folder: Path) -> Path | None:
    """Rename the records of a folder; returns the new name, or None when there are none."""
    path = folder / RECORDS
    return path.rename(_aside(path)) if path.exists() else None


def _aside(path: Path) -> Path:
    """Return a name for an old records file that is not taken."""
    stem = f"records-{utc_now()[:19].replace(':', '')}"
    names = (path.with_name(f"{stem}{number or ''}.old") for number in itertools.count())
    return next(name for name in names if not name.exists())
