"""Cutting: starts with more and more cuts, each of a costly shard into two, three or four."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from neuroshard.budget import Budget
from neuroshard.plus.greedy import Built, build
from neuroshard.plus.objective import Objective
from neuroshard.plus.pricing import Pricing
from shardgym.arrays import Floats, Ints

#: Costliest shards that are cut on trial, and into how many parts.
_TRIED, _PARTS = 4, (2, 3, 4)
#: Multiples of what a column costs in communication that are tried on whole tables.
_PRICES = np.array([0.0, 1.0, 4.0])
_ROUNDS = 10
_LEAST_GAIN = 1e-6


def place_whole(pricing: Pricing, objective: Objective, budget: Budget) -> tuple[Built, Floats]:
    """Place whole tables greedily, at several prices of a column; return placements and values, infinite for none.

    Raises:
        OutOfTime: the budget is spent.
    """
    prices = pricing.ms_per_column * _PRICES
    tables, units = np.arange(len(pricing.shelf.units)), pricing.shelf.units
    lanes = (len(prices), 1)
    built = build(pricing, np.tile(tables, lanes), np.tile(units, lanes), prices, budget)
    return built, _values(objective, built)


def cut_greedily(pricing: Pricing, objective: Objective, budget: Budget, better: Callable[[Ints], None]) -> Ints | None:
    """Cut shards one by one as long as everything placed anew is cheaper with the cut.

    Args:
        pricing: of the task.
        objective: what is minimised.
        budget: of time.
        better: told of what every round ends in, as the whole may take longer than there is time.

    Returns:
        Units of each table on each device, shape (D, T); None where no placement fits into memory.

    Raises:
        OutOfTime: the budget is spent.
    """
    built, values = place_whole(pricing, objective, budget)
    best = int(values.argmin())
    value, held, price = values[best], built.units[best], pricing.ms_per_column * _PRICES[best]
    tables, units = np.arange(len(pricing.shelf.units)), pricing.shelf.units
    for _ in range(_ROUNDS):
        more_tables, more_units = _cuts(pricing, tables, units)
        if not len(more_tables):
            break
        built = build(pricing, more_tables, more_units, np.full(len(more_tables), price), budget)
        values = _values(objective, built)
        best = int(values.argmin())
        if not values[best] < value * (1 - _LEAST_GAIN):
            break
        value, held = values[best], built.units[best]
        better(held)
        tables, units = more_tables[best], more_units[best]
    return held if np.isfinite(value) else None


def _values(objective: Objective, built: Built) -> Floats:
    values = objective.totals(built.compute, built.columns) + objective.excess(built.compute)
    return np.where(built.complete, values, np.inf)


def _cuts(pricing: Pricing, tables: Ints, units: Ints) -> tuple[Ints, Ints]:
    """Return column plans with one cut more than a given one, each of shape (L, n)."""
    rows = pricing.shelf.first[tables] + units
    alone = np.where(units > 1, pricing.busy(pricing.vectors[rows], pricing.shelf.columns[rows]), -1.0)
    costly = (-alone).argsort(kind="stable")[:_TRIED]
    pairs = [(n, parts) for n in costly.tolist() for parts in _PARTS if parts <= units[n]]
    more_tables = np.empty((len(pairs), len(tables) + max(_PARTS) - 1), dtype=np.int64)
    more_units = np.zeros_like(more_tables)
    for lane, (n, parts) in enumerate(pairs):
        more_tables[lane] = np.append(tables, np.full(max(_PARTS) - 1, tables[n]))
        more_units[lane, : len(units)] = units
        sizes = np.full(parts, units[n] // parts) + (np.arange(parts) < units[n] % parts)
        more_units[lane, n] = sizes[0]
        more_units[lane, len(units) : len(units) + parts - 1] = sizes[1:]
    return more_tables, more_units
