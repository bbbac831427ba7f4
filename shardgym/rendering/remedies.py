"""What would make a plan fit: a shard to move, or a cut of one, for every device that holds too much."""

from __future__ import annotations

from shardgym.plan import COLUMN_UNIT, Shard, ShardingPlan
from shardgym.task import ShardingTask
from shardgym.units import format_bytes


def memory_remedies(task: ShardingTask, plan: ShardingPlan) -> list[str]:
    """Return one sentence for every device of the task that holds more than it has room for.

    Each device is looked at by itself, with the rest of the plan as it is. The smallest shard is named that fits
    elsewhere and whose move is enough. Else it is the narrowest piece of a shard, cut by columns, that does the same.

    Args:
        task: the task.
        plan: for it.
    """
    used = plan.bytes_per_device(task)
    room = [limit - size for size, limit in zip(used, task.topology.memory_bytes, strict=True)]
    roomiest = max(range(task.num_devices), key=lambda device: room[device])
    sentences = []
    for device in range(task.num_devices):
        if room[device] >= 0:
            continue
        shards = [shard for shard in plan.on(device) if task.has_table(shard.table)]
        where = f"device {roomiest}, which has {format_bytes(max(room[roomiest], 0))} left"
        whole = [shard for shard in shards if -room[device] <= shard.bytes(task) <= room[roomiest]]
        cuts = [(columns, shard) for shard in shards if (columns := _columns_to_move(task, shard, -room[device]))]
        fitting = [(columns, shard) for columns, shard in cuts if _bytes(task, shard, columns) <= room[roomiest]]
        if whole:
            shard = min(whole, key=lambda shard: shard.bytes(task))
            sentences.append(f"device {device} fits when {_named(task, shard)} moves to {where}")
        elif fitting:
            columns, shard = min(fitting, key=lambda cut: _bytes(task, cut[1], cut[0]))
            sentences.append(
                f"device {device} fits when {_named(task, shard)} is cut, and {columns} of its {shard.num_columns} "
                f"columns ({format_bytes(_bytes(task, shard, columns))}) move to {where}"
            )
        else:
            sentences.append(
                f"device {device} needs more than one move or cut: it holds {format_bytes(-room[device])} too much, "
                f"and no device has room for more than {format_bytes(max(room[roomiest], 0))}"
            )
    return sentences


def _columns_to_move(task: ShardingTask, shard: Shard, excess: int) -> int:
    """Return how many columns of a shard must go at least, so that as many bytes do; 0 if some cannot stay."""
    for columns in range(COLUMN_UNIT, shard.num_columns, COLUMN_UNIT):
        if shard.bytes(task) - _bytes(task, shard, shard.num_columns - columns) >= excess:
            return columns
    return 0


def _bytes(task: ShardingTask, shard: Shard, columns: int) -> int:
    return task.block_bytes(shard.num_rows, columns)


def _named(task: ShardingTask, shard: Shard) -> str:
    whole = shard.num_columns == task.table(shard.table).embedding_dim
    piece = "" if whole else f"columns {shard.columns[0]} to {shard.columns[1] - 1} of "
    return f"{piece}'{shard.table}' ({format_bytes(shard.bytes(task))})"
