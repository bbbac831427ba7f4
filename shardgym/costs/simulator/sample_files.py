"""Files of measured samples: Parquet, one kind of row per file, several files per data set.

A data set is a folder; every `compute*.parquet` and `steps*.parquet` in it belongs to it. All files of a kind are of
one hardware tag. Columns are checked when they are written and when they are read.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import Shards
from shardgym.costs.simulator.samples import (
    ROLES,
    STEP_PARTS,
    ComputeRow,
    ComputeSamples,
    Labels,
    StepRow,
    StepSamples,
    Strings,
)
from shardgym.errors import InputError, import_extra
from shardgym.files import check_file, write_whole
from shardgym.records import CONFIG, Name, Record
from shardgym.tables.table import REUSE_BINS
from shardgym.tasks.task import ELEMENT_BYTES, OPTIMIZER_STATE

Kind = Literal["compute", "steps"]

_METADATA_KEY = b"shardgym"

_ROWS: dict[Kind, type[ComputeRow]] = {"compute": ComputeRow, "steps": StepRow}

#: Columns whose Arrow type does not follow from the annotation.
_NARROW = {"embedding_dim": "int32", "repeat": "int32", "device": "int32", "num_devices": "int32"}
_ARROW_TYPES = {str: "string", int: "int64", float: "float64"}

#: Smallest and largest value of numbers. A time of 0 cannot be: even an empty kernel takes longer than a tick.
_TIME = (1e-9, 1e9)
_BOUNDS: dict[str, tuple[float, float]] = {
    "repeat": (0, 2**31), "batch_size": (1, 2**26), "num_embeddings": (1, 2**40), "embedding_dim": (1, 2**16),
    "pooling_factor": (0, 1e6), "reuse_histogram": (0, 1), "forward_ms": _TIME, "backward_ms": _TIME,
    "noise": (0, 1e6), "device": (0, 65535), "num_devices": (1, 65536), "samples": (0, 2**26),
    "plan_shards": (1, 2**31), "plan_ids": (0, 1e15), "plan_columns": (1, 2**40),
    **{f"{part}_ms": _TIME for part in STEP_PARTS},
}  # fmt: skip
_CHOICES = {"role": ROLES, "precision": tuple(ELEMENT_BYTES), "optimizer": tuple(OPTIMIZER_STATE)}

#: Lists of a row that must be equally long.
_PARALLEL = ("num_embeddings", "embedding_dim", "pooling_factor", "reuse_histogram", "table_name")


@dataclass(frozen=True, config=CONFIG)
class DataInfo(Record):
    """What a file of samples says about itself, under the key `shardgym` of its metadata.

    Attributes:
        kind: which rows it holds.
        hardware: tag of the machine that was measured.
        versions: of what can change a time.
        settings: of the collection.
        created: UTC, ISO 8601.
    """

    kind: Kind
    hardware: Name
    versions: dict[str, str]
    settings: dict[str, Any]
    created: Annotated[str, Field(min_length=1)]
    schema: Literal["shardgym.samples/1"] = "shardgym.samples/1"


def write_rows(path: str | Path, rows: Sequence[ComputeRow], info: DataInfo) -> None:
    """Write one file of samples; it appears whole or not at all.

    Args:
        path: ends in ".parquet"; `read_compute` and `read_steps` find it when it is named `compute*` or `steps*`.
        rows: all of the kind that `info` names.
        info: becomes the file's metadata.

    Raises:
        InputError: a row has a wrong type or an impossible value, or the file cannot be written there.
        MissingDependencyError: pyarrow is not installed.
    """
    pa, pq = _import_pyarrow()
    path = Path(path)
    try:
        table = pa.Table.from_pylist([vars(row) for row in rows], schema=_arrow_schema(info.kind))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"{path}: cannot write these {info.kind} rows: {_one_line(error)}") from None
    _check_columns(table, info.kind, str(path))
    table = table.replace_schema_metadata({_METADATA_KEY: info.to_json().encode()})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_whole(path, buffer.getvalue())


def read_info(path: str | Path) -> DataInfo:
    """Read what a file says about itself.

    Raises:
        InputError: not a whole Parquet file, or not one of samples, or of another schema version.
        MissingDependencyError: pyarrow is not installed.
    """
    _, pq = _import_pyarrow()
    check_file(path)
    try:
        metadata = pq.read_schema(path).metadata or {}
    except Exception as error:  # damaged files make the reader raise all kinds of errors
        raise _unreadable(path, error) from None
    if _METADATA_KEY not in metadata:
        raise InputError(f"{path}: a Parquet file without the metadata key 'shardgym': it holds no samples of ShardGym")
    return DataInfo.from_json(metadata[_METADATA_KEY], source=f"{path}: metadata")


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
    _, pq = _import_pyarrow()
    info = read_info(path)
    if info.kind != kind:
        raise InputError(f"{path}: kind: expected a file of '{kind}' rows, it holds '{info.kind}' rows")
    if hardware is not None and info.hardware != hardware:
        raise InputError(f"{path}: hardware: measured on '{info.hardware}', expected '{hardware}'")
    try:
        table = pq.ParquetFile(path).read()
        table.validate(full=True)  # e.g. text that is not UTF-8
    except Exception as error:
        raise _unreadable(path, error) from None
    return info, _check_columns(table, kind, str(path))


def data_files(folder: str | Path, kind: Kind) -> list[Path]:
    """Return the files of a kind in a data set, sorted; there may be none."""
    return sorted(Path(folder).glob(f"{kind}*.parquet"))


def read_compute(*folders: str | Path) -> ComputeSamples:
    """Read all compute samples of one or several data sets.

    Collections are named as their files are; of several folders, the folder's name stands before it. The files of one
    folder must be of one hardware tag; those of several folders need not.

    Raises:
        InputError: there are none, or a file is not as it should be, see `read_file`.
        MissingDependencyError: pyarrow is not installed.
    """
    return _compute_samples(*_read_all(folders, "compute"))


def read_steps(*folders: str | Path) -> StepSamples:
    """Read all devices in complete steps of one or several data sets; otherwise like `read_compute`."""
    return _step_samples(*_read_all(folders, "steps"))


def no_compute() -> ComputeSamples:
    """Return the compute samples of data sets that have none."""
    return _compute_samples(_arrow_schema("compute").empty_table(), np.zeros(0, dtype=np.str_))


def no_steps() -> StepSamples:
    """Return the steps of data sets that have none."""
    return _step_samples(_arrow_schema("steps").empty_table(), np.zeros(0, dtype=np.str_))


def _step_samples(table: Any, collection: Strings) -> StepSamples:
    return StepSamples(
        compute=_compute_samples(table, collection),
        plan=_strings(table, "plan"),
        device=_ints(table, "device"),
        num_devices=_ints(table, "num_devices"),
        samples=_ints(table, "samples"),
        plan_shards=_ints(table, "plan_shards"),
        plan_ids=_floats(table, "plan_ids"),
        plan_columns=_ints(table, "plan_columns"),
        parts_ms=np.column_stack([_floats(table, f"{part}_ms") for part in STEP_PARTS]),
    )


def _compute_samples(table: Any, collection: Strings) -> ComputeSamples:
    counts = _list_lengths(table.column("num_embeddings").combine_chunks())
    precision = _strings(table, "precision")
    optimizer = _strings(table, "optimizer")
    state = np.array([OPTIMIZER_STATE[name] for name in optimizer], dtype=np.float64).reshape(-1, 2)
    shards = Shards(
        rows=_floats(table, "num_embeddings"),
        columns=_floats(table, "embedding_dim"),
        pooling=_floats(table, "pooling_factor"),
        reuse=_floats(table, "reuse_histogram").reshape(-1, REUSE_BINS),
        batch=np.repeat(_floats(table, "batch_size"), counts),
        element_bytes=np.repeat(np.array([ELEMENT_BYTES[name] for name in precision], dtype=np.float64), counts),
        state_per_weight=np.repeat(state[:, 0], counts),
        state_per_row=np.repeat(state[:, 1], counts),
    )
    ms = np.column_stack([_floats(table, "forward_ms"), _floats(table, "backward_ms")])
    labels = _labels(table, collection)
    return ComputeSamples(labels, shards, counts, ms, precision, optimizer, _strings(table, "table_name"))


def _import_pyarrow() -> tuple[Any, Any]:
    purpose = "reading and writing samples"
    return import_extra("pyarrow", purpose), import_extra("pyarrow.parquet", purpose)


def collection_name(path: Path, folders: Sequence[str | Path]) -> str:
    """Return what the collection of a file is called: files of several folders may have the same names."""
    return path.name if len(folders) == 1 else f"{path.parent.name}/{path.name}"


def _read_all(folders: Sequence[str | Path], kind: Kind) -> tuple[Any, Strings]:
    """Read and join the files of a kind; the first one of a folder says of which hardware its others must be.

    Returns:
        A `pyarrow.Table`, and the name of the collection that each row is from.
    """
    tables: list[Any] = []
    names: list[str] = []
    for folder in folders:
        hardware = None
        for path in data_files(folder, kind):
            info, table = read_file(path, kind, hardware)
            hardware = info.hardware
            tables.append(table)
            names.append(collection_name(path, folders))
    if not tables:
        raise no_files(folders, kind)
    return _import_pyarrow()[0].concat_tables(tables), np.repeat(names, [table.num_rows for table in tables])


def no_files(folders: Sequence[str | Path], *kinds: Kind) -> InputError:
    """Return the error that folders hold no file of some kinds."""
    missing = " or ".join(f"{kind}*.parquet" for kind in kinds)
    where = ", ".join(map(str, folders))
    return InputError(f"{where}: no file named {missing}: expected a folder written by 'shardgym collect'")


def _arrow_schema(kind: Kind) -> Any:
    """Return the `pyarrow.Schema` of the rows of a kind."""
    pa, _ = _import_pyarrow()
    columns = []
    for name, hint in get_type_hints(_ROWS[kind]).items():
        is_list = get_origin(hint) is list
        if name == "reuse_histogram":
            arrow_type = pa.list_(pa.list_(pa.float32(), REUSE_BINS))
        else:
            arrow_type = getattr(pa, _NARROW.get(name) or _ARROW_TYPES[get_args(hint)[0] if is_list else hint])()
            arrow_type = pa.list_(arrow_type) if is_list else arrow_type
        columns.append(pa.field(name, arrow_type, nullable=False))
    return pa.schema(columns)


def _check_columns(table: Any, kind: Kind, source: str) -> Any:
    """Check types, ranges and lengths of all columns of a `pyarrow.Table`.

    Args:
        table: with the columns of the kind, and maybe others.
        kind: what it should hold.
        source: the file, for messages.

    Returns:
        The table with exactly the columns of the kind, in order.

    Raises:
        InputError: the first thing that is wrong, with file, field and row.
    """
    schema = _arrow_schema(kind)
    for field in schema:
        if field.name not in table.column_names:
            raise InputError(f"{source}: column '{field.name}' is missing")
        given = table.schema.field(field.name).type
        if given != field.type:
            raise InputError(f"{source}: column '{field.name}' has type {given}, expected {field.type}")
    table = table.select(schema.names)
    if table.num_rows == 0:
        raise InputError(f"{source}: no rows")
    for name in schema.names:
        _check_values(table.column(name).combine_chunks(), name, source)
    expected = _list_lengths(table.column(_PARALLEL[0]).combine_chunks())
    for name in _PARALLEL:
        given = _list_lengths(table.column(name).combine_chunks())
        if (given != expected).any():
            row = int((given != expected).argmax())
            raise InputError(f"{source}: column '{name}', row {row}: {given[row]} entries, expected {expected[row]}")
    if (expected == 0).any():
        row = int((expected == 0).argmax())
        raise InputError(f"{source}: column '{_PARALLEL[0]}', row {row}: a sample without shards")
    if kind == "steps":
        device, size = (table.column(name).to_numpy() for name in ("device", "num_devices"))
        if (device >= size).any():
            row = int((device >= size).argmax())
            raise InputError(f"{source}: column 'device', row {row}: {device[row]}, expected less than {size[row]}")
    return table


def _check_values(column: Any, name: str, source: str) -> None:
    """Raise `InputError` for the first value of a column, at any depth of lists, that is missing or impossible."""
    rows = np.arange(len(column))
    while True:
        if column.null_count:
            row = rows[np.argmax(column.is_null().to_pylist())]
            raise InputError(f"{source}: column '{name}', row {row}: no value")
        if not hasattr(column.type, "value_type"):
            break
        rows = np.repeat(rows, _list_lengths(column))
        column = column.flatten()
    if name in _BOUNDS:
        low, high = _BOUNDS[name]
        values = column.to_numpy(zero_copy_only=False)
        # Written so that NaN is bad, too.
        bad = ~((values >= low) & (values <= high))
        expected = f"a number from {low:g} to {high:g}"
    elif name in _CHOICES:
        values = np.array(column.to_pylist(), dtype=object)
        bad = ~np.isin(values.astype(str), _CHOICES[name])
        expected = f"one of {', '.join(_CHOICES[name])}"
    else:
        return
    if bad.any():
        first = bad.argmax()
        raise InputError(f"{source}: column '{name}', row {rows[first]}: {values[first]!s:.40}, expected {expected}")


def _list_lengths(column: Any) -> Ints:
    """Return the lengths of the lists of a column, fixed-size lists included."""
    size = getattr(column.type, "list_size", None)
    lengths = np.full(len(column), size) if size is not None else column.value_lengths().to_numpy(zero_copy_only=False)
    return np.asarray(lengths, dtype=np.int64)


def _labels(table: Any, collection: Strings) -> Labels:
    return Labels(
        sample_id=_strings(table, "sample_id"),
        role=_strings(table, "role"),
        content=_strings(table, "content"),
        repeat=_ints(table, "repeat"),
        noise=_floats(table, "noise"),
        collection=collection,
    )


def _values(table: Any, name: str) -> Any:
    """Return the values of a column, lists one after the other."""
    column = table.column(name).combine_chunks()
    while hasattr(column.type, "value_type"):
        column = column.flatten()
    return column


def _floats(table: Any, name: str) -> Floats:
    return np.asarray(_values(table, name).to_numpy(zero_copy_only=False), dtype=np.float64)


def _ints(table: Any, name: str) -> Ints:
    return np.asarray(_values(table, name).to_numpy(zero_copy_only=False), dtype=np.int64)


def _strings(table: Any, name: str) -> Strings:
    return np.array(_values(table, name).to_pylist(), dtype=np.str_)


def _unreadable(path: str | Path, error: Exception) -> InputError:
    return InputError(f"{path}: not a whole Parquet file, it may be truncated ({_one_line(error)})")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
