"""Logs of ids in Parquet files: a row per sample, a column per feature, as a sample for `task_from_model`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from shardgym.arguments import check_int, check_name
from shardgym.errors import InputError, UnknownNameError, import_extra, missing_file_remedy
from shardgym.ids import Bags


def read_log(path: str | Path, features: Iterable[str], samples: int | None = None) -> dict[str, Bags]:
    """Return the ids of some features, in the order of the file.

    Args:
        path: of the Parquet file.
        features: names of columns; each holds an id or a list of ids per sample, or nothing for no id.
        samples: read this many rows at most; all by default.

    Raises:
        InputError: the file cannot be read, is empty, lacks a column, or a column holds no whole numbers.
        MissingDependencyError: pyarrow is not installed.
    """
    parquet = import_extra("pyarrow.parquet", "reading a log of ids")
    path = check_name("path", path)
    samples = None if samples is None else check_int("samples", samples, 1)
    try:
        table = parquet.ParquetFile(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}{missing_file_remedy(path)}") from None
    except Exception as error:  # pyarrow's own errors for what is no Parquet file
        raise InputError(f"{path}: not a Parquet file ({str(error).splitlines()[0][:160]})") from None
    columns = list(dict.fromkeys(features))
    known = table.schema_arrow.names
    for feature in columns:
        if feature not in known:
            raise UnknownNameError(f"column in {path}", feature, known)
    rows = table.read(columns=columns) if samples is None else _first_rows(table, columns, samples)
    if not rows.num_rows:
        raise InputError(f"{path}: has no samples, expected a row for each")
    return {feature: _bags(f"{path}, column '{feature}'", rows.column(feature)) for feature in columns}


def _first_rows(table: Any, columns: list[str], samples: int) -> Any:
    """Read no more of a file than needed."""
    pyarrow = import_extra("pyarrow", "reading a log of ids")
    batches = []
    left = samples
    for batch in table.iter_batches(columns=columns):
        batches.append(batch.slice(0, left))
        left -= batches[-1].num_rows
        if not left:
            break
    return pyarrow.Table.from_batches(batches, table.schema_arrow.empty_table().select(columns).schema)


def _bags(where: str, column: Any) -> Bags:
    types = import_extra("pyarrow.types", "reading a log of ids")
    compute = import_extra("pyarrow.compute", "reading a log of ids")
    is_list = types.is_list(column.type) or types.is_large_list(column.type)
    value_type = column.type.value_type if is_list else column.type
    if not types.is_integer(value_type):
        raise InputError(f"{where}: holds {column.type}, expected whole numbers or lists of them")
    present = column.is_valid()
    lengths = compute.list_value_length(column) if is_list else present.cast("int64")
    values = compute.list_flatten(column) if is_list else column.drop_null()
    if values.null_count:
        raise InputError(f"{where}: a list holds {values.null_count} empty values, expected whole numbers")
    return Bags(
        values.combine_chunks().to_numpy(zero_copy_only=False).astype(np.int64),
        compute.fill_null(lengths, 0).combine_chunks().to_numpy(zero_copy_only=False).astype(np.int64),
    )
