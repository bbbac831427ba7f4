"""ShardTimes: what the analytic cost charges for the shards of a task."""

from __future__ import annotations

from typing import NamedTuple

from shardgym.costs.distinct_rows import expected_distinct_rows
from shardgym.costs.hardware import DeviceConstants
from shardgym.costs.shard_work import ShardWork, backward_ms, forward_ms
from shardgym.plan import Shard
from shardgym.task import ELEMENT_BYTES, OPTIMIZER_STATE, ShardingTask


class ShardMs(NamedTuple):
    """Compute of one shard in each direction, in ms."""

    forward: float
    backward: float


class ShardTimes:
    """Times of the shards of one task on one kind of device; every geometry is worked out once.

    Args:
        task: the task.
        device: constants of the devices.
    """

    def __init__(self, task: ShardingTask, device: DeviceConstants) -> None:
        self._task = task
        self._device = device
        self._distinct: dict[str, float] = {}
        self._known: dict[tuple[str, int, int], ShardMs] = {}

    def of(self, shard: Shard) -> ShardMs:
        """Return the times of a shard; where its rows and columns begin does not matter."""
        rows, columns = shard.rows[1] - shard.rows[0], shard.columns[1] - shard.columns[0]
        key = (shard.table, rows, columns)
        times = self._known.get(key)
        if times is None:
            times = self._known[key] = self._work_out(*key)
        return times

    def _work_out(self, name: str, rows: int, columns: int) -> ShardMs:
        task = self._task
        table = task.table(name)
        if name not in self._distinct:
            self._distinct[name] = expected_distinct_rows(table, task.batch_size)
        share = rows / table.num_embeddings
        per_weight, per_row = OPTIMIZER_STATE[task.optimizer]
        work = ShardWork(
            task.batch_size, task.batch_size * table.pooling_factor * share, self._distinct[name] * share,
            columns * ELEMENT_BYTES[task.precision], 4 * (per_weight * columns + per_row),
        )  # fmt: skip
        return ShardMs(float(forward_ms(self._device, work)), float(backward_ms(self._device, work)))
