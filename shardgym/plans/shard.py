"""Shard: a rectangle of a table and the devices that hold it, and what shards take of a device's memory."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator
from pydantic.dataclasses import dataclass

from shardgym.errors import check_instance, short_repr
from shardgym.records import CONFIG, Name, Number, Record, Whole
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardBytes, ShardingTask, block_bytes

#: FBGEMM's fused kernels take widths divisible by this, so it is the unit of a column cut.
COLUMN_UNIT = 4

Bound = Annotated[Whole, Field(ge=0, le=2**40)]

#: What looks a shard up, in TorchRec's words, which says in which memory its rows are: `fused`, that of the device;
#: `fused_uvm`, that of the host, read over the bus; `fused_uvm_caching`, that of the host with a cache on the device.
ComputeKernel = Literal["fused", "fused_uvm", "fused_uvm_caching"]
Memory = Literal["device", "host"]
#: Bytes that FBGEMM keeps on the device beside a cache: for every row of the table where it is in the cache, and for
#: every row that the cache has room for, which one it is and when it was used.
_CACHE_ROW_BYTES = 4
_CACHE_SLOT_BYTES = 16


@dataclass(frozen=True, order=True, config=CONFIG)
class Shard(Record):
    """A rectangle of one table, and the devices that hold it.

    With one device, the rectangle is sharded. With all devices, it is replicated, which TorchRec calls data parallel.
    With one device in each block of consecutive devices, each block has a copy, as groups of 2D parallelism have.

    Attributes:
        table: name of the table.
        rows: first row and the row after the last.
        columns: first column and the column after the last.
        devices: numbers of the devices that hold it, ascending; one number stands for a single one.
        compute_kernel: memory of its rows. "fused": the device's. "fused_uvm": the host's. "fused_uvm_caching": the
            host's, with a cache on the device.
        cache_load_factor: share of its rows that the cache has room for; 0 without a cache.

    Raises:
        InputError: a cache without a share, a share without a cache, or what every record refuses.
    """

    table: Name
    rows: tuple[Bound, Bound]
    columns: tuple[Bound, Bound]
    devices: tuple[Annotated[Whole, Field(ge=0)], ...]
    compute_kernel: Annotated[ComputeKernel, Field(exclude_if=lambda kernel: kernel == "fused")] = "fused"
    cache_load_factor: Annotated[Number, Field(ge=0, le=1, exclude_if=lambda share: share == 0)] = 0.0

    @field_validator("rows", "columns")
    @classmethod
    def _not_empty(cls, value: tuple[int, int]) -> tuple[int, int]:
        if value[0] >= value[1]:
            raise ValueError(f"expected start < end, got {list(value)}")
        return value

    @field_validator("devices", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if hasattr(value, "__index__") else value

    @field_validator("devices")
    @classmethod
    def _ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or any(device >= after for device, after in itertools.pairwise(value)):
            raise ValueError(f"expected at least one device, in ascending order, got {short_repr(list(value))}")
        return value

    @model_validator(mode="after")
    def _cache_has_a_size(self) -> Shard:
        if (self.compute_kernel == "fused_uvm_caching") != (self.cache_load_factor > 0):
            raise ValueError(
                "expected cache_load_factor > 0 if and only if compute_kernel is 'fused_uvm_caching', "
                f"got {self.cache_load_factor} with '{self.compute_kernel}'"
            )
        return self

    @classmethod
    def whole(cls, table: EmbeddingTable, *devices: int) -> Shard:
        """Return a shard that is all of `table`; raises `InputError` when that is not a table."""
        check_instance("table", table, EmbeddingTable)
        rows = (0, table.num_embeddings)
        columns = (0, table.embedding_dim)
        if len(devices) != 1 or type(devices[0]) is not int or devices[0] < 0:
            return cls(table.name, rows, columns, devices)
        # A table has been checked: checking its shard takes longer than a fast solver takes to place it.
        return cls.unchecked(table=table.name, rows=rows, columns=columns, devices=devices)

    def on(self, device: int) -> Shard:
        """Return the same rectangle on one device; only its number is checked, as a full check takes far longer."""
        if type(device) is not int or device < 0:
            return dataclasses.replace(self, devices=(device,))
        return self._changed(devices=(device,))

    def with_columns(self, first: int, last: int) -> Shard:
        """Return the shard with columns from `first` to before `last`, checked as in `on`."""
        if type(first) is not int or type(last) is not int or not 0 <= first < last <= 2**40:
            return dataclasses.replace(self, columns=(first, last))
        return self._changed(columns=(first, last))

    def _changed(self, **changed: Any) -> Shard:
        return Shard.unchecked(**{name: self.__dict__[name] for name in _FIELDS} | changed)

    @property
    def num_rows(self) -> int:
        """Rows of the shard."""
        return self.rows[1] - self.rows[0]

    @property
    def num_columns(self) -> int:
        """Columns of the shard."""
        return self.columns[1] - self.columns[0]

    def is_replicated(self, task: ShardingTask) -> bool:
        """Say whether each of several devices holds it, so that none sends what it looks up."""
        return len(self.devices) == task.num_devices > 1

    @property
    def memory(self) -> Memory:
        """Which memory its rows are in."""
        return "device" if self.compute_kernel == "fused" else "host"

    def bytes(self, task: ShardingTask) -> int:
        """Bytes on each device that holds it, see `device_bytes`."""
        if self.memory != "device":
            return sum(self.device_bytes(task))
        return task.block_bytes(
            task.table(self.table),
            self.num_rows,
            self.num_columns,
            first_row=self.rows[0],
            num_holders=len(self.devices),
        )

    def device_bytes(self, task: ShardingTask, *, hottest: bool = True) -> ShardBytes:
        """Bytes on each device that holds it, by what they are for; see `ShardingTask.shard_bytes`.

        Of rows in the memory of the host, the cache counts as weights: its rows, 4 bytes for each row of the shard, and
        16 for each row of the cache. FBGEMM keeps optimiser states in the memory of the host, with a cache, too.
        """
        table = task.table(self.table)
        found = task.shard_bytes(table, self.rows, self.num_columns, len(self.devices), hottest=hottest)
        if self.memory == "device":
            return found
        slots = math.ceil(self.cache_load_factor * self.num_rows)
        cache = slots * (found.weights // self.num_rows + _CACHE_SLOT_BYTES)
        return found._replace(weights=cache + self.num_rows * _CACHE_ROW_BYTES if slots else 0, optimizer=0)

    def host_bytes(self, task: ShardingTask) -> int:
        """Bytes in the memory of the host of each device that holds it: all rows and states, cached or not."""
        if self.memory != "host":
            return 0
        table = task.table(self.table)
        return block_bytes(self.num_rows, self.num_columns, task.precision_of(table), task.optimizer_of(table))


_FIELDS = tuple(field.name for field in dataclasses.fields(Shard))


class DeviceMemory(NamedTuple):
    """What a device's memory holds in a training step, in bytes; the last two are 0 without `task.step_memory`."""

    weights: int  #: of its shards, and caches of those whose rows are in the memory of the host
    optimizer: int  #: optimiser states, without those in the memory of the host
    in_flight: int  #: ids, pooled values and gradients: those of its shards, and those of its own samples
    reserved: int  #: for the dense part of the model and the framework

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def device_memory(task: ShardingTask, shards: Iterable[Shard], device: int, *, hottest: bool = True) -> DeviceMemory:
    """Return what a device that holds some shards has in memory; see `ShardingPlan.memory_per_device`."""
    found = [shard.device_bytes(task, hottest=hottest) for shard in shards if task.has_table(shard.table)]
    return DeviceMemory(
        sum(part.weights for part in found),
        sum(part.optimizer for part in found),
        sum(part.in_flight for part in found) + task.own_bytes(device),
        0 if task.step_memory is None else task.step_memory.reserved_on(device),
    )


def format_devices(devices: Sequence[int]) -> str:
    """Return "device 3", "devices 0, 4" or, of many, "64 devices from 0 to 63"."""
    if len(devices) > 8:
        return f"{len(devices)} devices from {devices[0]} to {devices[-1]}"
    return f"device{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}"
