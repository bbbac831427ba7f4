"""Where the local search starts: a given plan, greedy construction, and greedy construction with more and more cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from neuroshard.packing import pack_units
from neuroshard.plus.pricing import Pricing
from neuroshard.shard_table import units_of
from shardgym.arrays import Bools, Floats, Ints
from shardgym.incumbent import Budget
from shardgym.plan import ShardingPlan

#: Costliest shards that are cut on trial, and into how many parts.
_TRIED = 4
_PARTS = (2, 3, 4)
#: Multiples of what a column costs in communication that are tried on whole tables.
_COLUMN_PRICES = np.array([0.0, 1.0, 4.0])
_ROUNDS = 10
_LEAST_GAIN = 1e-6


class Built(NamedTuple):
    """L constructed plans.

    Attributes:
        units: of each table on each device, shape (L, D, T).
        compute: of each device in ms, shape (L, D).
        columns: of each device, shape (L, D).
        complete: whether every shard found room, shape (L,).
    """

    units: Ints
    compute: Floats
    columns: Ints
    complete: Bools


def starts_of(pricing: Pricing, budget: Budget, plan: ShardingPlan | None) -> list[Ints]:
    """Return a given plan that cuts no rows; without one, whole tables placed greedily or else a packing.

    Raises:
        OutOfTime: the budget is spent.
        NoFeasiblePlanError: no packing was found.
    """
    given = None if plan is None else units_of(pricing.shards, plan)
    if given is not None:
        return [given]
    built, values = _build_whole(pricing, budget)
    return list(built.units[np.isfinite(values)]) or [pack_units(pricing.shards)]


def cut_greedily(pricing: Pricing, budget: Budget, improved: Callable[[Ints], object]) -> Ints | None:
    """Cut shards one by one as long as everything placed anew is cheaper with the cut.

    Args:
        pricing: of the task.
        budget: of time.
        improved: called with what every round ends in, as the whole may take longer than there is time.

    Returns:
        Units of each table on each device, shape (D, T); None where no placement fits into memory.

    Raises:
        OutOfTime: the budget is spent.
    """
    built, values = _build_whole(pricing, budget)
    best = int(values.argmin())
    value = values[best]
    best_units = built.units[best]
    column_price = pricing.ms_per_column * _COLUMN_PRICES[best]
    tables = np.arange(len(pricing.shards.units))
    units = pricing.shards.units
    for _ in range(_ROUNDS):
        more_tables, more_units = _cuts(pricing, tables, units)
        if not len(more_tables):
            break
        built = build(pricing, more_tables, more_units, np.full(len(more_tables), column_price), budget)
        values = _values(pricing, built)
        best = int(values.argmin())
        if not values[best] < value * (1 - _LEAST_GAIN):
            break
        value = values[best]
        best_units = built.units[best]
        improved(best_units)
        tables = more_tables[best]
        units = more_units[best]
    return best_units if np.isfinite(value) else None


def build(pricing: Pricing, tables: Ints, units: Ints, ms_per_column: Floats, budget: Budget) -> Built:
    """Place shards one after another, costliest first, each on the device that ends up least loaded of those with room.

    The published greedy chooses the device that is least loaded without the shard; here the load includes the shard and
    the price of the width that the device communicates. All column plans advance together. Shards of one table on one
    device become one.

    Args:
        pricing: of the task.
        tables: of each shard of each column plan, shape (L, n).
        units: of each shard; 0 for none, so that column plans may differ in length; shape (L, n).
        ms_per_column: price of a column, shape (L,).
        budget: of time.

    Raises:
        OutOfTime: the budget is spent.
    """
    shards = pricing.shards
    memory = np.array(shards.task.topology.memory_bytes, dtype=np.int64)
    rows = shards.first[tables] + units
    alone = pricing.compute(pricing.vectors[rows])
    order = (-alone).argsort(axis=1, kind="stable")
    tables = np.take_along_axis(tables, order, axis=1)
    units = np.take_along_axis(units, order, axis=1)

    plans = np.arange(len(tables))
    shape = (len(tables), len(memory))
    placed = np.zeros((*shape, len(shards.units)), dtype=np.int64)
    sums = np.zeros((*shape, pricing.vectors.shape[1]))
    compute = np.zeros(shape)
    columns = np.zeros(shape, dtype=np.int64)
    used = np.zeros(shape, dtype=np.int64)
    complete = np.ones(len(tables), dtype=np.bool_)
    for table, more in zip(tables.T, units.T, strict=True):
        budget.check()
        before = shards.first[table][:, None] + placed[plans, :, table]
        after = before + more[:, None]
        new_sums = sums + (pricing.vectors[after] - pricing.vectors[before])
        new_columns = columns + (shards.columns[after] - shards.columns[before])
        new_used = used + (shards.bytes[after] - shards.bytes[before])
        new_compute = pricing.compute(new_sums)
        load = np.where(new_used <= memory, new_compute + ms_per_column[:, None] * new_columns, np.inf)
        at = (plans, load.argmin(axis=1))
        complete &= np.isfinite(load[at])
        placed[(*at, table)] += more
        sums[at] = new_sums[at]
        columns[at] = new_columns[at]
        used[at] = new_used[at]
        compute[at] = new_compute[at]
    return Built(placed, compute, columns, complete)


def _build_whole(pricing: Pricing, budget: Budget) -> tuple[Built, Floats]:
    """Place whole tables at several prices of a column; return plans and values of the objective, infinite for none."""
    prices = pricing.ms_per_column * _COLUMN_PRICES
    tables = np.tile(np.arange(len(pricing.shards.units)), (len(prices), 1))
    units = np.tile(pricing.shards.units, (len(prices), 1))
    built = build(pricing, tables, units, prices, budget)
    return built, _values(pricing, built)


def _values(pricing: Pricing, built: Built) -> Floats:
    _, values = pricing.objective(built.compute, built.columns)
    return np.where(built.complete, values, np.inf)


def _cuts(pricing: Pricing, tables: Ints, units: Ints) -> tuple[Ints, Ints]:
    """Return column plans with one cut more than a given one: tables and units of shards, each of shape (L, n)."""
    rows = pricing.shards.first[tables] + units
    alone = np.where(units > 1, pricing.compute(pricing.vectors[rows]), -1.0)
    costly = (-alone).argsort(kind="stable")[:_TRIED]
    pairs = [(n, parts) for n in costly.tolist() for parts in _PARTS if parts <= units[n]]
    more_tables = np.empty((len(pairs), len(tables) + max(_PARTS) - 1), dtype=np.int64)
    more_units = np.zeros_like(more_tables)
    for plan, (n, parts) in enumerate(pairs):
        more_tables[plan] = np.append(tables, np.full(max(_PARTS) - 1, tables[n]))
        more_units[plan, : len(units)] = units
        sizes = np.full(parts, units[n] // parts) + (np.arange(parts) < units[n] % parts)
        more_units[plan, n] = sizes[0]
        more_units[plan, len(units) : len(units) + parts - 1] = sizes[1:]
    return more_tables, more_units
