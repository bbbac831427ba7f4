"""Pools from files of tables, in JSON or CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from shardgym.errors import InputError
from shardgym.files import read_text
from shardgym.records import parse_json
from shardgym.tables.table import DEFAULT_BATCH_SIZE, EmbeddingTable, TablePool

_NUMBERS = {"num_embeddings": int, "embedding_dim": int, "pooling_factor": float, "zipf_s": float, "zipf_q": float}
_WORDS = ("name", "row_order", "pooling", "optimizer", "precision")
#: Columns that are of a Zipf law, by the names of its fields.
_OF_ZIPF = {"zipf_s": "s", "zipf_q": "q", "row_order": "row_order"}


def load_user_tables(path: str | Path, batch_size: int = DEFAULT_BATCH_SIZE) -> TablePool:
    """Load tables from a `.json` or `.csv` file.

    JSON: a list of table objects, or `{"tables": [...], "name": ..., "batch_size": ...}`, the form in which a pool
    writes itself. CSV: a header line with name, num_embeddings, embedding_dim and, if known, pooling_factor, zipf_s,
    zipf_q, row_order, pooling, optimizer and precision; a table without zipf_s has uniform ids.

    Args:
        path: the file.
        batch_size: samples per batch, where the file does not say.

    Raises:
        InputError: one line with file, line or table, field and what was expected.
    """
    text = read_text(path)
    pool: dict[str, Any] = {"name": Path(path).stem, "batch_size": batch_size}
    if Path(path).suffix.lower() == ".csv":
        return TablePool.from_dict({**pool, "tables": _csv_tables(path, text)}, str(path))
    data = parse_json(text, str(path))
    data = {"tables": data} if isinstance(data, list) else data
    if not isinstance(data, dict):
        raise InputError(f'{path}: expected a list of tables or an object {{"tables": [...]}}')
    return TablePool.from_dict(pool | data, str(path))


def _csv_tables(path: str | Path, text: str) -> tuple[EmbeddingTable, ...]:
    """Make a table of each line below the header; empty cells stand for defaults."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    tables = []
    try:
        header = reader.fieldnames or ()
        unknown = [column for column in header if column not in (*_NUMBERS, *_WORDS)]
        if unknown:
            raise InputError(f"{path}: unknown column '{unknown[0]:.60}', expected {', '.join((*_WORDS, *_NUMBERS))}")
        for row in reader:
            place = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise InputError(f"{place}: expected {len(header)} cells ({', '.join(header)})")
            tables.append(EmbeddingTable.from_dict(_fields(place, row), place))
    except csv.Error as error:
        raise InputError(f"{path}: not valid CSV ({error})") from None
    return tuple(tables)


def _fields(place: str, row: dict[str, str]) -> dict[str, Any]:
    """Return the fields of a table, numbers as such."""
    fields: dict[str, Any] = {column: cell.strip() for column, cell in row.items() if cell.strip()}
    for column, number in _NUMBERS.items():
        try:
            if column in fields:
                fields[column] = number(fields[column])
        except ValueError:
            raise InputError(f"{place}, {column}: expected a number, got '{fields[column]:.40}'") from None
    zipf = {field: fields.pop(column) for column, field in _OF_ZIPF.items() if column in fields}
    return fields | ({"ids": {"kind": "zipf", **zipf}} if zipf else {})
