"""Plans from what devices hold."""

from __future__ import annotations

from collections.abc import Sequence

from neuroshard.kinds import Kinds
from shardgym.plan import ShardingPlan


def plan_of(kinds: Kinds, held: Sequence[Sequence[int]]) -> ShardingPlan:
    """Return a plan; columns are handed out from the left, to the lowest device first.

    Args:
        kinds: the shards.
        held: kinds on every device, by device; the widths of each table's shards add up to the table's.
    """
    used = [0] * kinds.task.num_tables
    shards = []
    for device, on_device in enumerate(held):
        for kind in sorted(on_device):
            table = int(kinds.tables[kind])
            shards.append(kinds.shard(kind, used[table], device))
            used[table] += int(kinds.columns[kind])
    return ShardingPlan.of(kinds.task, shards)
