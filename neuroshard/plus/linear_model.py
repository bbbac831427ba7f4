"""The linear model of a cost that moves are found by: fitting it to prices, and placements that are priced by it.

The latter is compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from neuroshard.jit import jit
from neuroshard.plus.pricing import SOFTNESS, Pricing
from shardgym.arrays import Floats, Ints
from shardgym.costs.links import COLUMNS, LOADS
from shardgym.costs.ties import QUANTUM, quantized
from shardgym.plans.shard import COLUMN_UNIT

#: Devices times tables from which on the search looks at less, for its time.
LARGE = 50_000
#: A device is tried that is wider by the first share of the mean width; where that costs nothing, by the second.
_WIDER = (0.125, 2.0)
#: If a unit less saves less than this share of what a unit more costs, being narrower than the mean saves nothing.
_WORTH_BEING_NARROW = 0.5


class LinearModel(NamedTuple):
    """A cost model as numbers: what shards take adds up, and width has a price. Rows are those of a `ShardTable`.

    Times are quantized, so that those of devices are exact; so is what the search minimises, see `shardgym.costs.ties`.

    A device takes `shared_ms`, what its shards take, `device_ms` if it holds any, and `unit_ms` for every unit of its
    width, for `floor` units at least: what a narrow device receives takes as long as what it sends. A step takes what
    the slowest device takes, and `widest_ms` for every unit of the widest one, for `floor` units at least: the others
    wait.

    Attributes:
        first: row of each table's empty shard, shape (T,).
        units: of each table that are placed, shape (T,).
        row_ms: of each row, shape (R,).
        row_bytes: likewise.
        memory: bytes of every device, shape (D,).
        device_ms: of every device, shape (D,).
        shared_ms: of the tables that every device holds besides, shape (D,).
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
    shared_ms: Floats
    unit_ms: float
    widest_ms: float
    floor: int
    soft_ms: float
    soft_units: float


def linear_model(pricing: Pricing, examples: Sequence[Ints]) -> LinearModel:
    """Return the model of a task.

    Args:
        pricing: of the task.
        examples: units of each table on each device, each of shape (D, T), whose devices should come out right.
    """
    shards = pricing.shards
    row_ms, device_ms = pricing.row_prices(examples)
    memory = pricing.memory
    # Memory that a row takes cannot be another's: rows are charged for it, and devices have what they have for free.
    free_ms = pricing.charge_ms(memory)
    row_ms = row_ms + pricing.charge_ms(pricing.row_bytes)
    columns = pricing.vectors[:, -LOADS + COLUMNS]
    shared_ms = pricing.compute(pricing.shared.sums).sum(axis=1)
    placed_ms = float(row_ms[shards.first + pricing.units].sum())
    even_ms = (placed_ms + float(shared_ms.sum()) - float(free_ms.sum())) / len(memory) + device_ms
    unit_ms, widest_ms, floor = 0.0, 0.0, 0
    for share in _WIDER if len(memory) > 1 else ():
        unit_ms, widest_ms, floor = _width_price(pricing, even_ms, share)
        if unit_ms or widest_ms or floor:
            break
    # Where not each column goes out once for a sample, as of unpooled tables, those beyond that are work of the shard.
    more = columns / COLUMN_UNIT - (np.arange(len(columns)) - np.repeat(shards.first, shards.units + 1))
    row_ms = quantized(row_ms + (unit_ms + widest_ms) * np.maximum(more, 0.0)) if more.any() else row_ms
    even_units = float(pricing.units.sum()) / len(memory)
    # Both widths stay the same while plans change: else a descent could go round in circles.
    return LinearModel(
        shards.first, pricing.units, row_ms, shards.bytes, memory, device_ms - free_ms, shared_ms,
        unit_ms, widest_ms, floor,
        soft_ms=SOFTNESS * (even_ms + unit_ms * even_units) + 1e-12, soft_units=SOFTNESS * even_units,
    )  # fmt: skip


