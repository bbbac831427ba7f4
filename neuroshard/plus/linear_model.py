"""The linear model of a cost that the search finds moves by, and its fit to prices."""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard.plus.pricing import SOFTNESS, Pricing
from shardgym.arrays import Floats, Ints
from shardgym.costs.links import COLUMNS, LOADS
from shardgym.costs.ties import quantized
from shardgym.plans.shard import COLUMN_UNIT

#: Devices times tables from which on the search looks at less, for its time.
LARGE = 50_000
#: Places in `LinearModel.prices`.
UNIT_MS, WIDEST_MS, FLOOR, SOFT_MS, SOFT_UNITS = range(5)
#: A device is tried that is wider by the first share of the mean width; where that costs nothing, by the second.
_WIDER = (0.125, 2.0)
#: If a unit less saves less than this share of what a unit more costs, being narrower than the mean saves nothing.
_WORTH_BEING_NARROW = 0.5


@dataclass(frozen=True)
class LinearModel:
    """A linear cost model: times of shards add up, and width has a price. Rows are those of a `ShardTable`.

    Times are quantized, so that sums over devices are exact, see `shardgym.costs.ties`.

    A device's time is `shared_ms`, plus the times of its shards, plus `device_ms` if it holds any, plus `unit_ms` per
    unit of width. A step's time is that of the slowest device, plus `widest_ms` per unit of the widest device, for
    which the others wait. Widths count as at least `floor` units, because a narrow device receives as much as others.
    """

    first: Ints  #: row of each table's empty shard, shape (T,)
    units: Ints  #: units of each table to place, shape (T,)
    row_ms: Floats  #: time of each row, shape (R,)
    row_bytes: Ints  #: bytes of each row, shape (R,)
    memory: Ints  #: bytes of every device, shape (D,)
    device_ms: Floats  #: fixed time of every device with shards, shape (D,)
    shared_ms: Floats  #: time of every device's shared tables, shape (D,)
    unit_ms: float  #: time per unit of a device's width
    widest_ms: float  #: time per unit of the widest device's width
    floor: int  #: least width that counts, in units
    soft_ms: float  #: width of the soft maximum of loads, see `moves.soft_maxima`
    soft_units: float  #: width of the soft maximum of widths

    @functools.cached_property
    def rows(self) -> Floats:
        """Times and bytes of rows for compiled code, shape (R, 2)."""
        return np.column_stack([self.row_ms, self.row_bytes]).astype(np.float64)

    @property
    def prices(self) -> Floats:
        """The last five attributes, indexed by `UNIT_MS` and so on."""
        return np.array([self.unit_ms, self.widest_ms, self.floor, self.soft_ms, self.soft_units], dtype=np.float64)


def linear_model(pricing: Pricing, examples: Sequence[Ints]) -> LinearModel:
    """Fit the model of a task to the prices of example devices, units of shape (D, T)."""
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
    """Return a model with the shared tables of a pricing."""
    shared_ms = pricing.compute(pricing.shared.sums).sum(axis=1)
    memory = pricing.memory
    taken_ms = pricing.charge_ms(model.memory - memory)
    return dataclasses.replace(
        model, units=pricing.units, memory=memory, shared_ms=shared_ms, device_ms=model.device_ms + taken_ms
    )


def levelled(model: LinearModel) -> LinearModel:
    """Return a model whose floor is at most the mean width of placed columns.

    Shared tables take no part in the all-to-all of columns. A narrow device therefore receives less than without shared
    tables, and width counts from a lower floor.
    """
    return dataclasses.replace(model, floor=min(model.floor, int(model.units.sum()) // len(model.memory)))


def _width_price(pricing: Pricing, even_ms: float, share: float) -> tuple[float, float, int]:
    """Fit `unit_ms`, `widest_ms` and `floor` to steps with a wider or narrower device, compensated by another one."""
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
        """Return the times of steps, given the extra width of the first device and the times of the first two."""
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
