"""Files of measured samples: Parquet, one kind of row per file, several files per data set.

A data set is a folder; every `compute*.parquet` and `comm*.parquet` in it belongs to it. All of its files are of one
hardware tag.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardgym.costs.simulator.checks import check_columns
from shardgym.costs.simulator.layout import CommRow, ComputeRow, DataInfo, Kind, arrow_schema
from shardgym.costs.simulator.optional import need
from shardgym.costs.simulator.samples import CommSamples, ComputeSamples, comm_samples, compute_samples
from shardgym.errors import InputError

__all__ = [
    "CommRow", "ComputeRow", "DataInfo", "data_files", "no_exchanges", "read_comm", "read_compute", "read_file",
    "read_info", "write_rows",
]  # fmt: skip

_KEY = b"shardgym"
_PURPOSE = "reading and writing samples"


def write_rows(path: str | Path, rows: Sequence[ComputeRow] | Sequence[CommRow], info: DataInfo) -> None:
    """Write one file of samples; it appears whole or not at all.

    Args:
        path: ends in ".parquet"; `read_compute` and `read_comm` find it when it is named `compute*` or `comm*`.
        rows: all of the kind that `info` names.
        info: becomes the file's metadata.

    Raises:
        InputError: a row has a wrong type or an impossible value, or the file cannot be written there.
        MissingDependencyError: pyarrow is not installed.
    """
    pa, pq = need("pyarrow", _PURPOSE), need("pyarrow.parquet", _PURPOSE)
    path, schema = Path(path), arrow_schema(info.kind)
    try:
        table = pa.Table.from_pylist([row._asdict() for row in rows], schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"{path}: cannot write these {info.kind} rows: {_one_line(error)}") from None
    check_columns(table, info.kind, str(path))
    table = table.replace_schema_metadata({_KEY: info.to_json().encode()})
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    os.close(handle)
    try:
        pq.write_table(table, temporary, compression="zstd")
        # mkstemp makes private files; data is as readable as any other file of the user.
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def read_info(path: str | Path) -> DataInfo:
    """Read what a file says about itself.

    Raises:
        InputError: not a whole Parquet file, or not one of samples, or of another schema version.
        MissingDependencyError: pyarrow is not installed.
    """
    pa, pq = need("pyarrow", _PURPOSE), need("pyarrow.parquet", _PURPOSE)
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowInvalid) as error:
        raise _unreadable(path, error) from None
    if _KEY not in metadata:
        raise InputError(f"{path}: a Parquet file without the metadata key 'shardgym': it holds no samples of ShardGym")
    return DataInfo.from_json(metadata[_KEY], source=f"{path}: metadata")


def read_file(path: str | Path, kind: Kind, hardware: str | None = None) -> tuple[DataInfo, Any]:
    """Read and check one file of samples.

    Args:
        path: the file.
        kind: what rows it must hold.
        hardware: the tag it must have; any when None.

    Returns:
        Its metadata and a `pyarrow.Table` with the columns of the kind, in order.

    Raises:
        InputError: truncated or foreign, of another schema, kind or hardware, a column missing or of another type, or
            an impossible value; the message names file and field.
        MissingDependencyError: pyarrow is not installed.
    """
    pa, pq = need("pyarrow", _PURPOSE), need("pyarrow.parquet", _PURPOSE)
    info = read_info(path)
    if info.kind != kind:
        raise InputError(f"{path}: kind: expected a file of '{kind}' rows, it holds '{info.kind}' rows")
    if hardware is not None and info.hardware != hardware:
        raise InputError(f"{path}: hardware: measured on '{info.hardware}', expected '{hardware}'")
    try:
        table = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowInvalid) as error:
        raise _unreadable(path, error) from None
    return info, check_columns(table, kind, str(path))


def data_files(folder: str | Path, kind: Kind) -> list[Path]:
    """Return the files of a kind in a data set, sorted.

    Raises:
        InputError: there are none.
    """
    files = sorted(Path(folder).glob(f"{kind}*.parquet"))
    if not files:
        raise InputError(f"{folder}: no file named {kind}*.parquet: expected a folder written by 'shardgym collect'")
    return files


def read_compute(folder: str | Path, hardware: str | None = None) -> ComputeSamples:
    """Read all compute samples of a data set; raises `InputError` as `read_file` does."""
    return compute_samples(_concatenated(folder, "compute", hardware))


def read_comm(folder: str | Path, hardware: str | None = None) -> CommSamples:
    """Read all communication samples of a data set; raises `InputError` as `read_file` does."""
    return comm_samples(_concatenated(folder, "comm", hardware))


def no_exchanges() -> CommSamples:
    """Return the communication samples of a data set that has none."""
    return comm_samples(arrow_schema("comm").empty_table())


def _concatenated(folder: str | Path, kind: Kind, hardware: str | None) -> Any:
    pa, tables = need("pyarrow", _PURPOSE), []
    for path in data_files(folder, kind):
        info, table = read_file(path, kind, hardware)
        hardware = info.hardware
        tables.append(table)
    return pa.concat_tables(tables)


def _unreadable(path: str | Path, error: Exception) -> InputError:
    return InputError(f"{path}: not a whole Parquet file, it may be truncated ({_one_line(error)})")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
