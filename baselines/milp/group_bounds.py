"""Lower bounds of what the slowest device of a group of equal ones does, for programs that place by groups."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from baselines.milp.exchanges import Exchanges
from baselines.milp.kinds import Columns, Spread
from baselines.milp.linear_program import LinearProgram, Terms
from shardgym.arrays import Floats
from shardgym.tasks.task import ShardingTask

#: Numbers of pieces that are cases of their own, and those between two of them.
_PIECES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56)


class Cut(NamedTuple):
    """Variables of a table in pieces of columns.

    Attributes:
        columns: the table.
        takes: whether it is in pieces of columns.
        pieces: their number on each group that has memory for one.
        units: likewise their units.
        ms: likewise what devices do for them first and at last.
    """

    columns: Columns
    takes: int
    pieces: dict[int, int]
    units: dict[int, int]
    ms: dict[int, list[int]]


class GroupBounds:
    """The part of a program that is about groups of several devices; see `Program`, which has the variables.

    What devices do on average is no more than what the slowest one does. These constraints are for what averages miss:
    loads and fixed costs that some devices have and others have not, and single large pieces.
    """

    _task: ShardingTask
    _exchanges: Exchanges
    _fixed: Floats
    _groups: Sequence[Sequence[int]]
    _unit: float
    _program: LinearProgram
    _cuts: list[Cut]
    _spreads: list[Spread]
    _types: list[tuple[int, ...]]
    _type_of: list[int]
    _at: list[dict[int, int]]
    _users: list[list[tuple[int, int, int]]]
    _domain_users: list[list[tuple[int, int, int]]]
    _has_domain: list[int]
    _takes: list[int]
    _any_pieces: int
    _any_rows: int
    _any_replicas: int
    _any_domain: int
    _widest: int

    def _add_fewer(self, place: int, terms: Terms, goal: int, growing: Terms) -> None:
        """Add that loads on average are higher where fewer devices of a group have pieces.

        Args:
            place: the group.
            terms: what a device has at least, if all have the same.
            goal: what is at least that.
            growing: those of the terms that are shared by the devices that have pieces.
        """
        size = len(self._groups[place])
        most = self._largest_sum(growing)
        for _, count, variable in self._users[place]:
            more = size / count - 1
            if more > 0:
                grown = [(v, f * more) for v, f in growing]
                self._program.at_most([*terms, *grown, (variable, most * more), (goal, -1.0)], most * more)

    def _largest_sum(self, terms: Terms) -> float:
        """Return an upper bound of a sum over kinds: of each table the largest."""
        factors = dict.fromkeys((v for v, _ in terms), 0.0)
        for variable, factor in terms:
            factors[variable] += factor
        largest = [0.0] * self._task.num_tables
        kinds = [(cut.columns.table, [*cut.units.values(), *itertools.chain(*cut.ms.values())]) for cut in self._cuts]
        kinds += [(spread.table, list(at.values())) for spread, at in zip(self._spreads, self._at, strict=True)]
        for table, variables in kinds:
            of_kind = sum(self._program.upper(v) * factors[v] for v in variables if v in factors)
            largest[table] = max(largest[table], of_kind)
        return sum(largest)

    def _add_domain_users(self, place: int, goal: int, number: int, base: Terms) -> None:
        """Add what devices of domains that have tables of their own do at least, by the number of such domains.

        Args:
            place: the group.
            goal: what is at least that.
            number: of the goal.
            base: what all devices do.
        """
        tables = [n for n, spread in enumerate(self._spreads) if spread.devices == "domain"]
        if not tables:
            return
        kind = self._type_of[place]
        domains = len(self._types[kind])
        growing = [(v, f * domains) for v, f in self._own_of_domain(place, number)]
        fixed = float(self._fixed[number])
        # The devices of the domain with the widest sums send them all.
        sent = self._exchanges.nodes.sent_ms * self._unit * float(self._exchanges.transfers[number])
        self._program.at_most([*base, (self._any_domain, fixed), (self._widest, sent), (goal, -1.0)])
        growing += [(self._at[n][kind], self._spreads[n].columns * sent) for n in tables]
        most = self._largest_sum(growing)
        for _, count, variable in self._domain_users[kind]:
            grown = [(v, f / count) for v, f in growing]
            terms = [*base, (self._has_domain[kind], fixed), *grown, (variable, most / count), (goal, -1.0)]
            self._program.at_most(terms, most / count)

    def _add_largest(self, goals: tuple[int, int], common: Terms, arriving: int) -> None:
        """Add what the device with the widest piece of a table does at least: this piece, and what all devices do.

        A table in n pieces has one of at least an n-th of its units.
        """
        prices = self._exchanges.links
        link = int(prices.sent_ms.min(axis=1).argmax())
        latency, sent = float(prices.latency_ms[link].min()), float(prices.sent_ms[link].min())
        backgrounds = []
        for number, weight in enumerate(self._exchanges.transfers.tolist()):
            fixed = float(self._fixed[number])
            background = self._program.variable()
            spread = [
                (takes, float(spread.ms[:, number].min()) * self._unit)
                for takes, spread in zip(self._takes, self._spreads, strict=True)
                if spread.devices == "all"
            ]
            base = [
                *[(v, f * weight) for v, f in common],
                *spread,
                (self._any_rows, fixed),
                (self._any_replicas, fixed),
            ]
            self._program.between([*base, (background, -1.0)], 0, 0)
            backgrounds.append(background)
        for cut in self._cuts:
            columns = cut.columns
            most = min(columns.units, self._task.num_devices)
            counts = sorted({n for n in _PIECES if n < most} | {most})
            flags = [self._program.flag() for _ in counts]
            self._program.between([*[(flag, 1.0) for flag in flags], (cut.takes, -1.0)], 0, 0)
            pieces = [(v, 1.0) for v in cut.pieces.values()]
            least = [(flag, -1.0 - before) for flag, before in zip(flags, [0, *counts], strict=False)]
            self._program.between([*pieces, *least], 0, np.inf)
            self._program.at_most([*pieces, *[(flag, -float(n)) for flag, n in zip(flags, counts, strict=True)]])
            for number, (goal, weight) in enumerate(zip(goals, self._exchanges.transfers.tolist(), strict=True)):
                alone, sending = [], []
                for flag, count in zip(flags, counts, strict=True):
                    units = -(-columns.units // count)
                    ms = float(columns.least_ms[number, units]) * self._unit + float(self._fixed[number])
                    transfer = (latency + sent * units * columns.unit_columns) * self._unit
                    alone.append((flag, ms))
                    sending.append((flag, ms + weight * transfer))
                base = [(backgrounds[number], 1.0), (goal, -1.0)]
                self._program.at_most([*sending, *base])
                self._program.at_most([*alone, (arriving, weight), *base])

    def _arriving(self, everything: Terms, longest: int) -> int:
        """Add what any device needs at least to receive what others have, given the longest transfer.

        No device has more columns than it can send in that time. So the own domain has not more than its devices can
        send, or the device itself where there is one domain; the rest comes from others.
        """
        prices = self._exchanges.links
        sizes = np.bincount(prices.domains)
        link, size = (1, int(sizes.max())) if len(sizes) > 1 else (0, 1)
        sent, received = float(prices.sent_ms[link].min()), float(prices.received_ms[link].min())
        latency = float(prices.latency_ms[link].min()) * self._unit
        arriving = self._program.variable(lower=-np.inf)
        if received > 0:
            kept = received * size / sent
            terms = [(v, f * received * self._unit) for v, f in everything]
            terms += [(longest, -kept), (self._any_pieces, latency * (1 + kept)), (arriving, -1.0)]
            self._program.between(terms, 0, 0)
        else:
            self._program.between([(arriving, 1.0)], 0, 0)
        return arriving

    def _own_of_domain(self, place: int, number: int) -> Terms:
        """Return what a group does on average for tables that single domains hold, without their operator."""
        kind = self._type_of[place]
        share = self._unit / len(self._groups[place])
        return [
            (self._at[n][kind], self._on_group(spread.ms[:, number], place) * share)
            for n, spread in enumerate(self._spreads)
            if spread.devices == "domain"
        ]

    def _on_group(self, values: Floats, place: int) -> float:
        """Return what one domain of a type gets of a table on devices of a group, summed, by position in it."""
        size = self._task.topology.fast_domain_size
        group = self._groups[place]
        domains = len(self._types[self._type_of[place]])
        return float(sum(values[device % size] for device in group)) / domains
