"""Tasks and plans as commands read and write them: JSON, CSV, and tasks of suites by SUITE/INDEX."""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardgym.cli.common import count
from shardgym.errors import InputError, short_repr
from shardgym.files import read_text, write_whole
from shardgym.plans.migration import rebound
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.records import parse_json
from shardgym.tasks.suites import load_suite
from shardgym.tasks.task import ShardingTask, exact_bytes

#: End of the help of commands that read tasks and plans.
TASK_AND_PLAN = (
    "TASK is a task file, or SUITE/INDEX such as quick-v2/0. PLAN is a plan file, or one device for every table: "
    '{"TABLE": DEVICE, ...} in .json, columns table,devices in .csv, several devices separated by blanks.'
)

_BOUNDS = ("first_row", "end_row", "first_column", "end_column")
_CSV_COLUMNS = ("table", "devices", *_BOUNDS, "bytes")
_PLAN_FIELDS = ("task_hash", "shards", "group_size", "schema")

#: What files are, by their schema, and what to do with one that stands in the place of another.
_FILES = {
    "shardgym.plan": ("a plan of ShardGym", "'shardgym plan show TASK PLAN' reads it"),
    "shardgym.task": ("a task", "give it as TASK"),
    "shardgym.torchrec_plan": ("a plan of TorchRec", "convert it with 'shardgym plan import'"),
}


def read_task(text: str) -> ShardingTask:
    """Read a task from a file, or from a suite by SUITE/INDEX."""
    match = re.fullmatch(r"([^/]+)/([0-9]{1,9})", text)
    if match is None or Path(text).exists():
        if text.lower().endswith(".csv"):
            raise InputError(f"{text}: expected a task, which is first; 'shardgym import-tables' makes one of tables")
        return ShardingTask.from_dict(read_file_of(text, "shardgym.task"), text)
    suite, index = load_suite(match[1]), int(match[2])
    if index >= len(suite):
        raise InputError(f"suite '{suite.name}' has tasks 0 to {len(suite) - 1}, not {index}")
    return suite[index]


def write_task(path: Path, task: ShardingTask, *remedies: str) -> str:
    """Write a task and return a summary; raises `InputError` with remedies if its tables exceed all memory."""
    if task.total_bytes > task.total_capacity_bytes:
        raise InputError(
            f"the tables take {exact_bytes(task.total_bytes)} with optimiser state, but {task.num_devices} devices "
            f"have {exact_bytes(task.total_capacity_bytes)}: no plan can fit; "
            f"give {', or '.join(('--devices, --memory-gib or another --topology', *remedies))}"
        )
    write_whole(path, task.to_json(indent=2) + "\n")
    used = 100 * task.total_bytes / task.total_capacity_bytes
    left = "" if task.step_memory is None else "what the reserve and a step's inputs and outputs leave of "
    held = f"{count(task.num_tables, 'table')}, {used:.1f} % of {left}the memory of {count(task.num_devices, 'device')}"
    return f"{path}: {held}\ndigest, the task_hash of its plans: {task.digest}"


def read_file_of(path: str, schema: str) -> Any:
    """Read JSON; raises `InputError` with a remedy if it says that it is another of `_FILES` than that of `schema`."""
    data = parse_json(read_text(path), path)
    found = str(data.get("schema")).partition("/")[0] if isinstance(data, dict) else schema
    if found != schema and found in _FILES:
        what, remedy = _FILES[found]
        raise InputError(f"{path}: expected {_FILES[schema][0]}, got {what}: {remedy}")
    return data


