"""Placement: one plan under way, with everything about its devices that a move changes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neuroshard.plus.objective import Objective
from neuroshard.plus.pricing import Pricing
from shardgym.arrays import Floats, Ints


class Change(NamedTuple):
    """What devices have more than before, in arrays of one shape.

    Attributes:
        columns: of their shards.
        bytes: of their shards.
        ms: of compute.
    """

    columns: Ints
    bytes: Ints
    ms: Floats

    def take(self, *index: Ints) -> Change:
        """Return some of the changes."""
        return Change(self.columns[index], self.bytes[index], self.ms[index])

    def followed_by(self, other: Change) -> Change:
        """Return changes of both, one after the other."""
        return Change(
            np.concatenate([self.columns, other.columns]), np.concatenate([self.bytes, other.bytes]),
            np.concatenate([self.ms, other.ms]),
        )  # fmt: skip

    def plus(self, other: Change) -> Change:
        """Return both changes of the same devices together; ms are only roughly those of both."""
        return Change(self.columns + other.columns, self.bytes + other.bytes, self.ms + other.ms)


class Placement:
    """What devices hold, and what that takes.

    Args:
        pricing: of the task.
        objective: what is minimised.
        units: of each table on each device, shape (D, T).
        total_ms: predicted cost of the plan where it is known already.

    Attributes:
        units: as given; must not be changed.
        sums: added vectors of each device, shape (D, V).
        columns: of each device, shape (D,).
        bytes: used of each device, shape (D,).
        compute: of each device in ms, shape (D,).
        total_ms: predicted cost of the plan.
        value: of the objective in ms.
    """

    def __init__(self, pricing: Pricing, objective: Objective, units: Ints, total_ms: float | None = None) -> None:
        self._pricing, self.units = pricing, units
        shelf, rows = pricing.shelf, pricing.shelf.first + units
        self.sums: Floats = pricing.vectors[rows].sum(axis=1)
        self.columns: Ints = shelf.columns[rows].sum(axis=1)
        self.bytes: Ints = shelf.bytes[rows].sum(axis=1)
        self.compute: Floats = pricing.busy(self.sums, self.columns)
        if total_ms is None:
            total_ms = float(objective.totals(self.compute[None], self.columns[None])[0])
        self.total_ms = total_ms
        self.value = self.total_ms + float(objective.excess(self.compute[None])[0])

    def change(self, devices: Ints, tables: Ints, units: Ints) -> Change:
        """Return what it means that devices hold more or fewer units of a table; shapes broadcast together."""
        shelf = self._pricing.shelf
        before, after = self._rows(devices, tables, units)
        columns = shelf.columns[after] - shelf.columns[before]
        ms = self._more_ms(devices, self._pricing.vectors[after] - self._pricing.vectors[before], columns)
        return Change(columns, shelf.bytes[after] - shelf.bytes[before], ms)

    def exchange_ms(self, devices: Ints, tables: Ints, units: Ints, others: Ints, other_units: Ints) -> Floats:
        """Return by how much compute grows where devices hold other units of two tables, shapes (n,) to (n,).

        Other tables of -1 are none.
        """
        vectors, shelf = self._pricing.vectors, self._pricing.shelf
        before, after = self._rows(devices, tables, units)
        added = vectors[after] - vectors[before]
        columns = shelf.columns[after] - shelf.columns[before]
        two = np.flatnonzero(others >= 0)
        before, after = self._rows(devices[two], others[two], other_units[two])
        added[two] += vectors[after] - vectors[before]
        columns[two] += shelf.columns[after] - shelf.columns[before]
        return self._more_ms(devices, added, columns)

    def _rows(self, devices: Ints, tables: Ints, units: Ints) -> tuple[Ints, Ints]:
        """Return the rows of the shelf that devices hold of tables now, and with more units."""
        before = self._pricing.shelf.first[tables] + self.units[devices, tables]
        return before, before + units

    def _more_ms(self, devices: Ints, vectors: Floats, columns: Ints) -> Floats:
        now = self._pricing.busy(self.sums[devices] + vectors, self.columns[devices] + columns)
        return now - self.compute[devices]
