"""Plans as files: as ShardGym writes them, one device per table in JSON, or one line per shard in CSV."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

from shardgym.errors import InputError, short_repr
from shardgym.files import read_text
from shardgym.plans.migration import rebound
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.records import parse_json
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask

_BOUNDS = ("first_row", "end_row", "first_column", "end_column")
_CSV_COLUMNS = ("table", "devices", *_BOUNDS, "bytes")
_PLAN_FIELDS = ("task_hash", "shards", "group_size", "schema")


def read_plan(path: str, task: ShardingTask, *, same_tables: bool = False) -> ShardingPlan:
    """Read a plan for `task`, feasible or not.

    Args:
        path: a plan as it writes itself; a `.json` file with an object of one device per table, all whole; or a `.csv`
            file. The last two name no task: their tables must be those of the task. The header of a CSV file names
            `table`, `devices` and, where tables are cut, all of `first_row`, `end_row`, `first_column` and
            `end_column`; where these are empty, the table is whole. Several devices that hold a shard are separated by
            blanks. `bytes` is there for people and not read.
        task: the task.
        same_tables: whether it may be a plan for another task, as for the same tables with other statistics; it then
            becomes one for `task`.

    Raises:
        InputError: the file is damaged, its plan is for another task, or its tables are not the task's.
    """
    text = read_text(path)
    if Path(path).suffix.lower() == ".csv":
        return _complete_plan(path, task, _shards_from_csv(path, text, task))
    data = parse_json(text, path)
    # In an object of one device per table, a table may be called like a field of a plan.
    if isinstance(data, dict) and any(not isinstance(data[f], int) for f in _PLAN_FIELDS if f in data):
        return _plan_from_record(path, data, task, same_tables)
    return _complete_plan(path, task, _shards_from_devices(path, data, task))


def plan_to_csv(task: ShardingTask, plan: ShardingPlan) -> str:
    """Return a line per shard under a header; bytes hold optimiser state, too. Rows and columns are half-open.

    Raises:
        InputError: the plan has groups, or rows in the memory of hosts, for which lines have no place.
    """
    if plan.group_size is not None:
        raise InputError(f"the plan has groups of {plan.group_size} devices, which CSV cannot say: write it as .json")
    if plan.leaves_devices:
        raise InputError("the plan has rows in the memory of hosts, which CSV cannot say: write it as .json")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for shard in plan.shards:
        devices = " ".join(map(str, shard.devices))
        writer.writerow((shard.table, devices, *shard.rows, *shard.columns, shard.bytes(task)))
    return text.getvalue()


def _plan_from_record(path: str, data: dict[str, Any], task: ShardingTask, same_tables: bool) -> ShardingPlan:
    if "shards" in data and "task_hash" not in data:
        raise InputError(
            f"{path}: task_hash is missing, the digest of the task that the plan was made for; if that is the task "
            f'given, add "task_hash": "{task.digest}"'
        )
    plan = ShardingPlan.from_dict(data, path)
    if same_tables:
        return rebound(plan, task)
    if plan.task_hash != task.digest:
        raise InputError(
            f"{path}: plan is for task {plan.task_hash[:12]}, the task given is {task.digest[:12]}: "
            "give the task that it was made for"
        )
    return plan


def _complete_plan(path: str, task: ShardingTask, shards: list[Shard]) -> ShardingPlan:
    """Make a plan of shards that mention every table: half of a plan, or one for fewer tables, is refused."""
    plan = ShardingPlan.of(task, shards)
    mentioned = {shard.table for shard in plan.shards}
    missing = [table.name for table in task.tables if table.name not in mentioned]
    if missing:
        raise InputError(
            f"{path}: table '{missing[0]:.60}' of the task given has no device; "
            f"expected {task.num_tables} tables, {len(missing)} are missing"
        )
    return plan


def _shards_from_devices(path: str, data: Any, task: ShardingTask) -> list[Shard]:
    """Make whole tables of an object of devices by table name."""
    if not isinstance(data, dict) or not data:
        raise InputError(
            f'{path}: expected a plan, or {{"TABLE": DEVICE, ...}} for every table, got {short_repr(data)}'
        )
    shards = []
    for name, device in data.items():
        table = _table_of(path, name, task)
        if isinstance(device, bool) or not isinstance(device, int) or device < 0:
            raise InputError(f"{path}, table '{name:.60}': expected the number of a device, got {short_repr(device)}")
        shards.append(Shard.whole(table, device))
    return shards


def _shards_from_csv(path: str, text: str, task: ShardingTask) -> list[Shard]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    try:
        rows = [(f"{path}, line {reader.line_num}", [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not valid CSV ({error})") from None
    rows = [(where, row) for where, row in rows if any(row)]
    if not rows:
        raise InputError(f"{path}: the file is empty, expected a header with table,devices")

    (where, header), *body = rows
    wrong = next((column for column in header if column not in _CSV_COLUMNS), None)
    bounds = [column for column in _BOUNDS if column in header]
    if wrong is not None:
        raise InputError(f"{where}: unknown column '{wrong:.40}'; expected a header with table,devices, see --help")
    is_complete = {"table", "devices"} <= set(header) and len(bounds) in (0, len(_BOUNDS))
    if len(set(header)) < len(header) or not is_complete:
        raise InputError(
            f"{where}: expected a header with table,devices and, where tables are cut, all of {','.join(_BOUNDS)}, "
            f"got {short_repr(','.join(header))}"
        )

    shards: list[Shard] = []
    for where, row in body:
        if len(row) != len(header):
            raise InputError(f"{where}: expected {len(header)} cells ({','.join(header)}), got {len(row)}")
        cells = dict(zip(header, row, strict=True))
        table = _table_of(where, cells["table"], task)
        devices = [_parse_number(where, "devices", cell) for cell in cells["devices"].split() or [""]]
        edges = [_parse_number(where, column, cells[column]) for column in _BOUNDS if any(map(cells.get, _BOUNDS))]
        first_row, end_row, first_column, end_column = edges or (0, table.num_embeddings, 0, table.embedding_dim)
        try:
            shards.append(Shard(table.name, (first_row, end_row), (first_column, end_column), tuple(devices)))
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    return shards


def _parse_number(where: str, column: str, cell: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", cell):
        raise InputError(f"{where}, {column}: expected a whole number, got '{cell:.40}'")
    return int(cell)


def _table_of(where: str, name: str, task: ShardingTask) -> EmbeddingTable:
    if not task.has_table(name):
        raise InputError(f"{where}: '{name:.60}' is no table of the task given: expected its tables, a device for each")
    return task.table(name)
