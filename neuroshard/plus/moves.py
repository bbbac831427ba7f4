"""Moves: everything that can be done about one device by giving units of one table away, with or without a return."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neuroshard.plus.placement import Change, Placement
from shardgym.arrays import Floats, Ints

#: Shares of what a device holds of a table that it may give away; besides, a single unit.
_SHARES = np.array([1.0, 0.75, 0.5, 0.25])
#: Devices that shards are given to, the least loaded.
_MOST_TARGETS = 16
_NONE = -1


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
    own: Change
    theirs: Change

    def take(self, index: Ints) -> Moves:
        """Return some of the moves."""
        return Moves(
            self.targets[index], self.tables[index], self.units[index], self.back[index], self.back_units[index],
            self.own.take(index), self.theirs.take(index),
        )  # fmt: skip

    def priced(self, placement: Placement, device: int) -> Moves:
        """Return the moves with exact ms."""
        here = np.full(len(self.targets), device)
        own = placement.exchange_ms(here, self.tables, -self.units, self.back, self.back_units)
        theirs = placement.exchange_ms(self.targets, self.tables, self.units, self.back, -self.back_units)
        return self._replace(own=self.own._replace(ms=own), theirs=self.theirs._replace(ms=theirs))

    def outcome(self, placement: Placement, device: int) -> tuple[Floats, Ints]:
        """Return compute and columns of all devices after each move, both of shape (P, D)."""
        number = np.arange(len(self.targets))
        compute = np.repeat(placement.compute[None], len(number), axis=0)
        columns = np.repeat(placement.columns[None], len(number), axis=0)
        compute[:, device] += self.own.ms
        columns[:, device] += self.own.columns
        compute[number, self.targets] += self.theirs.ms
        columns[number, self.targets] += self.theirs.columns
        return compute, columns

    def applied(self, number: int, device: int, units: Ints) -> Ints:
        """Return the units of all devices after one move of `device`, shape (D, T)."""
        after, target = units.copy(), self.targets[number]
        given = self.units[number]
        after[[device, target], self.tables[number]] += [-given, given]
        if self.back[number] != _NONE:
            returned = self.back_units[number]
            after[[device, target], self.back[number]] += [returned, -returned]
        return after


def moves_of(placement: Placement, device: int, memory: Ints) -> Moves:
    """Return all moves of a device that memory allows; `memory` in bytes per device, shape (D,)."""
    held = np.flatnonzero(placement.units[device])
    tables, units = _parts(held, placement.units[device, held])
    targets = _targets(placement, device)
    given = placement.change(np.array(device), tables, -units)
    taken = placement.change(targets, tables[:, None], units[:, None])
    give, to = np.divmod(np.arange(len(tables) * len(targets)), max(len(targets), 1))
    nothing = np.full(len(give), _NONE)
    transfers = Moves(targets[to], tables[give], units[give], nothing, nothing, given.take(give), taken.take(give, to))
    swaps = _fitting(_swaps(placement, device, transfers), placement, device, memory)
    return _joined(_fitting(transfers, placement, device, memory), swaps)


def _swaps(placement: Placement, device: int, transfers: Moves) -> Moves:
    """Return whole shards against whole shards: every transfer of one with every shard of the other device."""
    whole = transfers.take(np.flatnonzero(transfers.units == placement.units[device, transfers.tables]))
    mask = np.zeros(len(placement.units), dtype=np.bool_)
    mask[whole.targets] = True
    owners, tables = np.nonzero(placement.units * mask[:, None])
    units = placement.units[owners, tables]
    here = placement.change(np.array(device), tables, units)
    there = placement.change(owners, tables, -units)
    first, second = np.nonzero((whole.targets[:, None] == owners) & (whole.tables[:, None] != tables))
    return Moves(
        whole.targets[first], whole.tables[first], whole.units[first], tables[second], units[second],
        whole.own.take(first).plus(here.take(second)), whole.theirs.take(first).plus(there.take(second)),
    )  # fmt: skip


def _fitting(moves: Moves, placement: Placement, device: int, memory: Ints) -> Moves:
    here = placement.bytes[device] + moves.own.bytes <= memory[device]
    fits = here & (placement.bytes[moves.targets] + moves.theirs.bytes <= memory[moves.targets])
    return moves if fits.all() else moves.take(np.flatnonzero(fits))


def _parts(tables: Ints, held: Ints) -> tuple[Ints, Ints]:
    """Return tables and units that can be given away, for tables of which `held` units are there."""
    units = np.ones((len(held), len(_SHARES) + 1), dtype=np.int64)
    units[:, :-1] = np.ceil(held[:, None] * _SHARES)
    differs = np.ones(units.shape, dtype=np.bool_)
    differs[:, 1:] = units[:, 1:] < units[:, :-1]
    return np.repeat(tables, differs.sum(axis=1)), units[differs]


def _targets(placement: Placement, device: int) -> Ints:
    """Return the other devices, ascending; of many the least loaded."""
    order = placement.compute.argsort(kind="stable")
    targets: Ints = np.sort(order[order != device][:_MOST_TARGETS])
    return targets


def _joined(first: Moves, second: Moves) -> Moves:
    return Moves(
        np.concatenate([first.targets, second.targets]), np.concatenate([first.tables, second.tables]),
        np.concatenate([first.units, second.units]), np.concatenate([first.back, second.back]),
        np.concatenate([first.back_units, second.back_units]),
        first.own.followed_by(second.own), first.theirs.followed_by(second.theirs),
    )  # fmt: skip
