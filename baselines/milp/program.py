"""The mixed-integer program of a step, over single devices or over groups of equal ones, solved by HiGHS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from baselines.milp.exchanges import Exchanges, Line
from baselines.milp.group_bounds import Cut, GroupBounds
from baselines.milp.kinds import Columns, Kinds, Spread, spread_loads
from baselines.milp.linear_program import LinearProgram, Terms
from neuroshard.plus.nodes import packed
from shardgym.arrays import Floats, Ints
from shardgym.tasks.task import ShardingTask

#: Times are scaled so that an even share of all compute is this much, and memory so that the largest device has it:
#: HiGHS allows errors of a millionth, in any unit.
_SCALE = 1000.0
#: Of a bound: what errors of the solver may make it too high by, and more.
_SAFETY = 1e-6
#: Of the devices of a group, the share that has pieces is one of these, or between two of them.
_SHARES = (0.5, 0.75, 0.9, 0.95, 0.97, 1.0)


class Answer(NamedTuple):
    """What HiGHS found.

    Attributes:
        bound_ms: no plan of these kinds takes less; infinite where there is none, or none below the cutoff.
        spreads: tables that are spread, each with its domain, or 0; None where no solution was found.
        units: of each place, of each table in pieces, shape (G, T).
    """

    bound_ms: float
    spreads: list[tuple[Spread, int]] | None
    units: Ints


class Program(GroupBounds):
    """Chooses kinds and places so that the slowest device of a step takes least.

    Over single devices this is the step of a cost whose compute is linear. Over groups of equal devices it is a
    relaxation: what the devices of a group do on average, and what any device that holds a piece does at least, are
    lower bounds of what the slowest one does. So its optimum is a bound, and 64 equal devices are one place instead of
    64 that can be swapped.

    Args:
        task: the task.
        kinds: of its tables, at least one of each.
        exchanges: of the task.
        groups: devices of each place. Devices of a group have the same memory and links, and lie in domains of the same
            groups.
    """

    def __init__(self, task: ShardingTask, kinds: Kinds, exchanges: Exchanges, groups: Sequence[Sequence[int]]) -> None:
        self._task = task
        self._exchanges = exchanges
        self._groups = groups
        self._spreads = kinds.spreads
        compute = sum(float(columns.least_ms[:, -1].sum()) for columns in kinds.columns if columns is not None)
        self._unit = _SCALE / max(compute / task.num_devices, 1e-6)
        self._fixed: Floats = kinds.fixed_ms * self._unit
        self._program = LinearProgram()
        self._add_variables(kinds)
        self._add_kinds()
        self._add_memory()
        self._add_step()

    def solve(
        self, *, gap: float, nodes: int, cutoff_ms: float = np.inf, domains: bool | None = None,
        time_limit_s: float = np.inf,
    ) -> Answer:  # fmt: skip
        """Run HiGHS.

        Args:
            gap: relative gap at which it may stop.
            cutoff_ms: only plans that take less are of interest.
            domains: True if there must be tables cut by rows in single domains, False if there must not; None allows
                both.
            nodes: of the search tree at most.
            time_limit_s: likewise, which makes results depend on the machine.
        """
        ranges = {self._objective: (0.0, cutoff_ms * self._unit)}
        if domains is not None:
            ranges[self._any_domain] = (float(domains), float(domains))
        found = self._program.minimise(self._objective, gap=gap, ranges=ranges, nodes=nodes, time_limit_s=time_limit_s)
        bound_ms = found.bound / self._unit * (1 - _SAFETY)
        units = np.zeros((len(self._groups), self._task.num_tables), dtype=np.int64)
        if found.values is None:
            return Answer(bound_ms, None, units)
        values = np.rint(found.values).astype(np.int64)
        for cut in self._cuts:
            for place, variable in cut.units.items():
                units[place, cut.columns.table] = values[variable]
        return Answer(bound_ms, self._chosen(values), units)

    def _chosen(self, values: Ints) -> list[tuple[Spread, int]]:
        """Return tables that are spread, with domains so that those of a type have about alike to do."""
        chosen = [n for n in range(len(self._spreads)) if values[self._takes[n]]]
        domains = dict.fromkeys(chosen, 0)
        for kind, (of_type, cases) in enumerate(zip(self._types, self._domain_users, strict=True)):
            held = [n for n in chosen if kind in self._at[n] and values[self._at[n][kind]]]
            if not held:
                continue
            users = of_type[: sum(count * int(values[variable]) for _, count, variable in cases)]
            spreads = [self._spreads[n] for n in held]
            loads = spread_loads(spreads, self._exchanges)
            sizes = np.array([int(spread.bytes.max()) for spread in spreads])
            size = self._task.topology.fast_domain_size
            room = np.array([min(self._task.capacity_bytes[user * size : (user + 1) * size]) for user in users])
            places = packed(loads, np.zeros((len(users), loads.shape[1])), sizes, room)
            for n, place in zip(held, places.tolist(), strict=True):
                domains[n] = users[place]
        return [(self._spreads[n], domain) for n, domain in domains.items()]

    def _add_variables(self, kinds: Kinds) -> None:
        program, groups = self._program, self._groups
        domain_of = self._exchanges.links.domains
        #: Domains of each type: those that hold devices of the same groups.
        members = [sorted({int(domain_of[device]) for device in group}) for group in groups]
        self._types = sorted({tuple(of_group) for of_group in members})
        self._type_of = [self._types.index(tuple(of_group)) for of_group in members]
        self._cuts = [self._cut(columns) for columns in kinds.columns if columns is not None]
        self._takes = [program.flag() for _ in self._spreads]
        self._at = [
            {kind: program.flag() for kind in range(len(self._types))} if spread.devices == "domain" else {}
            for spread in self._spreads
        ]
        self._has_pieces = [program.flag() for _ in groups]
        self._has_domain = [program.flag() for _ in self._types]
        #: Which numbers of devices of a group have pieces, and how many domains of a type have tables of their own: of
        #: each case the least and the largest number, and a variable that says whether it is the case.
        self._users = [
            self._cases(has, _device_counts(len(group), len(group) // len(self._types[kind])))
            for has, group, kind in zip(self._has_pieces, groups, self._type_of, strict=True)
        ]
        domain_counts = [[(count, count) for count in range(1, len(t) + 1)] for t in self._types]
        self._domain_users = [
            self._cases(has, counts) for has, counts in zip(self._has_domain, domain_counts, strict=True)
        ]
        self._any_pieces, self._any_rows, self._any_replicas, self._any_domain = (program.flag() for _ in range(4))

    def _cut(self, columns: Columns) -> Cut:
        cut = Cut(columns, self._program.flag(), {}, {}, {})
        for place, group in enumerate(self._groups):
            if self._widest_units(columns, place) >= 1:
                size = len(group)
                cut.pieces[place] = self._program.variable(min(size, columns.units), whole=True)
                cut.units[place] = self._program.variable(columns.units, whole=size == 1)
                cut.ms[place] = [self._program.variable(float(most_ms) * self._unit) for most_ms in columns.most_ms]
        return cut

    def _widest_units(self, columns: Columns, place: int) -> int:
        """Return how many units of a table a device of a group has memory for."""
        room = self._task.capacity_bytes[self._groups[place][0]] - columns.piece_bytes
        return min(columns.units, room // columns.unit_bytes)

    def _cases(self, has: int, counts: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
        cases = [(least, most, self._program.flag()) for least, most in counts]
        self._program.between([*[(variable, 1.0) for _, _, variable in cases], (has, -1.0)], 0, 0)
        return cases

    def _add_kinds(self) -> None:
        program = self._program
        taken: list[Terms] = [[] for _ in self._task.tables]
        for cut in self._cuts:
            columns = cut.columns
            taken[columns.table].append((cut.takes, 1.0))
            program.between([*[(v, 1.0) for v in cut.units.values()], (cut.takes, -float(columns.units))], 0, 0)
            for place, pieces in cut.pieces.items():
                units, has = cut.units[place], self._has_pieces[place]
                program.at_most([(pieces, 1.0), (units, -1.0)])
                program.at_most([(units, 1.0), (pieces, -float(self._widest_units(columns, place)))])
                program.at_most([(pieces, 1.0 / min(columns.units, len(self._groups[place]))), (has, -1.0)])
                program.at_most([(units, 1.0 / columns.units), (has, -1.0)])
                for lines, ms in zip(columns.lines, cut.ms[place], strict=True):
                    for per_piece, per_unit in (lines * self._unit).tolist():
                        program.at_most([(pieces, per_piece), (units, per_unit), (ms, -1.0)])
        for n, spread in enumerate(self._spreads):
            takes = self._takes[n]
            taken[spread.table].append((takes, 1.0))
            any_of = self._any_replicas if spread.replica_bytes else self._any_rows
            if spread.devices == "domain":
                program.between([*[(v, 1.0) for v in self._at[n].values()], (takes, -1.0)], 0, 0)
                any_of = self._any_domain
                for kind, variable in self._at[n].items():
                    program.at_most([(variable, 1.0), (self._has_domain[kind], -1.0)])
            program.at_most([(takes, 1.0), (any_of, -1.0)])
        for of_table in taken:
            program.between(of_table, 1, 1)
        for has in self._has_pieces:
            program.at_most([(has, 1.0), (self._any_pieces, -1.0)])

    def _add_memory(self) -> None:
        memory = self._task.capacity_bytes
        scale = _SCALE / max(memory)
        for place, group in enumerate(self._groups):
            terms = []
            for cut in self._cuts:
                if place in cut.units:
                    terms.append((cut.pieces[place], cut.columns.piece_bytes * scale))
                    terms.append((cut.units[place], cut.columns.unit_bytes * scale))
            for n, spread in enumerate(self._spreads):
                sizes = np.asarray(spread.bytes * scale, dtype=np.float64)
                if spread.devices == "all":
                    terms.append((self._takes[n], float(sum(sizes[device] for device in group))))
                else:
                    terms.append((self._at[n][self._type_of[place]], self._on_group(sizes, place)))
            self._program.at_most(terms, sum(memory[device] * scale for device in group))

    def _add_step(self) -> None:
        exchange, program = self._exchanges, self._program
        rows = self._line_of(
            exchange.rows, self._any_rows, [s.columns if s.devices == "all" else 0.0 for s in self._spreads]
        )
        replicas = self._line_of(exchange.replicas, self._any_replicas, [s.replica_bytes for s in self._spreads])
        inside, between = self._add_domains()
        common = [*rows, *inside]
        goals = program.variable(), program.variable()
        self._objective = program.variable()
        program.at_most([(goals[0], 1.0), (goals[1], 1.0), *replicas, (self._objective, -1.0)])
        prices = exchange.links
        #: Columns of the pieces in each domain type, per domain, and on all devices.
        of_type = [
            [(v, f / len(of_type)) for place in self._places_in(t) for v, f in self._columns(place)]
            for t, of_type in enumerate(self._types)
        ]
        everything = [term for place in range(len(self._groups)) for term in self._columns(place)]
        longest = program.variable()
        for goal, weight in zip(goals, exchange.transfers.tolist(), strict=True):
            program.at_most([*[(v, f * weight) for v, f in [*common, (longest, 1.0)]], (goal, -1.0)])
        arriving = self._arriving(everything, longest)
        for place, group in enumerate(self._groups):
            device, size = group[0], len(group)
            kind = self._type_of[place]
            alone = size == 1
            own = [(v, f / size) for v, f in self._columns(place)]
            inside_others = [*of_type[kind], *[(v, -f) for v, f in own]]
            outside_others = [*everything, *[(v, -f) for v, f in of_type[kind]]]
            holder, average = program.variable(), program.variable()
            for link, others in enumerate((inside_others, outside_others)):
                latency = (self._any_pieces, float(prices.latency_ms[link, device]) * self._unit)
                sent = float(prices.sent_ms[link, device]) * self._unit
                received = float(prices.received_ms[link, device]) * self._unit
                program.at_most([*[(v, f * sent) for v, f in own], latency, (holder, -1.0)])
                for transfer in (holder, average) if alone else (average,):
                    program.at_most([*[(v, f * received) for v, f in others], latency, (transfer, -1.0)])
            program.at_most([(holder, 1.0), (longest, -1.0)])
            program.at_most([(average, 1.0), (longest, -1.0)])
            if not alone:
                program.at_most([(arriving, 1.0), (holder, -1.0)])
                link = int(prices.sent_ms[:, device].argmax())
                growing = [(v, f * float(prices.sent_ms[link, device]) * self._unit) for v, f in own]
                latency = (self._any_pieces, float(prices.latency_ms[link, device]) * self._unit)
                self._add_fewer(place, [*growing, latency], holder, growing)
            for number, goal in enumerate(goals):
                weight = float(exchange.transfers[number])
                pieces_ms = [(v, f / size) for v, f in self._pieces(place, number)]
                all_ms = self._everywhere(place, number)
                domain_ms = self._in_domain(place, number)
                fixed = float(self._fixed[number])
                sending = [(v, f * weight) for v, f in [*common, (holder, 1.0), *(between[kind] if alone else [])]]
                terms = [*sending, *pieces_ms, *all_ms, (self._has_pieces[place], fixed)]
                program.at_most([*terms, *(domain_ms if alone else []), (goal, -1.0)])
                if alone:
                    continue
                self._add_fewer(place, terms, goal, pieces_ms)
                sending = [(v, f * weight) for v, f in [*common, (average, 1.0), *between[kind]]]
                users = [(variable, fixed * least / size) for least, _, variable in self._users[place]]
                program.at_most([*sending, *pieces_ms, *all_ms, *domain_ms, *users, (goal, -1.0)])
                base = [*[(v, f * weight) for v, f in common], *all_ms]
                self._add_domain_users(place, goal, number, [*base, (arriving, weight)])
        if len(self._groups) < self._task.num_devices:
            self._add_largest(goals, common, arriving)

    def _add_domains(self) -> tuple[Terms, list[Terms]]:
        """Add exchanges of tables that single domains hold by rows; return what all devices, and types, spend."""
        exchange = self._exchanges
        tables = [(n, spread) for n, spread in enumerate(self._spreads) if spread.devices == "domain"]
        if not tables:
            self._program.between([(self._any_domain, 1.0)], 0, 0)
            return [], [[] for _ in self._types]
        self._widest = widest = self._program.variable()
        # Widths are multiples of one: so is the largest sum of a domain.
        unit = int(np.gcd.reduce([int(spread.columns) for _, spread in tables]))
        multiple = self._program.variable(whole=True)
        self._program.between([(widest, 1.0), (multiple, -float(unit))], 0, 0)
        between = []
        total = [(self._takes[n], spread.columns) for n, spread in tables]
        for kind, of_type in enumerate(self._types):
            domains = len(of_type)
            own = [(self._at[n][kind], spread.columns / domains) for n, spread in tables]
            self._program.at_most([*own, (widest, -1.0)])
            most = self._largest_sum(own) * domains
            for _, count, variable in self._domain_users[kind]:
                if count < domains:
                    wide = [(v, f * domains / count) for v, f in own]
                    self._program.at_most([*wide, (variable, most / count), (widest, -1.0)], most / count)
            time = self._program.variable()
            self._program.at_most([*[(v, f * exchange.nodes.sent_ms * self._unit) for v, f in own], (time, -1.0)])
            received = exchange.nodes.received_ms * self._unit
            self._program.at_most(
                [*[(v, f * received) for v, f in total], *[(v, -f * received) for v, f in own], (time, -1.0)]
            )
            between.append([(time, 1.0)])
        for n, spread in tables:
            self._program.at_most([(self._takes[n], spread.columns), (widest, -1.0)])
        inside = [
            (widest, exchange.nodes.inside_ms * self._unit),
            (self._any_domain, exchange.nodes.latency_ms * self._unit),
        ]
        return inside, between

    def _line_of(self, line: Line, any_of: int, loads: Sequence[float]) -> Terms:
        """Return what an exchange takes of tables with these loads, which is latency plus so much per unit."""
        terms = [(self._takes[n], load * line.unit_ms * self._unit) for n, load in enumerate(loads)]
        return [*terms, (any_of, line.latency_ms * self._unit)]

    def _places_in(self, kind: int) -> list[int]:
        return [place for place, of_place in enumerate(self._type_of) if of_place == kind]

    def _columns(self, place: int) -> Terms:
        """Return columns of pieces on a group in all."""
        return [(cut.units[place], float(cut.columns.unit_columns)) for cut in self._cuts if place in cut.units]

    def _pieces(self, place: int, number: int) -> Terms:
        """Return what the devices of a group do for pieces in all, first (0) or at last (1)."""
        return [(cut.ms[place][number], 1.0) for cut in self._cuts if place in cut.ms]

    def _everywhere(self, place: int, number: int) -> Terms:
        """Return what each device of a group does for tables on all devices, and their operators, at least."""
        group = list(self._groups[place])
        found = [
            (self._takes[n], float(spread.ms[group, number].min()) * self._unit)
            for n, spread in enumerate(self._spreads)
            if spread.devices == "all"
        ]
        fixed = float(self._fixed[number])
        return [*found, (self._any_rows, fixed), (self._any_replicas, fixed)]

    def _in_domain(self, place: int, number: int) -> Terms:
        """Return what a group does on average for tables that single domains hold, and for their operator."""
        found = self._own_of_domain(place, number)
        if not found:
            return []
        kind = self._type_of[place]
        fixed = float(self._fixed[number]) / len(self._types[kind])
        return [*found, *[(variable, fixed * count) for _, count, variable in self._domain_users[kind]]]


def _device_counts(devices: int, in_domain: int) -> list[tuple[int, int]]:
    """Return cases of how many devices have pieces: the least and the largest number of each, from 1 to all.

    All devices, and all but those of one domain, are cases of their own: the others are likely to be bad plans.
    """
    ends = {int(share * devices) for share in _SHARES} | {devices - 1, devices}
    ends |= {devices - in_domain - 1, devices - in_domain}
    found = sorted(end for end in ends if end > 0)
    return [(before + 1, end) for before, end in zip([0, *found], found, strict=False)]
