"""What the analytic cost charges for one shard: bytes moved over bandwidth, plus latencies and fixed costs."""

from __future__ import annotations

from typing import NamedTuple

from shardgym.costs.distinct_rows import expected_distinct_rows
from shardgym.costs.hardware import DeviceConstants
from shardgym.plan import Shard
from shardgym.task import ELEMENT_BYTES, OPTIMIZER_STATE, ShardingTask

_ID_BYTES = 8
#: A radix sort of 8-byte ids with 8-byte payloads in four passes, each reading and writing everything.
_SORT_BYTES_PER_ID = 4 * 2 * 16


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
        table = self._task.table(name)
        if name not in self._distinct:
            self._distinct[name] = expected_distinct_rows(table, self._task.batch_size)
        share = rows / table.num_embeddings
        ids = self._task.batch_size * table.pooling_factor * share
        distinct = self._distinct[name] * share
        return ShardMs(self._forward_ms(ids, distinct, columns), self._backward_ms(ids, distinct, columns))

    def _forward_ms(self, ids: float, distinct: float, columns: int) -> float:
        """Read ids and offsets, fetch a row per id, write pooled values of every sample."""
        device, batch = self._device, self._task.batch_size
        width = columns * ELEMENT_BYTES[self._task.precision]
        streamed = ids * _ID_BYTES + batch * (_ID_BYTES + width)
        rows_s = self._row_reads_s(ids - distinct, distinct, distinct * width, width)
        seconds = streamed / device.memory_bandwidth + rows_s + ids * device.lookup_ns * 1e-9
        return device.table_ms + seconds * 1e3

    def _backward_ms(self, ids: float, distinct: float, columns: int) -> float:
        """Sort ids, fetch a gradient row per id, update every distinct row and its optimiser state."""
        device, batch = self._device, self._task.batch_size
        width = columns * ELEMENT_BYTES[self._task.precision]
        per_weight, per_row = OPTIMIZER_STATE[self._task.optimizer]
        updated = max(width, device.access_bytes) + 4 * (per_weight * columns + per_row)
        first_reads = min(ids, float(batch))
        gradients_s = self._row_reads_s(ids - first_reads, first_reads, batch * width, width)
        seconds = (
            ids * _SORT_BYTES_PER_ID / device.memory_bandwidth
            + gradients_s
            + distinct * (2 * updated / device.update_bandwidth + device.row_access_ns * 1e-9)
            + ids * device.lookup_ns * 1e-9
        )
        return device.table_ms + seconds * 1e3

    def _row_reads_s(self, repeats: float, firsts: float, working_set: float, width: int) -> float:
        """Seconds to read rows: first touches from memory, repeats from the cache as far as the rows fit in it."""
        device = self._device
        moved = max(width, device.access_bytes)
        memory_s = moved / device.memory_bandwidth + device.row_access_ns * 1e-9
        hit_share = min(1.0, device.cache_bytes / working_set) if working_set else 1.0
        repeat_s = hit_share * moved / device.cache_bandwidth + (1 - hit_share) * memory_s
        return firsts * memory_s + repeats * repeat_s
