"""Why an action is invalid, and why no action is valid, in one line."""

from __future__ import annotations

import operator
from typing import Any

from shardgym.arrays import Floats
from shardgym.envs.features import BYTES
from shardgym.envs.kind_rules import CUT_ROWS, HALVE, num_cuts
from shardgym.envs.placements import Placements
from shardgym.envs.shard_catalog import NOTHING, SplitLimits
from shardgym.plans.shard import COLUMN_UNIT
from shardgym.records import short_repr
from shardgym.tasks.task import ShardingTask


def why_invalid(placements: Placements, limits: SplitLimits | None, row: int, action: Any) -> str:
    """Return why an action of an episode is invalid."""
    p = placements
    try:
        device = operator.index(action)
    except TypeError:
        return f"action {short_repr(action)} is not a whole number"
    max_devices = p.capacity.shape[1]
    if max_devices <= device < max_devices + num_cuts(limits):
        assert limits is not None
        cut = device - max_devices
        if cut == HALVE:
            return _why_not_halved(p, limits, row)
        return _why_not_cut_by_rows(p, row) if cut == CUT_ROWS else _why_not_replicated(p, row)
    num_devices = _task(p, row).num_devices
    if not 0 <= device < num_devices:
        return f"there is no device {device}, the task has devices 0 to {num_devices - 1}"
    room = int(_room(p, row)[device])
    lacking = f"device {device} has room for {room} bytes, {_next_shard(p, row)} needs {_next_bytes(p, row)}"
    if p.kinds is None:
        return lacking
    decided, holders = p.kinds.holders(row)
    if holders > 1:
        of = "all devices" if holders == num_devices else f"a fast domain of {holders}"
        return (
            f"device {device} is not the first one of {of} with {_next_bytes(p, row)} bytes of room each and no other "
            f"rows of the table, which {_next_shard(p, row)} needs"
        )
    if decided > 1:
        return f"{_next_shard(p, row)} has to be cut by rows over {decided} devices, as another part of the table is"
    return lacking


def why_nothing_fits(placements: Placements, limits: SplitLimits | None, row: int) -> str:
    """Return why no action is valid: the largest room left, and why the next shard can be cut no further."""
    p = placements
    room = _room(p, row)
    device = int(room.argmax())
    others = ""
    if limits is not None and limits != SplitLimits(0):
        others = f"; {_why_not_halved(p, limits, row)}"
    if p.kinds is not None:
        others += f"; {_why_not_cut_by_rows(p, row)}"
    return (
        f"{_next_shard(p, row)} of {_next_bytes(p, row)} bytes fits on no device: "
        f"the largest room left is {int(room[device])} bytes on device {device}{others}"
    )


def _why_not_halved(p: Placements, limits: SplitLimits, row: int) -> str:
    shard = p.next[row]
    width = int(p.catalog.shard["width"][shard])
    if width % (2 * COLUMN_UNIT):
        reason = f"its {width} columns are not divisible by {2 * COLUMN_UNIT}"
    elif p.splits[row] >= limits.max_splits:
        reason = f"max_splits={limits.max_splits} is used up"
    elif p.kinds is not None and max(p.kinds.holders(row)) > 1:
        holders = max(p.kinds.holders(row))
        reason = f"its rows are cut over {holders} devices, and there are no other {holders} for a half"
    else:
        reason = f"max_table_splits={limits.max_table_splits} is used up"
    return f"table '{p.catalog.shard['name'][shard]}' cannot be halved: {reason}"


def _why_not_cut_by_rows(p: Placements, row: int) -> str:
    assert p.kinds is not None
    kind = p.catalog.kind
    shard = p.next[row]
    cut = kind["by_rows"][shard]
    decided, holders = p.kinds.holders(row)
    task = _task(p, row)
    name = p.catalog.shard["name"][shard]
    if holders > 1 and cut == NOTHING:
        reason = f"they are cut over {holders} devices"
    elif decided == 1:
        reason = "other columns of the table are on a device with all rows"
    elif cut == NOTHING and task.table(name).pooling == "mean":
        reason = "TorchRec divides mean-pooled tables that are cut by rows by the wrong bag sizes"
    elif cut == NOTHING or p.kinds.runs_are_used_up(row):
        reason = f"there are no {task.num_devices} devices with rows for each, or no such run of devices for each shard"
    else:
        reason = "no run of devices has room for its parts"
    return f"rows of {_next_shard(p, row)} cannot be cut{' further' if holders > 1 else ''}: {reason}"


def _why_not_replicated(p: Placements, row: int) -> str:
    shard = p.next[row]
    task = _task(p, row)
    name = p.catalog.shard["name"][shard]
    if task.num_devices == 1:
        reason = "there is one device"
    elif p.catalog.shard["width_share"][shard] < 1 or p.catalog.kind["holders"][shard] > 1:
        reason = "it is cut"
    elif p.catalog.kind["replica"][shard] == NOTHING:
        reason = "the cost prices no replicas, or none on fast domains that differ in size; 'roofline' and 'gpu' do"
    else:
        device = int(_room(p, row).argmin())
        reason = f"device {device} has room for {int(_room(p, row)[device])} bytes, it needs {_next_bytes(p, row)}"
    return f"table '{name}' cannot be replicated: {reason}"


def _task(p: Placements, row: int) -> ShardingTask:
    return p.catalog.tasks[int(p.task[row])]


def _room(p: Placements, row: int) -> Floats:
    """Return the free bytes of devices, shape (D,)."""
    room: Floats = p.capacity[row] - p.loads[row, :, BYTES]
    return room[: _task(p, row).num_devices]


def _next_bytes(p: Placements, row: int) -> int:
    return int(p.catalog.shard["bytes"][p.next[row]])


def _next_shard(p: Placements, row: int) -> str:
    """Name the next shard, with its columns where they are not all of the table's."""
    shard = p.catalog.shard
    number = p.next[row]
    name = f"table '{shard['name'][number]}'"
    if shard["width_share"][number] == 1:
        return name
    start = int(p.starts[row, p.placed[row]])
    return f"columns {start} to {start + int(shard['width'][number]) - 1} of {name}"
