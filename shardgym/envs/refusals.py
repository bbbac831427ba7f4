"""Why a shard cannot be placed, in words."""

from __future__ import annotations

import operator
from typing import Any

from shardgym.envs.placement import Placement
from shardgym.envs.shards import NO_SPLITS
from shardgym.records import short_repr


def why_not_there(placement: Placement, action: Any) -> str | None:
    """Return why the next shard of a placement cannot go to the device that an action names, or None."""
    try:
        device = operator.index(action)
    except TypeError:
        return f"action {short_repr(action)} is not a whole number"
    if not 0 <= device < len(placement.used):
        return f"there is no device {device}, the task has devices 0 to {len(placement.used) - 1}"
    if not placement.fitting()[device]:
        room = placement.figures.capacity[device] - placement.used[device]
        return f"device {device} has room for {room} bytes, {_next(placement)} needs {placement.waiting[-1].size}"
    return None


def dead_end(placement: Placement) -> str | None:
    """Return why no action is left although shards are, or None."""
    if not placement.waiting or placement.fitting().any() or placement.can_split:
        return None
    return _why_nothing_fits(placement)


def _why_nothing_fits(placement: Placement) -> str:
    """Say where there is most room for the next shard, which fits nowhere, and why it cannot be halved."""
    room = placement.figures.capacity - placement.used
    device = int(room.argmax())
    halving = "" if placement.limits == NO_SPLITS else f"; {placement.split_refusal()}"
    return (
        f"{_next(placement)} of {placement.waiting[-1].size} bytes fits on no device: "
        f"the largest room left is {room[device]} bytes on device {device}{halving}"
    )


def _next(placement: Placement) -> str:
    """Name the next shard, with its columns where they are not all of the table's."""
    shard = placement.waiting[-1]
    if shard.width == placement.figures.dims[shard.table]:
        return f"table '{placement.table_name}'"
    return f"columns {shard.start} to {shard.start + shard.width - 1} of table '{placement.table_name}'"
