"""Greedy construction: shards one after another, costliest first, each where the step is cheapest with it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neuroshard.budget import Budget
from neuroshard.plus.pricing import Pricing
from shardgym.arrays import Floats, Ints


class Built(NamedTuple):
    """L placements under construction or done.

    Attributes:
        units: of each table on each device, shape (L, D, T).
        compute: of each device in ms, shape (L, D).
        columns: of each device, shape (L, D).
        complete: whether every shard found room, shape (L,).
    """

    units: Ints
    compute: Floats
    columns: Ints
    complete: np.ndarray


def build(pricing: Pricing, tables: Ints, units: Ints, ms_per_column: Floats, budget: Budget) -> Built:
    """Place shards, each on the device that ends up least loaded of those with room.

    The published greedy asks which device is least loaded before; here the shard itself and the width that the device
    has to communicate count. All placements advance together. Shards of one table on one device become one.

    Args:
        pricing: of the task.
        tables: of each shard of each column plan, shape (L, n).
        units: of each shard; 0 for none, so that column plans may differ in length; shape (L, n).
        ms_per_column: price of a column, shape (L,).
        budget: of time.

    Raises:
        OutOfTime: the budget is spent.
    """
    shelf = pricing.shelf
    memory = np.array(shelf.task.topology.memory_bytes, dtype=np.int64)
    lanes, shape = np.arange(len(tables)), (len(tables), len(memory))
    tables, units = _costliest_first(pricing, tables, units)
    held = np.zeros((*shape, len(shelf.units)), dtype=np.int64)
    sums, compute = np.zeros((*shape, pricing.vectors.shape[1])), np.zeros(shape)
    columns, used = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    complete = np.ones(len(tables), dtype=np.bool_)
    for table, more in zip(tables.T, units.T, strict=True):
        budget.check()
        before = shelf.first[table][:, None] + held[lanes, :, table]
        after = before + more[:, None]
        new_sums = sums + (pricing.vectors[after] - pricing.vectors[before])
        new_columns = columns + (shelf.columns[after] - shelf.columns[before])
        new_used = used + (shelf.bytes[after] - shelf.bytes[before])
        new_compute = pricing.busy(new_sums, new_columns)
        load = np.where(new_used <= memory, new_compute + ms_per_column[:, None] * new_columns, np.inf)
        at = lanes, load.argmin(axis=1)
        complete &= np.isfinite(load[at])
        held[(*at, table)] += more
        for old, new in ((sums, new_sums), (compute, new_compute), (columns, new_columns), (used, new_used)):
            old[at] = new[at]
    return Built(held, compute, columns, complete)


def _costliest_first(pricing: Pricing, tables: Ints, units: Ints) -> tuple[Ints, Ints]:
    rows = pricing.shelf.first[tables] + units
    alone = pricing.busy(pricing.vectors[rows], pricing.shelf.columns[rows])
    order = (-alone).argsort(axis=1, kind="stable")
    return np.take_along_axis(tables, order, axis=1), np.take_along_axis(units, order, axis=1)
