"""Plans as CSV for spreadsheets: one line per shard, written by `plan show --csv` and read wherever a plan is."""

from __future__ import annotations

import csv
import io
import re

from shardgym.errors import InputError
from shardgym.plan import Shard, ShardingPlan
from shardgym.records import short_repr
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask

BOUNDS = ("first_row", "end_row", "first_column", "end_column")
COLUMNS = ("table", "device", *BOUNDS, "bytes")


def csv_of_plan(task: ShardingTask, plan: ShardingPlan) -> str:
    """Return a line per shard under a header; bytes hold optimiser state, too. Rows and columns are half-open."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((s.table, s.device, *s.rows, *s.columns, s.bytes(task)) for s in plan.shards)
    return text.getvalue()


def shards_of_csv(path: str, text: str, task: ShardingTask) -> list[Shard]:
    """Read shards of the tables of `task`.

    The header names `table`, `device` and, where tables are cut, all of `first_row`, `end_row`, `first_column` and
    `end_column`; where these are empty, the table is whole. `bytes` is there for people and not read.

    Raises:
        InputError: one line with file, line and what was expected.
    """
    (where, header), *body = _lines(path, text)
    _check_header(where, header)
    shards: list[Shard] = []
    for where, row in body:
        if len(row) != len(header):
            raise InputError(f"{where}: expected {len(header)} cells ({','.join(header)}), got {len(row)}")
        shards.append(_shard(where, dict(zip(header, row, strict=True)), task))
    return shards


def _lines(path: str, text: str) -> list[tuple[str, list[str]]]:
    """Split into (place, cells), lines without any left out."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    try:
        rows = [(f"{path}, line {reader.line_num}", [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not valid CSV ({error})") from None
    filled = [(where, row) for where, row in rows if any(row)]
    if not filled:
        raise InputError(f"{path}: the file is empty, expected a header with table,device")
    return filled


def _check_header(where: str, header: list[str]) -> None:
    wrong = next((column for column in header if column not in COLUMNS), None)
    cut = [column for column in BOUNDS if column in header]
    if wrong is not None:
        raise InputError(f"{where}: unknown column '{wrong:.40}'; expected a header with table,device, see --help")
    if len(set(header)) < len(header) or not {"table", "device"} <= set(header) or len(cut) not in (0, len(BOUNDS)):
        raise InputError(
            f"{where}: expected a header with table,device and, where tables are cut, all of {','.join(BOUNDS)}, "
            f"got {short_repr(','.join(header))}"
        )


def _shard(where: str, cells: dict[str, str], task: ShardingTask) -> Shard:
    name, bounds = cells["table"], [cells.get(column, "") for column in BOUNDS]
    table = table_of(where, name, task)
    device = _whole(where, "device", cells["device"])
    if not any(bounds):
        return Shard.whole(table, device)
    numbers = [_whole(where, column, cell) for column, cell in zip(BOUNDS, bounds, strict=True)]
    try:
        return Shard(name, (numbers[0], numbers[1]), (numbers[2], numbers[3]), device)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def table_of(where: str, name: str, task: ShardingTask) -> EmbeddingTable:
    """Return a table of the task; raises `InputError` when it has none of this name."""
    if not task.has_table(name):
        raise InputError(f"{where}: '{name:.60}' is no table of the task given: expected its tables, a device for each")
    return task.table(name)


def _whole(where: str, column: str, cell: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", cell):
        raise InputError(f"{where}, {column}: expected a whole number, got '{cell:.40}'")
    return int(cell)
