"""The formulas of the analytic cost: bytes moved over bandwidth, plus latencies and fixed costs.

They take one shard or arrays of shards.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.costs.hardware import DeviceConstants

#: One number, or an array of one number per shard.
Numbers = float | npt.NDArray[np.float64]

_ID_BYTES = 8
#: A radix sort of 8-byte ids with 8-byte payloads in four passes, each reading and writing everything.
_SORT_BYTES_PER_ID = 4 * 2 * 16


class ShardWork(NamedTuple):
    """What a step has to do for a shard.

    Attributes:
        batch_size: samples over all devices.
        ids: lookups into the shard.
        distinct: rows that they touch.
        width_bytes: of one row.
        state_bytes: of one row's optimiser state.
    """

    batch_size: Numbers
    ids: Numbers
    distinct: Numbers
    width_bytes: Numbers
    state_bytes: Numbers


def forward_ms(device: DeviceConstants, work: ShardWork) -> Numbers:
    """Read ids and offsets, fetch a row per id, write pooled values of every sample."""
    streamed = work.ids * _ID_BYTES + work.batch_size * (_ID_BYTES + work.width_bytes)
    rows_s = _row_reads_s(
        device, work.ids - work.distinct, work.distinct, work.distinct * work.width_bytes, work.width_bytes
    )
    seconds = streamed / device.memory_bandwidth + rows_s + work.ids * device.lookup_ns * 1e-9
    return device.table_ms + seconds * 1e3


def backward_ms(device: DeviceConstants, work: ShardWork) -> Numbers:
    """Sort ids, fetch a gradient row per id, update every distinct row and its optimiser state."""
    updated = np.maximum(work.width_bytes, device.access_bytes) + work.state_bytes
    first_reads = np.minimum(work.ids, work.batch_size)
    gradients_s = _row_reads_s(
        device, work.ids - first_reads, first_reads, work.batch_size * work.width_bytes, work.width_bytes
    )
    seconds = (
        work.ids * _SORT_BYTES_PER_ID / device.memory_bandwidth
        + gradients_s
        + work.distinct * (2 * updated / device.update_bandwidth + device.row_access_ns * 1e-9)
        + work.ids * device.lookup_ns * 1e-9
    )
    return device.table_ms + seconds * 1e3


def _row_reads_s(
    device: DeviceConstants, repeats: Numbers, firsts: Numbers, working_set: Numbers, width: Numbers
) -> Numbers:
    """Seconds to read rows: first touches from memory, repeats from the cache as far as the rows fit in it."""
    moved = np.maximum(width, device.access_bytes)
    memory_s = moved / device.memory_bandwidth + device.row_access_ns * 1e-9
    hit_share = np.minimum(1.0, device.cache_bytes / np.maximum(working_set, 1.0))
    repeat_s = hit_share * moved / device.cache_bandwidth + (1 - hit_share) * memory_s
    return firsts * memory_s + repeats * repeat_s
