"""How plans hold columns of tables, in the terms of AnyWise."""

from __future__ import annotations

from typing import NamedTuple

from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tasks.task import ShardingTask


class Held(NamedTuple):
    """Columns of a table on consecutive devices.

    Attributes:
        columns: how many.
        first: the first holder.
        holders: how many there are.
        replicated: whether each has all rows.
    """

    columns: int
    first: int
    holders: int
    replicated: bool


def held_in(task: ShardingTask, plan: ShardingPlan) -> dict[str, list[Held]]:
    """Return how a plan holds the columns of each table.

    What no action of AnyWise makes is left out: uneven cuts by rows, holders that are no fast domain nor all devices,
    replicas on some devices, and plans of groups.
    """
    if plan.group_size is not None:
        return {}
    blocks: dict[tuple[str, tuple[int, int]], list[Shard]] = {}
    for shard in plan.shards:
        blocks.setdefault((shard.table, shard.columns), []).append(shard)
    found: dict[str, list[Held]] = {}
    for (table, _), shards in blocks.items():
        held = _held(task, shards)
        if held is not None:
            found.setdefault(table, []).append(held)
    return found


def _held(task: ShardingTask, shards: list[Shard]) -> Held | None:
    """Return how the shards of a table that have the same columns are held, None where no action makes that."""
    rows = task.table(shards[0].table).num_embeddings
    shards = sorted(shards, key=lambda shard: shard.rows)
    columns, first, holders = shards[0].num_columns, shards[0].devices[0], len(shards)
    if holders == 1:
        several = shards[0].devices
        if len(several) == 1:
            return Held(columns, first, 1, replicated=False)
        return Held(columns, 0, len(several), replicated=True) if len(several) == task.num_devices else None
    block = -(-rows // holders)
    even = all(
        shard.rows == (place * block, min((place + 1) * block, rows)) and shard.devices == (first + place,)
        for place, shard in enumerate(shards)
    )
    is_run = holders in (task.num_devices, task.topology.fast_domain_size) and first % holders == 0
    return Held(columns, first, holders, replicated=False) if even and is_run else None
