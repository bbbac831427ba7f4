"""A linear model of a cost, and placements that are priced by it: compiled code, as Python where numba is missing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neuroshard.plus.optional_jit import jit
from shardgym.arrays import Floats, Ints


class LinearModel(NamedTuple):
    """A cost model as numbers: what shards take adds up, and width has a price. Rows are those of a `ShardTable`.

    A device takes what its shards take, `device_ms` if it holds anything, and `unit_ms` for every unit of its width,
    for `floor` units at least: what a narrow device receives takes as long as what it sends. A step takes what the
    slowest device takes, and `widest_ms` for every unit of the widest one, for `floor` units at least: the others wait.

    Attributes:
        first: row of each table's empty shard, shape (T,).
        units: of each table, shape (T,).
        row_ms: of each row, shape (R,).
        row_bytes: likewise.
        memory: bytes of every device, shape (D,).
        device_ms: of every device, shape (D,).
        unit_ms: per unit of a device's width.
        widest_ms: per unit of the widest device's width.
        floor: units.
        soft_ms: width of the soft maximum of loads, see `SoftMaxima`.
        soft_units: likewise of widths.
    """

    first: Ints
    units: Ints
    row_ms: Floats
    row_bytes: Ints
    memory: Ints
    device_ms: Floats
    unit_ms: float
    widest_ms: float
    floor: int
    soft_ms: float
    soft_units: float


class Placement(NamedTuple):
    """What devices hold, and what that comes to; the last three follow from the first.

    Attributes:
        units: of each table on each device, shape (D, T).
        widths: units of each device, shape (D,).
        bytes: of each device, shape (D,).
        load: what each device takes up to the last exchange in ms, shape (D,).
    """

    units: Ints
    widths: Ints
    bytes: Ints
    load: Floats

    @classmethod
    def empty(cls, devices: int, tables: int) -> Placement:
        """Return devices that hold nothing; not priced."""
        none = np.zeros(devices, dtype=np.int64)
        return cls(np.zeros((devices, tables), dtype=np.int64), none, none.copy(), np.zeros(devices))

    def copy(self) -> Placement:
        """Return an independent placement that is the same."""
        return Placement(self.units.copy(), self.widths.copy(), self.bytes.copy(), self.load.copy())


@jit
def price(model: LinearModel, placement: Placement) -> None:
    """Work out widths, bytes and loads of all devices from their units."""
    for device in range(len(model.memory)):
        price_device(model, placement, device)


@jit
def price_device(model: LinearModel, placement: Placement, device: int) -> None:
    """Work out width, bytes and load of one device; anew, so that rounding does not add up."""
    width = 0
    used = 0
    ms = 0.0
    for table in range(len(model.first)):
        units = placement.units[device, table]
        if units > 0:
            row = model.first[table] + units
            width += units
            used += model.row_bytes[row]
            ms += model.row_ms[row]
    if width > 0:
        ms += model.device_ms[device]
    placement.widths[device] = width
    placement.bytes[device] = used
    placement.load[device] = ms + model.unit_ms * max(width, model.floor)


@jit
def copy_to(placement: Placement, other: Placement) -> None:
    """Make another placement the same as this one."""
    other.units[:] = placement.units
    other.widths[:] = placement.widths
    other.bytes[:] = placement.bytes
    other.load[:] = placement.load


@jit
def overflow(model: LinearModel, placement: Placement) -> int:
    """Return how many bytes are on devices that have no room for them."""
    missing = 0
    for device in range(len(model.memory)):
        missing += max(0, placement.bytes[device] - model.memory[device])
    return missing


@jit
def load_after(
    load: float, more_ms: float, before: int, after: int, floor: int, unit_ms: float, device_ms: float
) -> float:
    """Return the load of a device whose shards take so much more, and whose width is `after` and no longer `before`.

    It takes numbers, as whole records slow down the innermost loops by several times.
    """
    then = load + more_ms + unit_ms * (max(after, floor) - max(before, floor))
    if after == 0 and before > 0:
        then -= device_ms
    if after > 0 and before == 0:
        then += device_ms
    return then


class SoftMaxima(NamedTuple):
    """Soft maxima over devices' loads and widths, to each of which every device adds an exponential.

    With hard maxima, nothing that happens on other devices than the slowest or the widest would count.

    Attributes:
        load: the largest.
        loads: added exponentials of how far loads are below it, in `soft_ms`.
        width: the largest, `floor` at least.
        widths: added exponentials of how far widths are below it, in `soft_units`.
    """

    load: float
    loads: float
    width: float
    widths: float


@jit
def soft_maxima(model: LinearModel, placement: Placement) -> SoftMaxima:
    """Return the soft maxima of a placement."""
    load = placement.load.max()
    width = float(max(placement.widths.max(), model.floor))
    loads = 0.0
    widths = 0.0
    for device in range(len(model.memory)):
        loads += np.exp((placement.load[device] - load) / model.soft_ms)
        widths += np.exp((max(placement.widths[device], model.floor) - width) / model.soft_units)
    return SoftMaxima(load, loads, width, widths)


@jit
def value(model: LinearModel, placement: Placement) -> float:
    """Return what is minimised of a placement: the time of a step with soft maxima, in ms."""
    soft = soft_maxima(model, placement)
    ms: float = soft.load + model.soft_ms * np.log(soft.loads)
    ms += model.widest_ms * (soft.width + model.soft_units * np.log(soft.widths))
    return ms
