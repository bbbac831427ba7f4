"""RooflineCost, an analytic cost that needs no hardware: bytes moved over bandwidth, latencies and fixed costs.

The formulas, then the cost model; constants of devices are in `devices.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import SummedCost
from shardgym.costs.devices import DEVICES, DeviceConstants, device_constants
from shardgym.costs.links import REPLICA_BYTES
from shardgym.costs.mixed_tables import operator_notes
from shardgym.costs.shard_keys import ShardKey, host_misses
from shardgym.errors import InputError
from shardgym.tables.row_access import access_share, distinct_ids, distinct_rows
from shardgym.tasks.task import ELEMENT_BYTES, ShardingTask

#: One number, or an array of one number per shard.
Numbers = float | Floats

ID_BYTES = 8
#: Of what an id of a weighted bag comes with.
WEIGHT_BYTES = 4
#: A radix sort of 8-byte ids with 8-byte payloads in four passes, each reading and writing everything.
_SORT_BYTES_PER_ID = 4 * 2 * 16
#: Of a cache that holds all rows.
_ALL_ROWS = 2**60
#: Blocks that glibc keeps when they are freed; larger ones go back to the system (`man mallopt`, M_MMAP_THRESHOLD).
_KEPT_BYTES = 32 * 2**20


def compute_ms(
    device: DeviceConstants,
    *,
    batch_size: Numbers,
    ids: Numbers,
    distinct: Numbers,
    width_bytes: Numbers,
    output_bytes: Numbers,
    state_bytes: Numbers,
    id_bytes: Numbers = ID_BYTES,
    outputs: Numbers | None = None,
    adagrad_columns: Numbers = 0,
) -> tuple[Numbers, Numbers]:
    """Return forward and backward compute of one shard, or of each of an array of shards, in ms.

    Forward reads ids and offsets, fetches a row per id and writes the output rows, one of every bag. Backward sorts
    ids, fetches a gradient row per id, and updates every distinct row and its optimiser state.

    On CPUs, FBGEMM has vector code for SGD and row-wise Adagrad alone, and adds up gradients of unpooled tables in hash
    maps with an entry for each distinct row (`embedding_backward_split_cpu_template.cpp`).

    Args:
        device: constants of the device.
        batch_size: bags over all devices, a sample's for each feature of the table.
        ids: lookups into the shard.
        distinct: distinct rows among them.
        width_bytes: bytes of one row.
        output_bytes: bytes of one output row.
        state_bytes: bytes of the optimiser state of one row.
        id_bytes: bytes of one id, with its weight if it has one.
        outputs: rows that are put out; None where bags are pooled, for one of each.
        adagrad_columns: columns of one row if the optimiser is Adagrad, else 0.
    """
    collected_ns = 0.0 if outputs is None else device.unpooled_row_ns
    outputs = batch_size if outputs is None else outputs
    lookups_s = ids * device.lookup_ns * 1e-9
    streamed = ids * id_bytes + (batch_size * ID_BYTES + outputs * output_bytes)
    rows_s = _row_reads_s(device, ids - distinct, distinct, distinct * width_bytes, width_bytes)
    forward_s = streamed / device.memory_bandwidth + rows_s + lookups_s

    first_reads = np.minimum(ids, outputs)
    gradients_s = _row_reads_s(device, ids - first_reads, first_reads, outputs * output_bytes, output_bytes)
    sort_s = ids * (_SORT_BYTES_PER_ID + id_bytes - ID_BYTES) / device.memory_bandwidth
    updated = np.maximum(width_bytes, device.access_bytes) + state_bytes
    row_ns = device.row_access_ns + collected_ns + adagrad_columns * device.adagrad_ns
    updates_s = distinct * (2 * updated / device.update_bandwidth + row_ns * 1e-9)
    backward_s = sort_s + gradients_s + updates_s + lookups_s
    return device.table_ms + forward_s * 1e3, device.table_ms + backward_s * 1e3


def _row_reads_s(
    device: DeviceConstants, repeats: Numbers, firsts: Numbers, working_set: Numbers, width: Numbers
) -> Numbers:
    """Seconds to read rows: first touches from memory, repeats from the cache as far as the rows fit in it."""
    moved = np.maximum(width, device.access_bytes)
    memory_s = moved / device.memory_bandwidth + device.row_access_ns * 1e-9
    hit_share = np.minimum(1.0, device.cache_bytes / np.maximum(working_set, 1.0))
    repeat_s = hit_share * moved / device.cache_bandwidth + (1 - hit_share) * memory_s
    return firsts * memory_s + repeats * repeat_s


def shard_ms(device: DeviceConstants, task: ShardingTask, key: ShardKey) -> tuple[float, float]:
    """Return forward and backward compute of a shard on one device that holds it, in ms."""
    table = task.table(key.table)
    served = (key.served or task.num_devices) / task.num_devices
    ids = looked_up(task, key)
    row_bytes, state_bytes = task.row_bytes(table, key.columns)
    forward, backward = compute_ms(
        device,
        batch_size=task.batch_size * served * table.num_features,
        ids=ids,
        distinct=distinct_rows(table, task.batch_size, *key.row_range, served),
        width_bytes=row_bytes,
        output_bytes=key.columns * ELEMENT_BYTES[task.precision],
        state_bytes=state_bytes,
        id_bytes=ID_BYTES + WEIGHT_BYTES * table.weighted,
        outputs=None if table.is_pooled else ids,
        adagrad_columns=key.columns * (task.optimizer_of(table) == "adagrad"),
    )
    # To the kernel, each feature is a table.
    more_tables = (table.num_features - 1) * device.table_ms
    forward += more_tables
    backward += more_tables
    if key.served == 1:
        backward += dense_update_bytes(task, key, device.dense_passes) / device.stream_bandwidth * 1e3
    return float(forward), float(backward)


def looked_up(task: ShardingTask, key: ShardKey) -> float:
    """Return the lookups of a shard on a device that holds it, in one batch."""
    table = task.table(key.table)
    served = (key.served or task.num_devices) / task.num_devices
    if task.dedup_ids and not table.is_pooled:
        return served * distinct_ids(table, task.batch_size, key.row_range, task.num_devices)
    return task.batch_size * table.pooling_factor * access_share(table, *key.row_range) * served


def host_ms(task: ShardingTask, key: ShardKey, bus: float) -> tuple[float, float]:
    """Return what rows of a shard in the memory of the host add, forward and backward, in ms.

    Without a cache, every lookup reads its row, and every distinct row is read and written with its state. With one,
    that is so of rows that it has no room for; others that it has not got are read, and states are read and written.
    Both directions work at once, each with as many bytes per second as the bus has.
    """
    if key.compute_kernel == "fused":
        return 0.0, 0.0
    table = task.table(key.table)
    row_bytes, state_bytes = task.row_bytes(table, key.columns)
    distinct = distinct_rows(table, task.batch_size, *key.row_range)
    misses = host_misses(task, key)
    read = looked_up(task, key) * misses.bypassed_lookups + distinct * misses.fetched
    updated = misses.bypassed * row_bytes + state_bytes
    return read * row_bytes / bus * 1e3, distinct * updated / bus * 1e3


def dense_update_bytes(task: ShardingTask, key: ShardKey, passes: int = 4) -> float:
    """Return the bytes that the dense update of a replica moves in addition to its lookups.

    Args:
        task: task that the key belongs to.
        key: replica to price.
        passes: over all of its rows. FBGEMM's dense operator sets gradients to zero; the optimiser reads them, and
            reads and writes weights, and also states. That makes four. `DistributedDataParallel` copies gradients
            into the buckets that it all-reduces, which makes six (torch/csrc/distributed/c10d/reducer.cpp).
    """
    row_bytes, state_bytes = task.row_bytes(task.table(key.table), key.columns)
    return key.rows * (passes * float(row_bytes) + 2 * state_bytes)


#: What a device that holds any shard takes at least, forward and backward, in the order of `DEVICES`.
_FIXED_MS = np.array([(device.forward_ms, device.backward_ms) for device in DEVICES.values()])
#: Of a byte of fresh memory, likewise.
_FRESH_MS = np.array([1e3 / device.fresh_bandwidth if device.fresh_bandwidth else 0.0 for device in DEVICES.values()])


def untested(task: ShardingTask, device: str) -> tuple[str, ...]:
    """Return a note if the constants of a device were not validated for such a task.

    Those of GPUs were not validated at all, as docs/costs.md says; those of a core with FP32 and exact SGD.
    """
    held = {("fp32", "exact_sgd")}
    if device != "cpu-core" or {(group.precision, group.optimizer) for group in task.fused_groups} == held:
        return ()
    found: list[str] = sorted({group.optimizer for group in task.fused_groups} - {"exact_sgd"})
    if any(group.precision == "fp16" for group in task.fused_groups):
        found.append("fp16, which a core converts in software and so takes longer than fp32")
    return (f"roofline was validated with fp32 and exact_sgd on this device, not with {' or '.join(found)}",)


class RooflineCost(SummedCost):
    """Bytes moved over bandwidth, plus latencies and fixed costs per device and per shard.

    Compute is additive over shards: fusion is not modelled. Rows in the memory of hosts cross the bus of
    the topology, or that of the card's data sheet. Communication is the link model of the task's topology, and
    no ids are exchanged. Replicas exchange gradients densely, and update all rows, see `dense_update_bytes`; on CPUs
    gradients of more than 32 MiB are in fresh memory in each step, as glibc keeps no blocks of that size. CPUs train
    step by step, GPUs hide ids, see `shardgym.costs.links.exchange_times`. Devices without shards compute for free.

    Args:
        hardware: a key of `DEVICES` that replaces the device named by each task's topology.

    Raises:
        UnknownNameError: no such device, here or in the topology of a task.
    """

    name = "roofline"
    deterministic = True
    replicas = True
    unpooled = True
    host_memory = True
    version = "7"

    def __init__(self, hardware: str | None = None) -> None:
        self._override = hardware
        if hardware is not None:
            device_constants(hardware)
        super().__init__()

    @property
    def hardware(self) -> str:
        """Return "roofline", or "roofline-DEVICE" when the device is overridden."""
        return "roofline" if self._override is None else f"roofline-{self._override}"

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments that make this cost model again."""
        return {} if self._override is None else {"hardware": self._override}

    def device_of(self, task: ShardingTask) -> DeviceConstants:
        """Return the constants that a task's plans are priced with; raises `UnknownNameError`."""
        return device_constants(self._override or task.topology.device)

    def make_prices(self) -> AdditiveRoofline:
        """See `SummedCost`."""
        return AdditiveRoofline(self._override)

    def notes(self, task: ShardingTask) -> tuple[str, ...]:
        """See `CostModel`."""
        return untested(task, self._override or task.topology.device) + operator_notes(task)


