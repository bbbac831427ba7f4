"""Results as a table: `shardgym.read_results`."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from shardgym.arguments import check_list, check_name
from shardgym.errors import InputError, import_extra
from shardgym.evaluation.result import read_records, record_files

if TYPE_CHECKING:
    import pandas as pd

#: Of the table that `read_results` returns.
COLUMNS = [
    "suite", "task_index", "task_hash", "solver", "made_from", "seed", "status", "reason", "total_ms",
    "standard_error_ms", "solve_time_s", "cpu_time_s", "training_time_s", "time_limit_s", "weights_digest", "judge",
    "judge_version", "oracle", "hardware", "started", "commit", "file",
]  # fmt: skip

#: Columns of numbers that a record may lack.
NUMBERS = ("total_ms", "standard_error_ms", "cpu_time_s", "training_time_s", "time_limit_s")


def read_results(paths: str | Path | Iterable[str | Path]) -> pd.DataFrame:
    """Read results into a pandas DataFrame, one row per record, in the order of files and lines.

    The columns are `COLUMNS`: fields of `Result`, `made_from` being the name where there is no label, and of its cost
    `total_ms`, `standard_error_ms` and `judge_version`. Where there is no number, it is NaN.

    Args:
        paths: a records file, a folder that is searched for such files, a pattern such as "results/*-v1*" (`**`
            stands for any folders), or several of these. A file that is named twice is read once.

    Raises:
        InputError: there are no records, a pattern fits nothing, or a line is damaged; file and line are named.
        MissingDependencyError: pandas is not installed.
    """
    pandas = import_extra("pandas", "reading results into a table")
    given = (
        [paths]
        if isinstance(paths, str | Path) or not isinstance(paths, Iterable)
        else check_list("paths", paths, "paths")
    )
    rows = []
    for file in record_files([found for path in given for found in _expanded(check_name("path", path))]):
        for result in read_records(file):
            cost = result.cost if result.status == "ok" else None
            row = {column: getattr(result, column, None) for column in COLUMNS}
            row["made_from"] = result.made_from or result.solver
            row["total_ms"] = None if cost is None else cost.total_ms
            row["standard_error_ms"] = None if cost is None or not cost.noise else cost.noise * cost.total_ms
            row["judge_version"] = None if result.cost is None else result.cost.version
            rows.append(row | {"file": str(file)})
    if not rows:
        raise InputError(f"{', '.join(map(str, given))}: no records yet; expected at least one whole line")
    frame: pd.DataFrame = pandas.DataFrame(rows, columns=COLUMNS)
    return frame.astype(dict.fromkeys(NUMBERS, float))


def _expanded(path: str) -> list[str]:
    """Return what a pattern fits; a path that exists, or holds no wildcard, as it is."""
    if Path(path).exists() or not glob.has_magic(path):
        return [path]
    found = sorted(glob.glob(path, recursive=True))  # noqa: PTH207 - patterns may be absolute
    if not found:
        raise InputError(f"'{path}' fits no file or folder: expected a pattern of records files or folders with some")
    return found
