"""plan migrate: what moves from the plan in use to another one, and the map of it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np
from tabulate import tabulate

from shardgym.cli.common import (
    TASK_AND_PLAN,
    Command,
    check_free,
    count,
    force_option,
    json_option,
    print_json,
    read_task,
)
from shardgym.cli.plan_files import read_plan
from shardgym.files import write_whole
from shardgym.plans.migration import LINKS, Migration, migration
from shardgym.tasks.task import ShardingTask, exact_bytes, format_bytes

_NAMES = {"intra": "inside of fast domains", "inter": "between them", "host": "between hosts and their devices"}
#: Tables, and devices, that are listed; of more the totals say enough.
_MOST_LISTED = 30


@click.command("migrate", cls=Command, epilog=TASK_AND_PLAN)
@click.argument("task_name", metavar="TASK")
@click.argument("old_path", metavar="OLD")
@click.argument("new_path", metavar="NEW")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where the map of all moves goes, as JSON.")
@force_option
@json_option
def plan_migrate(task_name: str, old_path: str, new_path: str, output: Path | None, force: bool, as_json: bool) -> int:
    """Say what moves from plan OLD, which is in use, to plan NEW.

    Both are for the tables and devices of TASK; OLD may be of a task with other statistics. A device keeps what it
    holds, and gets the rest from a device that holds it: one that shares its fast links if there is any.

    The map lists every rectangle that moves: its table, rows and columns, the device that sends and the one that gets
    it, and in "shard" the rectangle of the old plan's checkpoint that it is a part of. Rows and columns are those of
    the table, half-open.
    """
    if output is not None:
        check_free(output, force)
    task = read_task(task_name)
    found = migration(task, read_plan(old_path, task, same_tables=True), read_plan(new_path, task, same_tables=True))
    if output is not None:
        write_whole(output, json.dumps(found.to_dict(), indent=1) + "\n")
    if as_json:
        print_json(found.to_dict() | {"transfer_ms": found.transfer_ms(task.topology)})
        return 0
    print(describe_bytes(found))
    if found.moves:
        print(
            f"{count(len(found.moves), 'move')}, at least {found.transfer_ms(task.topology):.1f} ms on links that do "
            "nothing else\n"
        )
        print(_tables(task, found))
    if output is not None:
        print(f"map: {output}")
    return 0


def describe_bytes(found: Migration) -> str:
    """Say in one line what moves, by link."""
    if not found.bytes:
        return "nothing moves"
    links = [f"{format_bytes(found.bytes_by_link[link])} {_NAMES[link]}" for link in LINKS if found.bytes_by_link[link]]
    return f"{exact_bytes(found.bytes)} move: {', '.join(links)}"


def _tables(task: ShardingTask, found: Migration) -> str:
    """Return tables with most to move, and devices that send and get."""
    by_table: dict[str, int] = {}
    by_device = np.zeros((task.num_devices, 2), dtype=np.int64)
    for move in found.moves:
        by_table[move.table] = by_table.get(move.table, 0) + move.bytes
        by_device[move.source, 0] += move.bytes
        by_device[move.destination, 1] += move.bytes
    largest = sorted(by_table.items(), key=lambda entry: (-entry[1], entry[0]))
    rows = [[name, format_bytes(size)] for name, size in largest[:_MOST_LISTED]]
    parts = [tabulate(rows, headers=["table", "moves"], disable_numparse=True, colalign=("left", "right"))]
    if len(largest) > _MOST_LISTED:
        parts.append(f"and {count(len(largest) - _MOST_LISTED, 'table')} more")
    if task.num_devices <= _MOST_LISTED:
        cells = [[str(n), *map(format_bytes, of_device)] for n, of_device in enumerate(by_device.tolist())]
        parts += ["", tabulate(cells, headers=["device", "sends", "gets"], disable_numparse=True, stralign="right")]
    return "\n".join(parts)
