"""Plans as files: as ShardGym writes them, one device per table in JSON, or one line per shard in CSV."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from shardgym.errors import InputError, short_repr
from shardgym.files import read_text
from shardgym.plans.migration import rebound
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.records import parse_json
from shardgym.tasks.task import ShardingTask

_BOUNDS = ("first_row", "end_row", "first_column", "end_column")
_CSV_COLUMNS = ("table", "devices", *_BOUNDS, "bytes")
_PLAN_FIELDS = ("task_hash", "shards", "group_size", "schema")


def read_plan(path: str, task: ShardingTask, *, same_tables: bool = False) -> ShardingPlan:
    """Read a plan for `task`, feasible or not: as it writes itself, `{"TABLE": DEVICE}`, or as `plan_to_csv` writes it.

    In CSV bounds may be left out of whole tables, and `bytes` is not read. With `same_tables` it may be a plan for
    another task, as for other statistics of the same tables, and becomes one for `task`.
    """
    text = read_text(path)
    if Path(path).suffix.lower() == ".csv":
        return _complete_plan(path, task, _shards_from_csv(path, text, task))
    data = parse_json(text, path)
    # In an object of one device per table, a table may be called like a field of a plan.
    if isinstance(data, dict) and any(not isinstance(data[f], int) for f in _PLAN_FIELDS if f in data):
        plan = ShardingPlan.from_dict(data, path)
        if plan.task_hash != task.digest and not same_tables:
            raise InputError(
                f"{path}: plan is for task {plan.task_hash[:12]}, the task given is {task.digest[:12]}: "
                "give the task that it was made for"
            )
        return rebound(plan, task) if same_tables else plan
    if not isinstance(data, dict) or not data:
        raise InputError(f'{path}: expected a plan, or {{"TABLE": DEVICE, ...}}, got {short_repr(data)}')
    return _complete_plan(path, task, [_shard(path, task, name, [device]) for name, device in data.items()])


def plan_to_csv(task: ShardingTask, plan: ShardingPlan) -> str:
    """Return a line per shard under a header; bytes hold optimiser state, too. Rows and columns are half-open."""
    if plan.group_size is not None or plan.leaves_devices:
        raise InputError("CSV has no place for groups of devices or rows in the memory of hosts: write it as .json")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for shard in plan.shards:
        devices = " ".join(map(str, shard.devices))
        writer.writerow((shard.table, devices, *shard.rows, *shard.columns, shard.bytes(task)))
    return text.getvalue()


def _complete_plan(path: str, task: ShardingTask, shards: list[Shard]) -> ShardingPlan:
    """Make a plan of shards that mention every table: half of a plan, or one for fewer tables, is refused."""
    missing = {table.name for table in task.tables} - {shard.table for shard in shards}
    if missing:
        raise InputError(f"{path}: table '{min(missing):.60}' of the task has no device, {len(missing)} are missing")
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
                raise InputError(f"{where}: expected whole numbers of devices, rows and columns: {error}") from None
            if len(bounds) not in (0, len(_BOUNDS)):
                raise InputError(f"{where}: expected all of {','.join(_BOUNDS)}, or none for a whole table")
            shards.append(_shard(where, task, row["table"], devices, bounds))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not valid CSV ({error})") from None
    return shards


def _shard(where: str, task: ShardingTask, name: str, devices: Sequence[int], bounds: Sequence[int] = ()) -> Shard:
    """Make a shard of a table of the task; of the whole table without bounds."""
    if not task.has_table(name):
        raise InputError(f"{where}: '{name:.60}' is no table of the task given: expected its tables, a device for each")
    table = task.table(name)
    first_row, end_row, first_column, end_column = bounds or (0, table.num_embeddings, 0, table.embedding_dim)
    try:
        return Shard(name, (first_row, end_row), (first_column, end_column), tuple(devices))
    except InputError as error:
        raise InputError(f"{where}, table '{name:.60}': {error}") from None
