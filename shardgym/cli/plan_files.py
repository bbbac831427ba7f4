"""Plans as files: as ShardGym writes them, or one device for each table in JSON or CSV."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shardgym.cli.plan_csv import shards_of_csv, table_of
from shardgym.errors import InputError
from shardgym.plan import Shard, ShardingPlan
from shardgym.records import parse_json, read_text, short_repr
from shardgym.task import ShardingTask

PLAN_HELP = 'a plan file; or {"TABLE": DEVICE, ...} in .json, table,device in .csv'

_FIELDS = ("task_hash", "shards", "schema")


def read_plan(path: str, task: ShardingTask) -> ShardingPlan:
    """Read a plan for `task`, feasible or not.

    Args:
        path: a plan as it writes itself; a `.json` file with an object of one device per table, all whole; or a `.csv`
            file, see `shards_of_csv`. The last two name no task: their tables must be those of the task.
        task: the task.

    Raises:
        InputError: the file is damaged, its plan is for another task, or its tables are not the task's.
    """
    text = read_text(path)
    if Path(path).suffix.lower() == ".csv":
        return _of_tables(path, task, shards_of_csv(path, text, task))
    data = parse_json(text, path)
    if _is_record(data):
        return _recorded(path, data, task)
    return _of_tables(path, task, _shards(path, data, task))


def _is_record(data: Any) -> bool:
    """Say whether this means to be a plan's own form; a table may be called like one of its fields."""
    return isinstance(data, dict) and any(not isinstance(data[field], int) for field in _FIELDS if field in data)


def _recorded(path: str, data: dict[str, Any], task: ShardingTask) -> ShardingPlan:
    if "shards" in data and "task_hash" not in data:
        raise InputError(
            f"{path}: task_hash is missing, the digest of the task that the plan was made for; if that is the task "
            f'given, add "task_hash": "{task.digest}"'
        )
    plan = ShardingPlan.from_dict(data, path)
    if plan.task_hash != task.digest:
        raise InputError(
            f"{path}: plan is for task {plan.task_hash[:12]}, the task given is {task.digest[:12]}: "
            "give the task that it was made for"
        )
    return plan


def _shards(path: str, data: Any, task: ShardingTask) -> list[Shard]:
    """Make shards of an object of devices; tables that the task does not have are refused first."""
    if not isinstance(data, dict) or not data:
        raise InputError(
            f'{path}: expected a plan, or {{"TABLE": DEVICE, ...}} for every table, got {short_repr(data)}'
        )
    shards = []
    for name, device in data.items():
        table = table_of(path, name, task)
        if isinstance(device, bool) or not isinstance(device, int) or device < 0:
            raise InputError(f"{path}, table '{name:.60}': expected the number of a device, got {short_repr(device)}")
        shards.append(Shard.whole(table, device))
    return shards


def _of_tables(path: str, task: ShardingTask, shards: Iterable[Shard]) -> ShardingPlan:
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
