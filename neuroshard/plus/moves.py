"""Moves of the local search: a device gives units of a table to another, and may get a whole shard in return."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neuroshard.plus.pricing import Pricing
from shardgym.arrays import Floats, Ints

#: Shares of what a device holds of a table that it may give away; besides, a single unit.
_SHARES = np.array([1.0, 0.75, 0.5, 0.25])
#: Devices that shards are given to, the least loaded.
_MOST_TARGETS = 16
_NONE = -1


class DeviceChange(NamedTuple):
    """What devices have more than before, in arrays of one shape.

    Attributes:
        columns: of their shards.
        bytes: of their shards.
        ms: of compute.
    """

    columns: Ints
    bytes: Ints
    ms: Floats

    def take(self, *index: Ints) -> DeviceChange:
        """Return some of the changes."""
        return DeviceChange(self.columns[index], self.bytes[index], self.ms[index])

    def plus(self, other: DeviceChange) -> DeviceChange:
        """Return both changes of the same devices together; ms are only roughly those of both."""
        return DeviceChange(self.columns + other.columns, self.bytes + other.bytes, self.ms + other.ms)


class Allocation:
    """What devices hold, and what that takes.

    Args:
        pricing: of the task.
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

    def __init__(self, pricing: Pricing, units: Ints, total_ms: float | None = None) -> None:
        shards = pricing.shards
        rows = shards.first + units
        self._pricing = pricing
        self.units = units
        self.sums: Floats = pricing.vectors[rows].sum(axis=1)
        self.columns: Ints = shards.columns[rows].sum(axis=1)
        self.bytes: Ints = shards.bytes[rows].sum(axis=1)
        self.compute: Floats = pricing.compute(self.sums)
        if total_ms is None:
            total_ms = float(pricing.totals(self.compute[None], self.columns[None])[0])
        self.total_ms = total_ms
        self.value = self.total_ms + float(pricing.excess(self.compute[None])[0])

    def change(self, devices: Ints, tables: Ints, units: Ints) -> DeviceChange:
        """Return what it means that devices hold more or fewer units of a table; shapes broadcast together."""
        shards = self._pricing.shards
        before, after = self._rows(devices, tables, units)
        columns = shards.columns[after] - shards.columns[before]
        ms = self._more_ms(devices, self._pricing.vectors[after] - self._pricing.vectors[before])
        return DeviceChange(columns, shards.bytes[after] - shards.bytes[before], ms)

    def two_changes_ms(self, devices: Ints, tables: Ints, units: Ints, others: Ints, other_units: Ints) -> Floats:
        """Return by how much compute grows where devices hold other units of two tables, shapes (n,) to (n,).

        Other tables of -1 are none.
        """
        vectors = self._pricing.vectors
        before, after = self._rows(devices, tables, units)
        added = vectors[after] - vectors[before]
        two = np.flatnonzero(others != _NONE)
        before, after = self._rows(devices[two], others[two], other_units[two])
        added[two] += vectors[after] - vectors[before]
        return self._more_ms(devices, added)

    def _rows(self, devices: Ints, tables: Ints, units: Ints) -> tuple[Ints, Ints]:
        """Return the shards that devices hold of tables now, and with more units."""
        before = self._pricing.shards.first[tables] + self.units[devices, tables]
        return before, before + units

    def _more_ms(self, devices: Ints, vectors: Floats) -> Floats:
        return self._pricing.compute(self.sums[devices] + vectors) - self.compute[devices]


