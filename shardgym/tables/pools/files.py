"""Pools from files of tables, in JSON or CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from shardgym.errors import InputError, closest
from shardgym.files import read_text
from shardgym.records import parse_json, short_repr
from shardgym.tables.table import DEFAULT_BATCH_SIZE, EmbeddingTable, TablePool

REQUIRED = ("name", "num_embeddings", "embedding_dim")
#: Columns that hold one of some words, as fields of the same names do.
_WORDS = ("pooling", "optimizer", "precision")
CSV_COLUMNS = (*REQUIRED, "pooling_factor", "zipf_s", "zipf_q", "row_order", *_WORDS)
JSON_FIELDS = tuple(field.name for field in dataclasses.fields(EmbeddingTable))
POOL_FIELDS = ("tables", "name", "batch_size", "schema")


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
    if not text.strip():
        raise InputError(f"{path}: the file is empty, expected tables")
    pool: dict[str, Any] = {"name": Path(path).stem, "batch_size": batch_size}
    rows: Iterable[tuple[str, Any]]
    if Path(path).suffix.lower() == ".csv":
        rows = _csv_rows(path, text)
    else:
        data = parse_json(text, str(path))
        if isinstance(data, list):
            data = {"tables": data}
        if not isinstance(data, dict) or not isinstance(data.get("tables"), list):
            raise InputError(f'{path}: expected a list of tables or an object {{"tables": [...]}}')
        _check_fields(str(path), data, POOL_FIELDS, ("tables",))
        pool |= data
        rows = ((f"{path}, table {i}", fields) for i, fields in enumerate(data["tables"]))
    return TablePool.from_dict({**pool, "tables": _tables(rows)}, str(path))


def _tables(rows: Iterable[tuple[str, Any]]) -> tuple[EmbeddingTable, ...]:
    """Make tables from (place in the file, fields); errors name the place."""
    tables = []
    places: dict[str, str] = {}
    for place, fields in rows:
        if not isinstance(fields, dict):
            raise InputError(f"{place}: expected an object with {', '.join(REQUIRED)}, got {short_repr(fields)}")
        _check_fields(place, fields, JSON_FIELDS, REQUIRED)
        table = EmbeddingTable.from_dict(fields, place)
        if table.name in places:
            raise InputError(f"{place}: name '{table.name}' must be distinct, it is used in {places[table.name]} too")
        places[table.name] = place
        tables.append(table)
    return tuple(tables)


def _check_fields(place: str, fields: Iterable[str], known: tuple[str, ...], required: tuple[str, ...]) -> None:
    for field in fields:
        if field not in known:
            raise InputError(f"{place}: unknown field '{field:.60}': {closest(field, known, most=1)}")
    for field in required:
        if field not in fields:
            raise InputError(f"{place}: field '{field}' is missing")


def _csv_rows(path: str | Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place in the file, fields of the table) of every line below the header; empty lines are skipped."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    lines: list[tuple[str, list[str]]] = []
    try:
        for cells in reader:
            place = f"{path}, line {reader.line_num}"
            if broken := next((cell for cell in cells if len(cell.strip().splitlines()) > 1), None):
                raise InputError(f"{place}: line break inside a quoted cell {short_repr(broken.strip())}")
            if any(cell.strip() for cell in cells):
                lines.append((place, [cell.strip() for cell in cells]))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not valid CSV ({error})") from None
    if not lines:
        raise InputError(f"{path}: has empty cells only, expected a header with {', '.join(REQUIRED)}")
    place, header = lines[0]
    separator = next((mark for mark in ";\t|" if mark in header[0]), None)
    if len(header) == 1 and separator is not None:
        raise InputError(f"{place}: cells are separated by {separator!r}, expected commas: {','.join(CSV_COLUMNS[:3])}")
    _check_fields(place, header, CSV_COLUMNS, REQUIRED)
    if len(set(header)) < len(header):
        raise InputError(f"{place}: a column occurs twice")
    if len(lines) == 1:
        raise InputError(f"{path}: has a header and no tables")
    # Empty cells stand for defaults, except in the required columns.
    for place, row in lines[1:]:
        if len(row) != len(header):
            raise InputError(f"{place}: expected {len(header)} cells ({', '.join(header)}), got {len(row)}")
        values = {column: cell for column, cell in zip(header, row, strict=True) if cell or column in REQUIRED}
        fields: dict[str, Any] = {"name": values["name"]}
        for column in ("num_embeddings", "embedding_dim"):
            if not re.fullmatch(r"[+-]?[0-9]{1,30}", values[column]):
                raise InputError(f"{place}, {column}: expected a whole number, got '{values[column]:.40}'")
            fields[column] = int(values[column])
        if "pooling_factor" in values:
            fields["pooling_factor"] = _number(place, "pooling_factor", values["pooling_factor"])
        fields |= {column: values[column] for column in _WORDS if column in values}
        zipf: dict[str, Any] = {
            c.removeprefix("zipf_"): _number(place, c, values[c]) for c in ("zipf_s", "zipf_q") if c in values
        }
        if zipf and "s" not in zipf:
            raise InputError(f"{place}: zipf_q is given without zipf_s")
        if "row_order" in values:
            if not zipf:
                raise InputError(f"{place}: row_order is given without zipf_s")
            zipf["row_order"] = values["row_order"]
        if zipf:
            fields["ids"] = {"kind": "zipf", **zipf}
        yield place, fields


def _number(place: str, column: str, cell: str) -> float:
    try:
        if "_" in cell or not cell.isascii():  # Python's own notation for numbers, nobody else's
            raise ValueError
        return float(cell)
    except ValueError:
        raise InputError(f"{place}, {column}: expected a number, got '{cell:.40}'") from None
