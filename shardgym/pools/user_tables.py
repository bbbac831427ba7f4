"""Your own tables, from JSON or CSV."""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shardgym.errors import InputError
from shardgym.pools.pool import DEFAULT_BATCH_SIZE, TablePool
from shardgym.records import parse_json, read_text, short_repr
from shardgym.table import EmbeddingTable

REQUIRED = ("name", "num_embeddings", "embedding_dim")
CSV_COLUMNS = (*REQUIRED, "pooling_factor", "zipf_s", "zipf_q")
JSON_FIELDS = (*REQUIRED, "pooling_factor", "ids", "reuse_histogram", "schema")
POOL_FIELDS = ("tables", "name", "batch_size", "schema")


def load_user_tables(path: str | Path, batch_size: int = DEFAULT_BATCH_SIZE) -> TablePool:
    """Load tables from a `.json` or `.csv` file.

    JSON: a list of table objects, or `{"tables": [...], "name": ..., "batch_size": ...}`, the form in which a pool
    writes itself. CSV: a header line with name, num_embeddings, embedding_dim and, if known, pooling_factor, zipf_s and
    zipf_q; a table without zipf_s has uniform ids.

    Args:
        path: the file.
        batch_size: samples per batch, where the file does not say.

    Raises:
        InputError: one line with file, line or table, field and what was expected.
    """
    text = read_text(path)
    if not text.strip():
        raise InputError(f"{path}: the file is empty, expected tables")
    data = _from_csv(path, text) if Path(path).suffix.lower() == ".csv" else _from_json(path, text)
    return TablePool.from_dict({"name": Path(path).stem, "batch_size": batch_size, **data}, str(path))


def _from_json(path: str | Path, text: str) -> dict[str, Any]:
    data = parse_json(text, str(path))
    if isinstance(data, list):
        data = {"tables": data}
    if not isinstance(data, dict) or not isinstance(data.get("tables"), list):
        raise InputError(f'{path}: expected a list of tables or an object {{"tables": [...]}}')
    _check_fields(str(path), data, POOL_FIELDS, ("tables",))
    return {**data, "tables": _tables((f"{path}, table {i}", t) for i, t in enumerate(data["tables"]))}


def _tables(rows: Iterable[tuple[str, Any]]) -> tuple[EmbeddingTable, ...]:
    """Make tables from (where, fields), naming the place in errors."""
    seen: dict[str, str] = {}
    tables = []
    for where, fields in rows:
        if not isinstance(fields, dict):
            raise InputError(f"{where}: expected an object with {', '.join(REQUIRED)}, got {short_repr(fields)}")
        _check_fields(where, fields, JSON_FIELDS, REQUIRED)
        table = EmbeddingTable.from_dict(fields, where)
        if table.name in seen:
            raise InputError(f"{where}: name '{table.name}' must be distinct, it is used in {seen[table.name]} too")
        seen[table.name] = where
        tables.append(table)
    return tuple(tables)


def _check_fields(where: str, given: Mapping[str, Any], known: tuple[str, ...], required: tuple[str, ...]) -> None:
    for field in given:
        if field not in known:
            close = difflib.get_close_matches(field, known, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            raise InputError(f"{where}: unknown field '{field:.60}': {hint}")
    for field in required:
        if field not in given:
            raise InputError(f"{where}: field '{field}' is missing")


def _from_csv(path: str | Path, text: str) -> dict[str, Any]:
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, strict=True, skipinitialspace=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not valid CSV ({error})") from None
    filled = [(line, row) for line, row in rows if any(row)]
    if not filled:
        raise InputError(f"{path}: has empty cells only, expected a header with {', '.join(REQUIRED)}")
    for line, row in filled:
        if broken := next((cell for cell in row if len(cell.splitlines()) > 1), None):
            raise InputError(f"{path}, line {line}: line break inside a quoted cell {short_repr(broken)}")
    (line, header), body = filled[0], filled[1:]
    _check_fields(f"{path}, line {line}", dict.fromkeys(header), CSV_COLUMNS, REQUIRED)
    if len(set(header)) < len(header):
        raise InputError(f"{path}, line {line}: a column occurs twice")
    if not body:
        raise InputError(f"{path}: has a header and no tables")
    return {"tables": _tables(_fields(f"{path}, line {line}", header, row) for line, row in body)}


def _fields(where: str, header: list[str], row: list[str]) -> tuple[str, dict[str, Any]]:
    if len(row) != len(header):
        raise InputError(f"{where}: expected {len(header)} cells ({', '.join(header)}), got {len(row)}")
    cells = {column: cell for column, cell in zip(header, row, strict=True) if cell or column in REQUIRED}
    fields: dict[str, Any] = {"name": cells["name"]}
    for column in REQUIRED[1:]:
        fields[column] = _whole(where, column, cells[column])
    if "pooling_factor" in cells:
        fields["pooling_factor"] = _number(where, "pooling_factor", cells["pooling_factor"])
    zipf = {c.removeprefix("zipf_"): _number(where, c, cells[c]) for c in ("zipf_s", "zipf_q") if c in cells}
    if zipf and "s" not in zipf:
        raise InputError(f"{where}: zipf_q is given without zipf_s")
    if zipf:
        fields["ids"] = {"kind": "zipf", **zipf}
    return where, fields


def _whole(where: str, column: str, cell: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", cell):
        raise InputError(f"{where}, {column}: expected a whole number, got '{cell:.40}'")
    return int(cell)


def _number(where: str, column: str, cell: str) -> float:
    try:
        if "_" in cell or not cell.isascii():  # Python's own notation for numbers, nobody else's
            raise ValueError
        return float(cell)
    except ValueError:
        raise InputError(f"{where}, {column}: expected a number, got '{cell:.40}'") from None
