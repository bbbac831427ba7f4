"""Parquet files of ids: a row per sample, and a column of ids or of lists of ids per feature."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardgym.errors import InputError, UnknownNameError, import_extra, one_line
from shardgym.files import check_file
from shardgym.tables.bags import Bags
from shardgym.tables.streams.files import ReadOptions, RecordedStream

#: Samples that are read together.
_PART = 2**16


class ParquetStream(RecordedStream):
    """Ids in a Parquet file.

    Args:
        path: of the file.
        options: see `RecordedStream`; without features, all columns that hold whole numbers or lists of them.

    Raises:
        InputError: the file cannot be read, or a column that was asked for holds something else.
        UnknownNameError: there is no such column.
        MissingDependencyError: pyarrow is not installed.
    """

    def __init__(self, path: str | Path, options: ReadOptions) -> None:
        schema = _opened(path).schema_arrow
        for feature in options.features or ():
            if feature not in schema.names:
                raise UnknownNameError(f"column in {path}", feature, schema.names)
            if not _holds_ids(schema.field(feature).type):
                kind = schema.field(feature).type
                raise InputError(f"{path}, column '{feature}': holds {kind}, expected whole numbers or lists of them")
        known = tuple(name for name in schema.names if _holds_ids(schema.field(name).type))
        if not known:
            raise InputError(f"{path}: no column holds whole numbers or lists of them, expected one per feature")
        self.left_out = tuple(f"{name} ({schema.field(name).type})" for name in schema.names if name not in known)
        super().__init__(path, known, options)

    def parts(self, features: Sequence[str]) -> Iterator[dict[str, Bags]]:
        """Yield groups of rows."""
        for part in _groups_of_rows(self.path, features):
            yield {
                feature: _bags(f"{self.path}, column '{feature}'", part.column(part.schema.names.index(feature)))
                for feature in features
            }


def _opened(path: str | Path) -> Any:
    parquet = import_extra("pyarrow.parquet", "reading Parquet files of ids")
    check_file(path)
    try:
        return parquet.ParquetFile(path)
    except Exception as error:  # pyarrow's own errors, and those of the system
        raise InputError(f"{path}: not a Parquet file, or a damaged one ({one_line(error):.160})") from None


def _groups_of_rows(path: Path, features: Sequence[str]) -> Iterator[Any]:
    file = _opened(path)
    try:
        yield from file.iter_batches(_PART, columns=list(features))
    except Exception as error:  # where a file is damaged behind its head
        raise InputError(f"{path}: not a Parquet file, or a damaged one ({one_line(error):.160})") from None


def _holds_ids(kind: Any) -> bool:
    types = import_extra("pyarrow.types", "reading Parquet files of ids")
    return bool(types.is_integer(kind.value_type if _is_list(kind) else kind))


def _is_list(kind: Any) -> bool:
    types = import_extra("pyarrow.types", "reading Parquet files of ids")
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _bags(where: str, column: Any) -> Bags:
    compute = import_extra("pyarrow.compute", "reading Parquet files of ids")
    is_list = _is_list(column.type)
    lengths = compute.list_value_length(column) if is_list else column.is_valid().cast("int64")
    values = compute.list_flatten(column) if is_list else column.drop_null()
    if values.null_count:
        raise InputError(f"{where}: a list holds {values.null_count} empty values, expected whole numbers")
    return Bags(
        values.to_numpy(zero_copy_only=False),
        compute.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64),
    )
