"""Starts: where the search begins."""

from __future__ import annotations

import numpy as np

from neuroshard.budget import Budget
from neuroshard.kinds import Kinds
from neuroshard.layout import plan_of
from neuroshard.packing import pack
from neuroshard.plus.allocation import units_of
from neuroshard.plus.cutting import place_whole
from neuroshard.plus.objective import Objective
from neuroshard.plus.pricing import Pricing
from neuroshard.plus.shelf import Shelf
from shardgym.arrays import Ints
from shardgym.errors import NoFeasiblePlanError
from shardgym.plan import ShardingPlan


def starts_of(pricing: Pricing, objective: Objective, budget: Budget, plan: ShardingPlan | None) -> list[Ints]:
    """Return a given plan that cuts no rows; without one, whole tables placed greedily or else a packing.

    Raises:
        OutOfTime: the budget is spent.
        NoFeasiblePlanError: no packing was found.
    """
    given = None if plan is None else units_of(pricing.shelf, plan)
    if given is not None:
        return [given]
    built, values = place_whole(pricing, objective, budget)
    return list(built.units[np.isfinite(values)]) or [packed(pricing.shelf)]


def packed(shelf: Shelf) -> Ints:
    """Return units packed by memory alone, tables halved or where that fails cut anywhere; shape (D, T).

    Raises:
        NoFeasiblePlanError: no packing was found either way.
    """
    kinds = Kinds(shelf.task)
    try:
        units = units_of(shelf, plan_of(kinds, pack(kinds)))
    except NoFeasiblePlanError:
        units = _filled(shelf)
        if units is None:
            raise
    assert units is not None, "a packing cuts no rows"
    return units


def _filled(shelf: Shelf) -> Ints | None:
    """Give as many units as fit to the device with most room, largest units first; None if one fits nowhere."""
    units = np.zeros((shelf.task.num_devices, len(shelf.units)), dtype=np.int64)
    room = np.array(shelf.task.topology.memory_bytes, dtype=np.int64)
    for table in (-shelf.bytes[shelf.first + 1]).argsort(kind="stable").tolist():
        first, left = int(shelf.first[table]), int(shelf.units[table])
        while left:
            device = int(room.argmax())
            fitting = int(shelf.bytes[first : first + left + 1].searchsorted(room[device], side="right")) - 1
            if not fitting:
                return None
            units[device, table] += fitting
            room[device] -= shelf.bytes[first + fitting]
            left -= fitting
    return units
