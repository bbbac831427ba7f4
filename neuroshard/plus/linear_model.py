"""Fitting the linear model that the compiled search works on to the prices of a cost model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from neuroshard.plus.allocation import Allocation
from neuroshard.plus.placement import LinearModel
from neuroshard.plus.pricing import Pricing
from shardgym.arrays import Ints
from shardgym.plan import COLUMN_UNIT

#: A device is tried that is wider by the first share of the mean width; where that costs nothing, by the second.
_WIDER = (0.125, 2.0)
#: If a unit less saves less than this share of what a unit more costs, being narrower than the mean saves nothing.
_WORTH_BEING_NARROW = 0.5


class WidthPrice(NamedTuple):
    """What the widths of devices cost; see `LinearModel` for its three parts."""

    unit_ms: float
    widest_ms: float
    floor: int


def linear_model(pricing: Pricing, examples: Sequence[Ints]) -> LinearModel:
    """Return the model of a task.

    Args:
        pricing: of the task.
        examples: units of each table on each device, each of shape (D, T), whose devices should come out right.
    """
    shards = pricing.shards
    row_ms, device_ms = pricing.row_prices(examples)
    memory = np.array(shards.task.topology.memory_bytes, dtype=np.int64)
    even_ms = float(row_ms[shards.whole].sum()) / len(memory) + device_ms
    price = WidthPrice(unit_ms=0.0, widest_ms=0.0, floor=0)
    for share in _WIDER if len(memory) > 1 else ():
        price = _width_price(pricing, even_ms, share)
        if any(price):
            break
    even_units = float(shards.units.sum()) / len(memory)
    # Both widths stay the same while plans change: else a descent could go round in circles.
    softness = max(pricing.softness, 1e-6)
    return LinearModel(
        shards.first, shards.units, row_ms, shards.bytes, memory, np.full(len(memory), device_ms),
        price.unit_ms, price.widest_ms, price.floor,
        soft_ms=softness * (even_ms + price.unit_ms * even_units) + 1e-12, soft_units=softness * even_units,
    )  # fmt: skip


def corrected(model: LinearModel, allocation: Allocation) -> LinearModel:
    """Return a model by which the devices of an allocation compute exactly as long as they do."""
    exact = allocation.compute
    estimate = model.row_ms[model.first + allocation.units].sum(axis=1)
    return model._replace(device_ms=np.where(exact > 0, exact - estimate, model.device_ms))


def _width_price(pricing: Pricing, even_ms: float, share: float) -> WidthPrice:
    """Try a device that is wider or narrower by a share of the mean width, which another device makes up for."""
    shards = pricing.shards
    devices = shards.task.num_devices
    units = int(shards.units.sum()) // devices
    change = max(int(share * units), 1)

    def steps_ms(*cases: tuple[int, float, float]) -> list[float]:
        """Return the times of steps in which the first device is so much wider, and the first two take so long."""
        columns = np.full((len(cases), devices), COLUMN_UNIT * max(units, 1))
        compute = np.full((len(cases), devices), even_ms)
        for n, (more, first_ms, second_ms) in enumerate(cases):
            columns[n, :2] += COLUMN_UNIT * np.array([more, -min(more, units)])
            compute[n, :2] = first_ms, second_ms
        ms: list[float] = pricing.totals(compute, np.maximum(columns, 0)).tolist()
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
    return WidthPrice(both - widest, widest, floor)
