"""Lower bounds of what the slowest device of a group of equal ones does, for programs that place by groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from baselines.milp.choices import Choice, Exchanges
from baselines.milp.linear_program import LinearProgram, Terms
from shardgym.arrays import Floats
from shardgym.task import ShardingTask


class GroupBounds:
    """The part of a program that is about groups of several devices; see `Program`, which has the variables.

    What devices do on average is no more than what the slowest one does. These constraints are for what averages miss:
    loads and fixed costs that some devices have and others have not, and single large pieces.
    """

    _task: ShardingTask
    _choices: Sequence[Choice]
    _exchanges: Exchanges
    _fixed_ms: Floats
    _groups: Sequence[Sequence[int]]
    _unit: float
    _program: LinearProgram
    _types: list[tuple[int, ...]]
    _type_of: list[int]
    _at: list[dict[int, int]]
    _of_table: list[list[int]]
    _users: list[list[tuple[int, int, int]]]
    _domain_users: list[list[tuple[int, int, int]]]
    _has_domain: list[int]
    _any_pieces: int
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
        """Return an upper bound of a sum over choices: of each table the largest."""
        factors = dict.fromkeys((v for v, _ in terms), 0.0)
        for variable, factor in terms:
            factors[variable] += factor
        largest = 0.0
        for numbers in self._of_table:
            variables = [self._at[n].values() for n in numbers]
            largest += max(
                sum(self._program.upper(v) * factors.get(v, 0.0) for v in of_choice) for of_choice in variables
            )
        return largest

    def _add_domain_users(
        self, place: int, goal: int, weights: tuple[float, float, float], transfer: Terms,
        all_ms: list[Terms],
    ) -> None:  # fmt: skip
        """Add what devices of domains that have tables of their own do at least, by the number of such domains."""
        kind = self._type_of[place]
        domains = len(self._types[kind])
        own_ms = [self._own_of_domain(place, way) for way in (0, 1)]
        growing = [(v, f * weights[w] * domains) for w in (0, 1) for v, f in own_ms[w]]
        if not any(choice.spread == "domain" for choice in self._choices):
            return
        fixed = float(np.dot(weights[:2], self._fixed_ms)) * self._unit
        terms = [(v, f * weights[2]) for v, f in transfer] + [(v, f * weights[w]) for w in (0, 1) for v, f in all_ms[w]]
        # The devices of the domain with the widest sums send them all.
        sent = self._exchanges.sent * self._unit * weights[2]
        self._program.at_most([*terms, (self._any_domain, fixed), (self._widest, sent), (goal, -1.0)])
        terms.append((self._has_domain[kind], fixed))
        growing += [
            (at[kind], c.columns * sent) for at, c in zip(self._at, self._choices, strict=True) if c.spread == "domain"
        ]
        most = self._largest_sum(growing)
        for _, count, variable in self._domain_users[kind]:
            grown = [(v, f / count) for v, f in growing]
            self._program.at_most([*terms, *grown, (variable, most / count), (goal, -1.0)], most / count)

    def _add_largest(
        self, place: int, goal: int, weights: tuple[float, float, float], all_ms: list[Terms],
        common: Terms, arriving: int,
    ) -> None:  # fmt: skip
        """Add what any device of a group that holds a piece does at least: this piece, and what all devices do."""
        device = self._groups[place][0]
        prices = self._exchanges.links
        background = self._program.variable()
        base = [(v, f * weights[2]) for v, f in common] + [(v, f * weights[w]) for w in (0, 1) for v, f in all_ms[w]]
        self._program.between([*base, (background, -1.0)], 0, 0)
        link = int(prices.sent_ms[:, device].argmax())
        for n, choice in enumerate(self._choices):
            if choice.spread == "pieces" and place in self._at[n]:
                transfer = float(prices.latency_ms[link, device] + prices.sent_ms[link, device] * choice.columns)
                ms = np.dot(weights[:2], choice.ms[0] + self._fixed_ms) + weights[2] * transfer
                here = self._at[n][place], float(ms) * self._unit / min(choice.pieces, len(self._groups[place]))
                self._program.at_most([here, (background, 1.0), (goal, -1.0)])
                ms = np.dot(weights[:2], choice.ms[0] + self._fixed_ms)
                here = self._at[n][place], float(ms) * self._unit / min(choice.pieces, len(self._groups[place]))
                self._program.at_most([here, (background, 1.0), (arriving, weights[2]), (goal, -1.0)])

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

    def _own_of_domain(self, place: int, way: int) -> Terms:
        """Return compute of tables that single domains hold, without their operator, on a group on average."""
        kind = self._type_of[place]
        return [
            (
                self._at[n][kind],
                self._on_group(choice.ms[:, way], place) / len(self._groups[place]) * self._unit,
            )
            for n, choice in enumerate(self._choices)
            if choice.spread == "domain"
        ]

    def _on_group(self, values: Floats, place: int) -> float:
        """Return what one domain of a type gets of a table on devices of a group, summed, by position in it."""
        size = self._task.topology.fast_domain_size
        group = self._groups[place]
        domains = len(self._types[self._type_of[place]])
        return float(sum(values[device % size] for device in group)) / domains