class Moves(NamedTuple):
    """P moves of one device: units of a table to another device, and in a swap units of another table back.

    One kind of move is many: giving all of a table away is a move of a shard, or a merge where the other device holds
    some of the table already; giving away a part is a split, or a shift of the cut where the other device holds some.

    Attributes:
        targets: the other devices, shape (P,).
        tables: given away, shape (P,).
        units: of these, shape (P,).
        back: tables returned, -1 for none, shape (P,).
        back_units: of these, shape (P,).
        own: what the device itself has more; in a swap, ms are rough.
        theirs: what the other device has more.
    """

    targets: Ints
    tables: Ints
    units: Ints
    back: Ints
    back_units: Ints
    own: DeviceChange
    theirs: DeviceChange

    def take(self, index: Ints) -> Moves:
        """Return some of the moves."""
        return Moves._make([*(values[index] for values in self[:5]), self.own.take(index), self.theirs.take(index)])

    def priced(self, allocation: Allocation, device: int) -> Moves:
        """Return the moves with exact ms."""
        here = np.full(len(self.targets), device)
        own = allocation.two_changes_ms(here, self.tables, -self.units, self.back, self.back_units)
        theirs = allocation.two_changes_ms(self.targets, self.tables, self.units, self.back, -self.back_units)
        return self._replace(own=self.own._replace(ms=own), theirs=self.theirs._replace(ms=theirs))

    def outcome(self, allocation: Allocation, device: int) -> tuple[Floats, Ints]:
        """Return compute and columns of all devices after each move, both of shape (P, D)."""
        number = np.arange(len(self.targets))
        compute = np.repeat(allocation.compute[None], len(number), axis=0)
        columns = np.repeat(allocation.columns[None], len(number), axis=0)
        compute[:, device] += self.own.ms
        columns[:, device] += self.own.columns
        compute[number, self.targets] += self.theirs.ms
        columns[number, self.targets] += self.theirs.columns
        return compute, columns

    def applied(self, number: int, device: int, units: Ints) -> Ints:
        """Return the units of all devices after one move of `device`, shape (D, T)."""
        after = units.copy()
        pair = [device, self.targets[number]]
        after[pair, self.tables[number]] += [-self.units[number], self.units[number]]
        if self.back[number] != _NONE:
            after[pair, self.back[number]] += [self.back_units[number], -self.back_units[number]]
        return after


def moves_of(allocation: Allocation, device: int, memory: Ints) -> Moves:
    """Return all moves of a device that memory allows; `memory` in bytes per device, shape (D,)."""
    tables, units = _parts(allocation.units[device])
    order = allocation.compute.argsort(kind="stable")
    targets: Ints = np.sort(order[order != device][:_MOST_TARGETS])
    own = allocation.change(np.array(device), tables, -units)
    theirs = allocation.change(targets, tables[:, None], units[:, None])
    # Every part goes to every target.
    part, to = np.divmod(np.arange(len(tables) * len(targets)), max(len(targets), 1))
    nothing = np.full(len(part), _NONE)
    transfers = Moves(targets[to], tables[part], units[part], nothing, nothing, own.take(part), theirs.take(part, to))
    swaps = _fitting(_swaps(allocation, device, transfers), allocation, device, memory)
    return _joined(_fitting(transfers, allocation, device, memory), swaps)


def _swaps(allocation: Allocation, device: int, transfers: Moves) -> Moves:
    """Return whole shards against whole shards: every transfer of one with every shard of the other device."""
    whole = transfers.take(np.flatnonzero(transfers.units == allocation.units[device, transfers.tables]))
    is_target = np.zeros(len(allocation.units), dtype=np.bool_)
    is_target[whole.targets] = True
    owners, tables = np.nonzero(allocation.units * is_target[:, None])
    units = allocation.units[owners, tables]
    own = allocation.change(np.array(device), tables, units)
    theirs = allocation.change(owners, tables, -units)
    first, second = np.nonzero((whole.targets[:, None] == owners) & (whole.tables[:, None] != tables))
    return Moves(
        whole.targets[first], whole.tables[first], whole.units[first], tables[second], units[second],
        whole.own.take(first).plus(own.take(second)), whole.theirs.take(first).plus(theirs.take(second)),
    )  # fmt: skip


def _fitting(moves: Moves, allocation: Allocation, device: int, memory: Ints) -> Moves:
    """Return the moves after which both devices have room for what they hold."""
    own = allocation.bytes[device] + moves.own.bytes <= memory[device]
    fits = own & (allocation.bytes[moves.targets] + moves.theirs.bytes <= memory[moves.targets])
    return moves if fits.all() else moves.take(np.flatnonzero(fits))


def _parts(device_units: Ints) -> tuple[Ints, Ints]:
    """Return tables and units that a device can give away, shape (n,) each; it holds `device_units`, shape (T,)."""
    tables = np.flatnonzero(device_units)
    units = np.ones((len(tables), len(_SHARES) + 1), dtype=np.int64)
    units[:, :-1] = np.ceil(device_units[tables, None] * _SHARES)
    differs = np.ones(units.shape, dtype=np.bool_)
    differs[:, 1:] = units[:, 1:] < units[:, :-1]
    return np.repeat(tables, differs.sum(axis=1)), units[differs]


def _joined(first: Moves, second: Moves) -> Moves:
    own = DeviceChange._make(np.concatenate(pair) for pair in zip(first.own, second.own, strict=True))
    theirs = DeviceChange._make(np.concatenate(pair) for pair in zip(first.theirs, second.theirs, strict=True))
    arrays = [np.concatenate(pair) for pair in zip(first[:5], second[:5], strict=True)]
    return Moves._make([*arrays, own, theirs])
