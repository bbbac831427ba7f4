"""The mixed-integer program of a step, over single devices or over groups of equal ones, solved by HiGHS."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from baselines.milp.kinds import Exchanges, Kinds, Line, Spread, spread_loads
from baselines.milp.linear_program import Sum
from baselines.milp.places import Places
from neuroshard.plus.nodes import packed
from shardgym.arrays import Ints
from shardgym.tasks.task import ShardingTask

#: Of a bound: what errors of the solver may make it too high by, and more.
_SAFETY = 1e-6
#: Numbers of pieces that are cases of their own, and those between two of them.
_PIECES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56)


class Answer(NamedTuple):
    """The answer to a program."""

    bound_ms: float  #: no plan of these kinds takes less; infinite where there is none, or none below the cutoff
    #: Tables that are spread, each with its domain, or 0; None where no solution was found.
    spreads: list[tuple[Spread, int]] | None
    units: Ints  #: of each place, of each table in pieces, shape (G, T)


class Program(Places):
    """Chooses kinds and places that minimise the time of a step's slowest device.

    Over single devices, the program models a step whose compute is linear. Over groups of equal devices, it is a
    relaxation: the mean work of a group, and the least work of any device with a piece, bound the slowest device from
    below. Its optimum is therefore a bound, and 64 equal devices are one place instead of 64 interchangeable ones.
    Means miss loads and fixed costs of only some devices, and single large pieces: `_add_fewer`, `_add_domain_users`
    and `_add_largest` add these.

    Every table has at least one kind. The devices of a group have equal memory and links, in domains of equal groups.
    """

    def __init__(self, task: ShardingTask, kinds: Kinds, exchanges: Exchanges, groups: Sequence[Sequence[int]]) -> None:
        super().__init__(task, kinds, exchanges, groups)
        rows = self._line(exchanges.rows, self._any_rows, [s.columns * (s.devices == "all") for s in self._spreads])
        replicas = self._line(exchanges.replicas, self._any_replicas, [s.replica_bytes for s in self._spreads])
        inside, between = self._add_domains()
        common = rows + inside
        goals = self._program.variable(), self._program.variable()
        self._objective = self._program.variable()
        self._program.at_most(goals[0] + goals[1] + replicas, self._objective)
        everything = Sum.of(self._columns(place) for place in range(len(groups)))
        longest = self._program.variable()
        # All wait for the exchange of gradients of the device with the longest one.
        self._busiest = self._program.variable()
        self._program.at_most(common + longest, self._busiest)
        self._program.at_most(common + longest, goals[0])
        self._program.at_most(self._busiest, goals[1])
        arriving = self._arriving(everything, longest)
        for place in range(len(groups)):
            self._add_place(place, goals, common, between, everything, longest, arriving)
        if len(groups) < task.num_devices:
            self._add_largest(goals, common, arriving)

    def solve(
        self, *, gap: float, nodes: int, cutoff_ms: float = np.inf, domains: bool | None = None,
        time_limit_s: float = np.inf,
    ) -> Answer:  # fmt: skip
        """Run HiGHS, see `LinearProgram.minimise`, for plans that cost less than `cutoff_ms`.

        `domains` requires (True) or forbids (False) tables cut by rows in single domains; None allows both.
        """
        ranges = {self._objective.number: (0.0, cutoff_ms * self._unit)}
        if domains is not None:
            ranges[self._any_domain.number] = (float(domains), float(domains))
        found = self._program.minimise(self._objective, gap=gap, ranges=ranges, nodes=nodes, time_limit_s=time_limit_s)
        bound_ms = found.bound / self._unit * (1 - _SAFETY)
        units = np.zeros((len(self._groups), self._task.num_tables), dtype=np.int64)
        if found.values is None:
            return Answer(bound_ms, None, units)
        values = np.rint(found.values).astype(np.int64)
        for cut in self._cuts:
            for place, variable in cut.units.items():
                units[place, cut.columns.table] = values[variable.number]
        return Answer(bound_ms, self._chosen(values), units)

    def _chosen(self, values: Ints) -> list[tuple[Spread, int]]:
        """Return tables that are spread, with domains so that those of a type have about alike to do."""
        chosen = [n for n in range(len(self._spreads)) if values[self._takes[n].number]]
        domains = dict.fromkeys(chosen, 0)
        for kind, (of_type, cases) in enumerate(zip(self._types, self._domain_users, strict=True)):
            held = [n for n in chosen if kind in self._at[n] and values[self._at[n][kind].number]]
            if not held:
                continue
            users = of_type[: sum(case.most * int(values[case.variable.number]) for case in cases)]
            spreads = [self._spreads[n] for n in held]
            loads = spread_loads(spreads, self._exchanges)
            sizes = np.array([int(spread.bytes.max()) for spread in spreads])
            size = self._task.topology.fast_domain_size
            room = np.array([min(self._task.capacity_bytes[user * size : (user + 1) * size]) for user in users])
            places = packed(loads, np.zeros((len(users), loads.shape[1])), sizes, room)
            for n, place in zip(held, places.tolist(), strict=True):
                domains[n] = users[place]
        return [(self._spreads[n], domain) for n, domain in domains.items()]

    def _add_place(
        self, place: int, goals: tuple[Sum, Sum], common: Sum, between: list[Sum], everything: Sum, longest: Sum,
        arriving: Sum,
    ) -> None:  # fmt: skip
        """Add the work of a group's devices; `between` is per type of domains, for tables of single domains."""
        program = self._program
        exchange = self._exchanges
        prices = self._exchanges.links
        group = self._groups[place]
        device = group[0]
        size = len(group)
        kind = self._type_of[place]
        alone = size == 1
        own = self._columns(place) / size
        in_place = [p for p, of_place in enumerate(self._type_of) if of_place == kind]
        of_type = Sum.of(self._columns(p) for p in in_place) / len(self._types[kind])
        holder = program.variable()
        average = program.variable()
        for link, others in enumerate((of_type - own, everything - of_type)):
            latency = self._any_pieces * (float(prices.latency_ms[link, device]) * self._unit)
            sent = float(prices.sent_ms[link, device]) * self._unit
            received = float(prices.received_ms[link, device]) * self._unit
            program.at_most(own * sent + latency, holder)
            for transfer in (holder, average) if alone else (average,):
                program.at_most(others * received + latency, transfer)
        program.at_most(holder, longest)
        program.at_most(average, longest)
        if not alone:
            program.at_most(arriving, holder)
            # The devices of the domain with the widest sums send them all.
            sums = self._widest * (exchange.nodes.sent_ms * self._unit)
            program.at_most(common + arriving + sums, self._busiest)
            link = int(prices.sent_ms[:, device].argmax())
            growing = own * float(prices.sent_ms[link, device]) * self._unit
            latency = self._any_pieces * (float(prices.latency_ms[link, device]) * self._unit)
            self._add_fewer(place, growing + latency, holder, growing)
        program.at_most(common + (holder if alone else average) + between[kind], self._busiest)
        for number, goal in enumerate(goals):
            pieces_ms = self._pieces(place, number) / size
            all_ms = self._everywhere(list(group), number)
            domain_ms = self._in_domain(place, number)
            fixed = float(self._fixed[number])
            sending = common + holder + between[kind] if alone else common + holder
            sending = self._busiest if number else sending
            terms = sending + pieces_ms + all_ms + self._has_pieces[place] * fixed
            program.at_most(terms + domain_ms if alone else terms, goal)
            if alone:
                continue
            self._add_fewer(place, terms, goal, pieces_ms)
            users = Sum.of(case.variable * (fixed * case.least / size) for case in self._users[place])
            sending = self._busiest if number else common + average + between[kind]
            program.at_most(sending + pieces_ms + all_ms + domain_ms + users, goal)
            sending = self._busiest if number else common + arriving
            self._add_domain_users(place, goal, number, sending + all_ms)

    def _add_domains(self) -> tuple[Sum, list[Sum]]:
        """Add exchanges of tables that single domains hold by rows; return their times, of all devices and per type."""
        program = self._program
        exchange = self._exchanges
        tables = [(n, spread) for n, spread in enumerate(self._spreads) if spread.devices == "domain"]
        self._widest = widest = program.variable()
        if not tables:
            program.equal(self._any_domain)
            return Sum(), [Sum() for _ in self._types]
        # Widths are multiples of one: so is the largest sum of a domain.
        unit = int(np.gcd.reduce([int(spread.columns) for _, spread in tables]))
        program.equal(widest, program.variable(whole=True) * float(unit))
        between = []
        total = Sum.of(self._takes[n] * spread.columns for n, spread in tables)
        for kind, of_type in enumerate(self._types):
            domains = len(of_type)
            own = Sum.of(self._at[n][kind] * (spread.columns / domains) for n, spread in tables)
            program.at_most(own, widest)
            most = self._largest_sum(own) * domains
            for _, count, variable in self._domain_users[kind]:
                if count < domains:
                    wide = Sum([(v, f * domains / count) for v, f in own.terms])
                    program.at_most(wide + variable * (most / count) - widest, most / count)
            time = program.variable()
            program.at_most(own * exchange.nodes.sent_ms * self._unit, time)
            received = exchange.nodes.received_ms * self._unit
            program.at_most(total * received - own * received, time)
            between.append(time)
        for n, spread in tables:
            program.at_most(self._takes[n] * spread.columns, widest)
        inside_ms = exchange.nodes.inside_ms * self._unit
        latency_ms = exchange.nodes.latency_ms * self._unit
        return widest * inside_ms + self._any_domain * latency_ms, between

    def _line(self, line: Line, any_of: Sum, loads: Sequence[float]) -> Sum:
        """Return the time of an exchange of tables with these loads, latency plus time per unit."""
        found = Sum.of(
            takes * (load * line.unit_ms * self._unit) for takes, load in zip(self._takes, loads, strict=True)
        )
        return found + any_of * (line.latency_ms * self._unit)

    def _add_fewer(self, place: int, terms: Sum, goal: Sum, growing: Sum) -> None:
        """Add that fewer devices of a group with pieces share more work each."""
        size = len(self._groups[place])
        most = self._largest_sum(growing)
        for case in self._users[place]:
            more = size / case.most - 1
            if more > 0:
                grown = terms + growing * more + case.variable * (most * more)
                self._program.at_most(grown - goal, most * more)

    def _add_domain_users(self, place: int, goal: Sum, number: int, base: Sum) -> None:
        """Add the least work of devices in domains with tables of their own, by the number of such domains."""
        tables = [n for n, spread in enumerate(self._spreads) if spread.devices == "domain"]
        if not tables:
            return
        kind = self._type_of[place]
        growing = self._own_of_domain(place, number) * len(self._types[kind])
        fixed = float(self._fixed[number])
        sent = 0.0 if number else self._exchanges.nodes.sent_ms * self._unit
        self._program.at_most(base + self._any_domain * fixed + self._widest * sent, goal)
        growing += Sum.of(self._at[n][kind] * (self._spreads[n].columns * sent) for n in tables)
        most = self._largest_sum(growing)
        for _, count, variable in self._domain_users[kind]:
            terms = base + self._has_domain[kind] * fixed + growing / count + variable * (most / count)
            self._program.at_most(terms - goal, most / count)

    def _add_largest(self, goals: tuple[Sum, Sum], common: Sum, arriving: Sum) -> None:
        """Add the least work of the device with the widest piece of a table: this piece, and the common work."""
        program = self._program
        prices = self._exchanges.links
        link = int(prices.sent_ms.min(axis=1).argmax())
        latency = float(prices.latency_ms[link].min())
        sent = float(prices.sent_ms[link].min())
        program.at_most(common + arriving, self._busiest)
        backgrounds = []
        for number, exchanged in enumerate((common, self._busiest)):
            background = program.variable()
            program.equal(exchanged + self._everywhere(slice(None), number), background)
            backgrounds.append(background)
        for cut in self._cuts:
            columns = cut.columns
            most = min(columns.units, self._task.num_devices)
            counts = sorted({n for n in _PIECES if n < most} | {most})
            flags = [program.flag() for _ in counts]
            program.equal(Sum.of(flags), cut.takes)
            pieces = Sum.of(cut.pieces.values())
            least = zip(flags, [0, *counts], strict=False)
            program.at_least(pieces, Sum.of(flag * (1.0 + before) for flag, before in least))
            program.at_most(pieces, Sum.of(flag * float(n) for flag, n in zip(flags, counts, strict=True)))
            units = [-(-columns.units // count) for count in counts]  # of the widest of so many pieces, at least
            transfer = Sum.of(
                flag * ((latency + sent * wide * columns.unit_columns) * self._unit)
                for flag, wide in zip(flags, units, strict=True)
            )
            program.at_most(transfer + common, self._busiest)
            for number, goal in enumerate(goals):
                alone = Sum.of(
                    flag * (float(columns.least_ms[number, wide]) * self._unit + float(self._fixed[number]))
                    for flag, wide in zip(flags, units, strict=True)
                )
                if number:
                    program.at_most(alone + backgrounds[number], goal)
                    continue
                program.at_most(alone + transfer + backgrounds[number], goal)
                program.at_most(alone + arriving + backgrounds[number], goal)

    def _arriving(self, everything: Sum, longest: Sum) -> Sum:
        """Add the least time of any device to receive from the others, given the longest transfer."""
        # No device has more columns than it can send in that time. So the own domain has not more than its devices can
        # send, or the device itself where there is one domain; the rest comes from others.
        prices = self._exchanges.links
        sizes = np.bincount(prices.domains)
        link, size = (1, int(sizes.max())) if len(sizes) > 1 else (0, 1)
        sent = float(prices.sent_ms[link].min())
        received = float(prices.received_ms[link].min())
        latency = float(prices.latency_ms[link].min()) * self._unit
        arriving = self._program.variable(lower=-np.inf)
        if received > 0:
            kept = received * size / sent
            terms = everything * received * self._unit - longest * kept + self._any_pieces * (latency * (1 + kept))
            self._program.equal(terms, arriving)
        else:
            self._program.equal(arriving)
        return arriving