class AdditiveRoofline(AdditiveCosts):
    """The prices of `RooflineCost`.

    Latents are forward and backward ms of a shard, the number of its device, and bytes of dense gradients.

    Args:
        hardware: see `RooflineCost`.
    """

    bounded = True

    def __init__(self, hardware: str | None = None) -> None:
        super().__init__(num_latents=4)
        self._override = hardware

    def ids_hidden(self, task: ShardingTask) -> bool:
        """See `AdditiveCosts`: on GPUs they are."""
        return (self._override or task.topology.device) != "cpu-core"

    def describe(self, task: ShardingTask, keys: Sequence[ShardKey]) -> dict[str, Floats]:
        """See `AdditiveCosts`; an unknown device of the task is an `UnknownNameError`."""
        name = self._override or task.topology.device
        device = self._constants(name)
        number = list(DEVICES).index(name)
        # Of a table that features share, each counts as a shard.
        rows = [
            (
                *shard_ms(device, task, key),
                number * task.table(key.table).num_features,
                self.key_loads(task, key)[REPLICA_BYTES],
            )
            for key in keys
        ]
        latents = np.array(rows, dtype=np.float64)
        if any(key.compute_kernel != "fused" for key in keys):
            bus = self._bus(task, name)
            latents[:, :2] += [host_ms(task, key, bus) for key in keys]
        return {"latents": latents}

    def _constants(self, name: str) -> DeviceConstants:
        return device_constants(name)

    def unlimited(self, task: ShardingTask) -> AdditiveRoofline:
        """See `AdditiveCosts`; sorting takes as many passes for any rows."""
        del task
        return _UnlimitedRoofline(self._override)

    def _bus(self, task: ShardingTask, name: str) -> float:
        """Return the bandwidth of a device to the memory of its host; a device that is set brings its own along."""
        given = None if self._override else task.topology.host_bandwidth
        bus = device_constants(name).host_bandwidth if given is None else given
        if not bus:
            raise InputError(
                f"cost 'roofline' knows no bandwidth from '{name}' to host memory: set host_bandwidth of the topology"
            )
        return bus

    def device_ms(self, sums: Floats, counts: Floats) -> Floats:
        """See `AdditiveCosts`."""
        numbers = _numbers(sums, counts)
        work_ms = sums[..., :2] + _FIXED_MS[numbers]
        # One operator has the replicas of a device, and their gradient is one block.
        gradients = sums[..., 3]
        work_ms[..., 1] += np.where(gradients > _KEPT_BYTES, gradients * _FRESH_MS[numbers], 0.0)
        return np.where(counts[..., None] > 0, work_ms, 0.0)

    def operator_ms(self, sums: Floats, counts: Floats) -> Floats:
        """See `AdditiveCosts`: the fixed costs of a device."""
        return np.asarray(_FIXED_MS[_numbers(sums, counts)])


def _numbers(sums: Floats, counts: Floats) -> Ints:
    """Return the numbers of devices. Their fixed costs come from tables, as sums of numbers are exact."""
    # All shards of a device have its number, so the sum of the numbers over the count says which device it is.
    return np.rint(sums[..., 2] / np.where(counts > 0, counts, 1.0)).astype(np.int64)


class _UnlimitedRoofline(AdditiveRoofline):
    """The prices of devices whose caches hold all rows, and which keep freed memory."""

    def describe(self, task: ShardingTask, keys: Sequence[ShardKey]) -> dict[str, Floats]:
        """See `AdditiveCosts`."""
        found = super().describe(task, keys)
        found["latents"][:, 3] = 0.0
        return found

    def _constants(self, name: str) -> DeviceConstants:
        return dataclasses.replace(super()._constants(name), cache_bytes=_ALL_ROWS)