def read_plan(path: str, task: ShardingTask, *, same_tables: bool = False) -> ShardingPlan:
    """Read a plan for `task`, feasible or not: its own JSON, `{"TABLE": DEVICE}`, or the CSV of `plan_to_csv`.

    In CSV, whole tables need no bounds, and `bytes` is not read. With `same_tables`, a plan for another task with the
    same tables, for example with other statistics, becomes one for `task`.
    """
    if Path(path).suffix.lower() == ".csv":
        return _complete_plan(path, task, _shards_from_csv(path, read_text(path), task))
    data = read_file_of(path, "shardgym.plan")
    # In an object of one device per table, a table may have the name of a plan's field.
    if isinstance(data, dict) and any(not isinstance(data[f], int) for f in _PLAN_FIELDS if f in data):
        plan = ShardingPlan.from_dict(data, path)
        if plan.task_hash != task.digest and not same_tables:
            raise InputError(
                f"{path}: the plan is for task {plan.task_hash[:12]}, not for {task.digest[:12]}: "
                "give the task that it was made for"
            )
        return rebound(plan, task) if same_tables else plan
    if not isinstance(data, dict) or not data:
        raise InputError(f'{path}: expected a plan, or {{"TABLE": DEVICE, ...}}, got {short_repr(data)}')
    return _complete_plan(path, task, [_shard(path, task, name, [device]) for name, device in data.items()])


def plan_to_csv(task: ShardingTask, plan: ShardingPlan) -> str:
    """Return a line per shard under a header; bytes hold optimiser state, too. Rows and columns are half-open."""
    if plan.group_size is not None or plan.leaves_devices:
        raise InputError("CSV cannot hold groups of devices or rows in host memory: use JSON")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for shard in plan.shards:
        devices = " ".join(map(str, shard.devices))
        writer.writerow((shard.table, devices, *shard.rows, *shard.columns, shard.bytes(task)))
    return text.getvalue()


def _complete_plan(path: str, task: ShardingTask, shards: list[Shard]) -> ShardingPlan:
    """Make a plan of shards; raises `InputError` if they leave out a table."""
    missing = {table.name for table in task.tables} - {shard.table for shard in shards}
    if missing:
        raise InputError(f"{path}: table '{min(missing):.60}' has no device ({len(missing)} of the task are missing)")
    return ShardingPlan.of(task, shards)


def _shards_from_csv(path: str, text: str, task: ShardingTask) -> list[Shard]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    shards: list[Shard] = []
    try:
        header = list(reader.fieldnames or ())
        if not {"table", "devices"} <= set(header) <= set(_CSV_COLUMNS) or len(set(header)) < len(header):
            known = ",".join(_CSV_COLUMNS)
            raise InputError(f"{path}: expected the columns table,devices or {known}, got {','.join(header):.80}")
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise InputError(f"{where}: expected {len(header)} cells ({','.join(header)})")
            try:
                bounds = [int(row[column]) for column in _BOUNDS if row.get(column)]
                devices = [int(device) for device in row["devices"].split()]
            except ValueError as error:
                raise InputError(f"{where}: expected integers, with blanks between devices: {error}") from None
            if len(bounds) not in (0, len(_BOUNDS)):
                raise InputError(f"{where}: expected all of {','.join(_BOUNDS)}, or none for a whole table")
            shards.append(_shard(where, task, row["table"], devices, bounds))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not valid CSV ({error})") from None
    return shards


def _shard(where: str, task: ShardingTask, name: str, devices: Sequence[int], bounds: Sequence[int] = ()) -> Shard:
    """Make a shard of a table of the task; of the whole table without bounds."""
    if not task.has_table(name):
        whole = [table.name for table in task.tables if table.name.endswith(f".{name}")]
        remedy = f"did you mean '{whole[0]}'?" if whole else "expected a device for each of its tables"
        raise InputError(f"{where}: '{name:.60}' is not a table of the task: {remedy}")
    table = task.table(name)
    first_row, end_row, first_column, end_column = bounds or (0, table.num_embeddings, 0, table.embedding_dim)
    try:
        return Shard(name, (first_row, end_row), (first_column, end_column), tuple(devices))
    except InputError as error:
        raise InputError(f"{where}, table '{name:.60}': {error}") from None