def model_beside(model: LinearModel, pricing: Pricing) -> LinearModel:
    """Return a model where devices share what they do by this pricing."""
    shared_ms = pricing.compute(pricing.shared.sums).sum(axis=1)
    memory = pricing.memory
    taken_ms = pricing.charge_ms(model.memory - memory)
    return model._replace(units=pricing.units, memory=memory, shared_ms=shared_ms, device_ms=model.device_ms + taken_ms)


def levelled(model: LinearModel) -> LinearModel:
    """Return a model whose floor is at most the mean width of what is placed.

    Of what devices share, other devices receive nothing by the all-to-all of columns. So a narrow device waits less for
    what it receives, and width counts from less on, than where nothing is shared.
    """
    return model._replace(floor=min(model.floor, int(model.units.sum()) // len(model.memory)))


def _width_price(pricing: Pricing, even_ms: float, share: float) -> tuple[float, float, int]:
    """Try a device that is wider or narrower by a share of the mean width, which another device makes up for.

    Returns:
        `unit_ms`, `widest_ms` and `floor` of a `LinearModel`.
    """
    shards = pricing.shards
    devices = shards.task.num_devices
    all_loads = pricing.vectors[shards.first + pricing.units, -LOADS:].sum(axis=0)
    units = int(all_loads[COLUMNS] / COLUMN_UNIT) // devices
    change = max(int(share * units), 1)
    even_loads = all_loads / devices
    even_loads[COLUMNS] = COLUMN_UNIT * max(units, 1)
    # Devices compute forward and backward in the proportion of all tables.
    alone = pricing.compute(pricing.vectors[shards.whole]).sum(axis=0)
    passes = alone / max(float(alone.sum()), 1e-12)

    def steps_ms(*cases: tuple[int, float, float]) -> list[float]:
        """Return the times of steps in which the first device is so much wider, and the first two take so long."""
        loads = np.tile(even_loads + pricing.shared.sums[:, -LOADS:], (len(cases), 1, 1))
        compute = np.full((len(cases), devices), even_ms)
        for n, (more, first_ms, second_ms) in enumerate(cases):
            loads[n, :2, COLUMNS] += COLUMN_UNIT * np.array([more, -min(more, units)])
            compute[n, :2] = first_ms, second_ms
        ms: list[float] = pricing.totals(compute[..., None] * passes, np.maximum(loads, 0.0)).tolist()
        return ms

    wider_ms, same_ms = steps_ms((change, even_ms, even_ms), (0, even_ms, even_ms))
    both = max((wider_ms - same_ms) / change, 0.0)
    # With less to compute, the wider device is not the slowest, and only its width holds the others up.
    spared = even_ms - min(even_ms, 3 * change * both)
    # With more to compute, the narrower device is the slowest; the other one then is the widest.
    slow = 2 * even_ms - spared
    wider_ms, same_ms, slow_ms, narrower_ms = steps_ms(
        (change, spared, spared), (0, spared, spared), (0, slow, spared), (-change, slow, spared)
    )
    widest = min(max((wider_ms - same_ms) / change, 0.0), both)
    saved = (slow_ms - narrower_ms) / change + widest
    floor = units if saved < _WORTH_BEING_NARROW * (both - widest) else 0
    return float(quantized(both - widest)), float(quantized(widest)), floor


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

    def copy_to(self, other: Placement) -> None:
        """Make another placement the same as this one."""
        for mine, theirs in zip(self, other, strict=True):
            theirs[:] = mine


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
    placement.load[device] = model.shared_ms[device] + ms + model.unit_ms * max(width, model.floor)


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
    load = -np.inf
    width = float(model.floor)
    for device in range(len(model.memory)):
        load = max(load, placement.load[device])
        width = max(width, float(placement.widths[device]))
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
    quantum: float = np.rint(ms * (1 / QUANTUM)) * QUANTUM
    return quantum
