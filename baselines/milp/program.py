"""The mixed-integer program of a step, over single devices or over groups of equal ones, solved by HiGHS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from baselines.milp.choices import Choice, Exchanges, Line
from baselines.milp.group_bounds import GroupBounds
from baselines.milp.linear_program import LinearProgram, Terms
from shardgym.arrays import Floats, Ints
from shardgym.task import ShardingTask

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
        bound_ms: no plan of these choices takes less; infinite where there is none, or none below the cutoff.
        chosen: numbers of the choices, one for each table; None where no solution was found.
        places: of each chosen one, groups of its pieces, or its domain type; as long as `chosen`.
    """

    bound_ms: float
    chosen: list[int] | None
    places: list[list[int]]


class Program(GroupBounds):
    """Chooses kinds and places so that the slowest device of a step takes least.

    Over single devices this is the step of a linear cost. Over groups of equal devices it is a relaxation: what the
    devices of a group do on average, and what any device that holds a piece does at least, are lower bounds of what the
    slowest one does. So its optimum is a bound, and 64 equal devices are one place instead of 64 that can be swapped.

    Args:
        task: the task.
        choices: table after table.
        exchanges: of the task.
        fixed_ms: forward and backward of each operator on a device that has any work for it, shape (2,).
        groups: devices of each place. Devices of a group have the same memory and links, and lie in domains of the same
            groups.
    """

    def __init__(
        self, task: ShardingTask, choices: Sequence[Choice], exchanges: Exchanges, fixed_ms: Floats,
        groups: Sequence[Sequence[int]],
    ) -> None:  # fmt: skip
        self._task = task
        self._choices = choices
        self._exchanges = exchanges
        self._groups = groups
        self._fixed_ms = fixed_ms
        compute = sum(
            float(choice.ms[0].sum()) for choice in choices if choice.spread == "pieces" and choice.pieces == 1
        )
        self._unit = _SCALE / max(compute / task.num_devices, 1e-6)
        self._program = LinearProgram()
        self._build()

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
        if found.values is None:
            return Answer(bound_ms, None, [])
        values = np.rint(found.values[: self._integers]).astype(np.int64)
        chosen = [n for n in range(len(self._choices)) if values[self._takes[n]]]
        return Answer(bound_ms, chosen, self._places(values, chosen))

    def _places(self, values: Ints, chosen: list[int]) -> list[list[int]]:
        """Return groups of the pieces of chosen choices; or their domain, so that domains of a type compute alike."""
        users = [
            of_type[: sum(count * int(values[variable]) for _, count, variable in cases)]
            for of_type, cases in zip(self._types, self._domain_users, strict=True)
        ]
        busy_ms = dict.fromkeys((domain for of_type in users for domain in of_type), 0.0)
        found: dict[int, list[int]] = {}
        for n in sorted(chosen, key=lambda n: -float(self._choices[n].ms.sum())):
            at = self._at[n]
            found[n] = [place for place, variable in at.items() for _ in range(int(values[variable]))]
            if self._choices[n].spread == "domain":
                domain = min(users[found[n][0]], key=lambda domain: busy_ms[domain])
                busy_ms[domain] += float(self._choices[n].ms.sum())
                found[n] = [domain]
        return [found[n] for n in chosen]

    def _build(self) -> None:
        choices, groups = self._choices, self._groups
        domain_of = self._exchanges.links.domains
        #: Domains of each type: those that hold devices of the same groups.
        members = [sorted({int(domain_of[device]) for device in group}) for group in groups]
        types = sorted({tuple(of_group) for of_group in members})
        self._type_of = [types.index(tuple(of_group)) for of_group in members]
        self._types = types
        self._takes = [self._program.flag() for _ in choices]
        self._at: list[dict[int, int]] = []
        for choice in choices:
            at: dict[int, int] = {}
            if choice.spread == "pieces":
                for place, group in enumerate(groups):
                    if choice.bytes[0] <= self._task.topology.memory_bytes[group[0]]:
                        at[place] = self._program.variable(min(choice.pieces, len(group)), whole=True)
            elif choice.spread == "domain":
                at = {place: self._program.flag() for place in range(len(types))}
            self._at.append(at)
        self._has_pieces = [self._program.flag() for _ in groups]
        self._has_domain = [self._program.flag() for _ in types]
        #: Which numbers of devices of a group have pieces, and how many domains of a type have tables of their own: of
        #: each case the least and the largest number, and a variable that says whether it is the case.
        self._users = [
            self._cases(has, _device_counts(len(group), len(group) // len(types[kind])))
            for has, group, kind in zip(self._has_pieces, groups, self._type_of, strict=True)
        ]
        domain_counts = [[(count, count) for count in range(1, len(t) + 1)] for t in types]
        self._domain_users = [
            self._cases(has, counts) for has, counts in zip(self._has_domain, domain_counts, strict=True)
        ]
        self._any_pieces, self._any_rows, self._any_replicas, self._any_domain = (
            self._program.flag() for _ in range(4)
        )
        self._integers = self._program.num_variables
        self._of_table = [[n for n, c in enumerate(choices) if c.table == t] for t in range(self._task.num_tables)]
        self._add_choices()
        self._add_memory()
        self._add_step()

    def _cases(self, has: int, counts: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
        cases = [(least, most, self._program.flag()) for least, most in counts]
        self._program.between([*[(variable, 1.0) for _, _, variable in cases], (has, -1.0)], 0, 0)
        return cases

    def _add_choices(self) -> None:
        for numbers in self._of_table:
            self._program.between([(self._takes[n], 1.0) for n in numbers], 1, 1)
        for n, choice in enumerate(self._choices):
            takes = self._takes[n]
            if choice.spread != "all":
                self._program.between([(v, 1.0) for v in self._at[n].values()] + [(takes, -float(choice.pieces))], 0, 0)
            elif choice.is_replicated:
                self._program.at_most([(takes, 1.0), (self._any_replicas, -1.0)])
            else:
                self._program.at_most([(takes, 1.0), (self._any_rows, -1.0)])
            if choice.spread == "domain":
                self._program.at_most([(takes, 1.0), (self._any_domain, -1.0)])
        for place, group in enumerate(self._groups):
            has = self._has_pieces[place]
            self._program.at_most([(has, 1.0), (self._any_pieces, -1.0)])
            for numbers in self._of_table:
                # One choice is taken, and it has at most as many pieces here as devices.
                here = [n for n in numbers if self._choices[n].spread == "pieces" and place in self._at[n]]
                shares = [(self._at[n][place], 1.0 / min(self._choices[n].pieces, len(group))) for n in here]
                if shares:
                    self._program.at_most([*shares, (has, -1.0)])
        for place, has in enumerate(self._has_domain):
            for n, choice in enumerate(self._choices):
                if choice.spread == "domain":
                    self._program.at_most([(self._at[n][place], 1.0), (has, -1.0)])

    def _add_memory(self) -> None:
        memory = self._task.topology.memory_bytes
        scale = _SCALE / max(memory)
        for place, group in enumerate(self._groups):
            terms = []
            for n, choice in enumerate(self._choices):
                sizes = np.asarray(choice.bytes * scale, dtype=np.float64)
                if choice.spread == "pieces":
                    if place in self._at[n]:
                        terms.append((self._at[n][place], float(sizes[0])))
                elif choice.spread == "all":
                    terms.append((self._takes[n], float(sum(sizes[device] for device in group))))
                else:
                    terms.append((self._at[n][self._type_of[place]], self._on_group(sizes, place)))
            self._program.at_most(terms, sum(memory[device] * scale for device in group))

    def _add_step(self) -> None:
        exchange, choices = self._exchanges, self._choices
        rows = self._line_of(exchange.rows, self._any_rows, [c.columns if c.spread == "all" else 0 for c in choices])
        replicas = self._line_of(exchange.replicas, self._any_replicas, [c.replica_bytes for c in choices])
        inside, between = self._add_domains()
        first, rest = self._program.variable(), self._program.variable()
        self._objective = self._program.variable()
        self._program.at_most([(first, 1.0), (rest, 1.0), *replicas, (self._objective, -1.0)])
        prices = exchange.links
        #: Columns of the pieces in each domain type, per domain, and on all devices.
        of_type = [
            [(v, f / len(of_type)) for place in self._places_in(t) for v, f in self._columns(place)]
            for t, of_type in enumerate(self._types)
        ]
        everything = [term for place in range(len(self._groups)) for term in self._columns(place)]
        longest = self._program.variable()
        for goal, weights in ((first, exchange.first), (rest, exchange.rest)):
            self._program.at_most([*[(v, f * weights[2]) for v, f in [*rows, *inside, (longest, 1.0)]], (goal, -1.0)])
        arriving = self._arriving(everything, longest)
        for place, group in enumerate(self._groups):
            device, size = group[0], len(group)
            kind = self._type_of[place]
            alone = size == 1
            own = [(v, f / size) for v, f in self._columns(place)]
            inside_others = [*of_type[kind], *[(v, -f) for v, f in own]]
            outside_others = [*everything, *[(v, -f) for v, f in of_type[kind]]]
            holder, average = self._program.variable(), self._program.variable()
            for link, others in enumerate((inside_others, outside_others)):
                latency = (self._any_pieces, float(prices.latency_ms[link, device]) * self._unit)
                sent = float(prices.sent_ms[link, device]) * self._unit
                received = float(prices.received_ms[link, device]) * self._unit
                self._program.at_most([*[(v, f * sent) for v, f in own], latency, (holder, -1.0)])
                for transfer in (holder, average) if alone else (average,):
                    self._program.at_most([*[(v, f * received) for v, f in others], latency, (transfer, -1.0)])
            self._program.at_most([(holder, 1.0), (longest, -1.0)])
            self._program.at_most([(average, 1.0), (longest, -1.0)])
            if not alone:
                self._program.at_most([(arriving, 1.0), (holder, -1.0)])
                link = int(prices.sent_ms[:, device].argmax())
                growing = [(v, f * float(prices.sent_ms[link, device]) * self._unit) for v, f in own]
                latency = (self._any_pieces, float(prices.latency_ms[link, device]) * self._unit)
                self._add_fewer(place, [*growing, latency], holder, growing)
            pieces_ms = [[(v, f / size) for v, f in self._pieces(place, way)] for way in (0, 1)]
            all_ms = [self._everywhere(place, way) for way in (0, 1)]
            domain_ms = [self._in_domain(place, way) for way in (0, 1)]
            has = self._has_pieces[place]
            common = [*rows, *inside]
            for goal, weights in ((first, exchange.first), (rest, exchange.rest)):
                terms = [(v, f * weights[2]) for v, f in [*common, (holder, 1.0), *(between[kind] if alone else [])]]
                for way in (0, 1):
                    fixed = (has, float(self._fixed_ms[way]) * self._unit)
                    found = [*pieces_ms[way], *all_ms[way], fixed, *(domain_ms[way] if alone else [])]
                    terms += [(v, f * weights[way]) for v, f in found]
                self._program.at_most([*terms, (goal, -1.0)])
                if not alone:
                    self._add_fewer(place, terms, goal, [(v, f * weights[w]) for w in (0, 1) for v, f in pieces_ms[w]])
                    terms = [(v, f * weights[2]) for v, f in [*common, (average, 1.0), *between[kind]]]
                    for way in (0, 1):
                        fixed_ms = float(self._fixed_ms[way]) * self._unit
                        users = [(variable, fixed_ms * least / size) for least, _, variable in self._users[place]]
                        found = [*pieces_ms[way], *all_ms[way], *domain_ms[way], *users]
                        terms += [(v, f * weights[way]) for v, f in found]
                    self._program.at_most([*terms, (goal, -1.0)])
                    self._add_domain_users(place, goal, weights, [*common, (arriving, 1.0)], all_ms)
                    self._add_largest(place, goal, weights, all_ms, common, arriving)

    def _add_domains(self) -> tuple[Terms, list[Terms]]:
        """Add exchanges of tables that single domains hold by rows; return what all devices, and types, spend."""
        exchange = self._exchanges
        tables = [(n, c) for n, c in enumerate(self._choices) if c.spread == "domain"]
        if not tables:
            return [], [[] for _ in self._types]
        self._widest = widest = self._program.variable()
        # Widths are multiples of one: so is the largest sum of a domain.
        unit = int(np.gcd.reduce([int(c.columns + 0.5) for _, c in tables]))
        multiple = self._program.variable(whole=True)
        self._program.between([(widest, 1.0), (multiple, -float(unit))], 0, 0)
        widths = [
            [(self._at[n][place], c.columns / len(of_type)) for n, c in tables]
            for place, of_type in enumerate(self._types)
        ]
        between = []
        total = [(self._takes[n], c.columns) for n, c in tables]
        for place, own in enumerate(widths):
            self._program.at_most([*own, (widest, -1.0)])
            domains = len(self._types[place])
            most = self._largest_sum(own) * domains
            for _, count, variable in self._domain_users[place]:
                if count < domains:
                    wide = [(v, f * domains / count) for v, f in own]
                    self._program.at_most([*wide, (variable, most / count), (widest, -1.0)], most / count)
            time = self._program.variable()
            self._program.at_most([*[(v, f * exchange.sent * self._unit) for v, f in own], (time, -1.0)])
            received = exchange.received * self._unit
            self._program.at_most(
                [*[(v, f * received) for v, f in total], *[(v, -f * received) for v, f in own], (time, -1.0)]
            )
            between.append([(time, 1.0)])
        for n, choice in tables:
            self._program.at_most([(self._takes[n], choice.columns), (widest, -1.0)])
        inside = [
            (widest, exchange.inside.unit_ms * self._unit),
            (self._any_domain, exchange.inside.latency_ms * self._unit),
        ]
        return inside, between

    def _line_of(self, line: Line, any_of: int, loads: Sequence[float]) -> Terms:
        """Return what an exchange takes of the choices with these loads, which is latency plus so much per unit."""
        terms = [(self._takes[n], load * line.unit_ms * self._unit) for n, load in enumerate(loads)]
        return [*terms, (any_of, line.latency_ms * self._unit)]

    def _places_in(self, kind: int) -> list[int]:
        return [place for place, of_place in enumerate(self._type_of) if of_place == kind]

    def _columns(self, place: int) -> Terms:
        """Return columns of pieces on a group in all."""
        pieces = [(n, c) for n, c in enumerate(self._choices) if c.spread == "pieces" and place in self._at[n]]
        return [(self._at[n][place], choice.columns) for n, choice in pieces]

    def _pieces(self, place: int, way: int) -> Terms:
        """Return compute in one direction of pieces on a group in all."""
        found = []
        for n, choice in enumerate(self._choices):
            if choice.spread == "pieces" and place in self._at[n]:
                found.append((self._at[n][place], float(choice.ms[0, way]) * self._unit))
        return found

    def _everywhere(self, place: int, way: int) -> Terms:
        """Return compute of tables that are on all devices, and of their operators, on each device of a group."""
        group = list(self._groups[place])
        found = [
            (self._takes[n], float(choice.ms[group, way].min()) * self._unit)
            for n, choice in enumerate(self._choices)
            if choice.spread == "all"
        ]
        fixed = float(self._fixed_ms[way]) * self._unit
        return [*found, (self._any_rows, fixed), (self._any_replicas, fixed)]

    def _in_domain(self, place: int, way: int) -> Terms:
        """Return compute of tables that single domains hold, and of their operator, on a group on average."""
        found = self._own_of_domain(place, way)
        if not found:
            return []
        kind = self._type_of[place]
        fixed = float(self._fixed_ms[way]) * self._unit / len(self._types[kind])
        return [*found, *[(variable, fixed * count) for _, count, variable in self._domain_users[kind]]]


def _device_counts(devices: int, in_domain: int) -> list[tuple[int, int]]:
    """Return cases of how many devices have pieces: the least and the largest number of each, from 1 to all.

    All devices, and all but those of one domain, are cases of their own: the others are likely to be bad plans.
    """
    ends = {int(share * devices) for share in _SHARES} | {devices - 1, devices}
    ends |= {devices - in_domain - 1, devices - in_domain}
    found = sorted(end for end in ends if end > 0)
    return [(before + 1, end) for before, end in zip([0, *found], found, strict=False)]
