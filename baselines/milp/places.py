"""Kinds and places of all tables as variables, over single devices or over groups of equal devices."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from baselines.milp.kinds import Columns, Exchanges, Kinds
from baselines.milp.linear_program import LinearProgram, Sum
from shardgym.arrays import Floats
from shardgym.tasks.task import ShardingTask

#: Times are scaled so that an even share of all compute is this much, and memory so that the largest device has it:
#: HiGHS allows errors of a millionth, in any unit.
SCALE = 1000.0
#: Of the devices of a group, the share that has pieces is one of these, or between two of them.
_SHARES = (0.5, 0.75, 0.9, 0.95, 0.97, 1.0)


class Cut(NamedTuple):
    """Variables of a table in pieces of columns."""

    columns: Columns  #: the table
    takes: Sum  #: whether it is in pieces of columns
    pieces: dict[int, Sum]  #: their number on each group that has memory for one
    units: dict[int, Sum]  #: likewise their units
    ms: dict[int, list[Sum]]  #: likewise what devices do for them first and at last


class Case(NamedTuple):
    """From `least` to `most` devices of a group have pieces, or so many domains of a type tables of their own."""

    least: int
    most: int
    variable: Sum


class Places:
    """Variables and constraints by which each table has one kind, in places with memory for it; see `Program`."""

    def __init__(self, task: ShardingTask, kinds: Kinds, exchanges: Exchanges, groups: Sequence[Sequence[int]]) -> None:
        self._task = task
        self._exchanges = exchanges
        self._groups = groups
        self._spreads = kinds.spreads
        compute = sum(float(columns.least_ms[:, -1].sum()) for columns in kinds.columns if columns is not None)
        self._unit = SCALE / max(compute / task.num_devices, 1e-6)
        self._fixed: Floats = kinds.fixed_ms * self._unit
        self._program = program = LinearProgram()
        #: Domains of each type: those that hold devices of the same groups.
        members = [sorted({int(exchanges.links.domains[device]) for device in group}) for group in groups]
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
        self._users = [
            self._cases(has, _device_counts(len(group), len(group) // len(self._types[kind])))
            for has, group, kind in zip(self._has_pieces, groups, self._type_of, strict=True)
        ]
        domain_counts = [[(count, count) for count in range(1, len(t) + 1)] for t in self._types]
        self._domain_users = [
            self._cases(has, counts) for has, counts in zip(self._has_domain, domain_counts, strict=True)
        ]
        self._any_pieces, self._any_rows, self._any_replicas, self._any_domain = (program.flag() for _ in range(4))
        self._add_kinds()
        self._add_memory()

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

    def _cases(self, has: Sum, counts: Sequence[tuple[int, int]]) -> list[Case]:
        cases = [Case(least, most, self._program.flag()) for least, most in counts]
        self._program.equal(Sum.of(case.variable for case in cases), has)
        return cases

    def _add_kinds(self) -> None:
        program = self._program
        taken = [Sum() for _ in self._task.tables]
        for cut in self._cuts:
            columns = cut.columns
            taken[columns.table] += cut.takes
            program.equal(Sum.of(cut.units.values()), cut.takes * columns.units)
            for place, pieces in cut.pieces.items():
                units = cut.units[place]
                has = self._has_pieces[place]
                program.at_most(pieces, units)
                program.at_most(units, pieces * self._widest_units(columns, place))
                program.at_most(pieces / min(columns.units, len(self._groups[place])), has)
                program.at_most(units / columns.units, has)
                for lines, ms in zip(columns.lines, cut.ms[place], strict=True):
                    for per_piece, per_unit in (lines * self._unit).tolist():
                        program.at_most(pieces * per_piece + units * per_unit, ms)
        for spread, takes, at in zip(self._spreads, self._takes, self._at, strict=True):
            taken[spread.table] += takes
            any_of = self._any_replicas if spread.replica_bytes else self._any_rows
            if spread.devices == "domain":
                program.equal(Sum.of(at.values()), takes)
                any_of = self._any_domain
                for kind, variable in at.items():
                    program.at_most(variable, self._has_domain[kind])
            program.at_most(takes, any_of)
        for of_table in taken:
            program.equal(of_table, 1)
        for has in self._has_pieces:
            program.at_most(has, self._any_pieces)

    def _add_memory(self) -> None:
        memory = self._task.capacity_bytes
        scale = SCALE / max(memory)
        for place, group in enumerate(self._groups):
            used = Sum()
            for cut in self._cuts:
                if place in cut.units:
                    used += cut.pieces[place] * (cut.columns.piece_bytes * scale)
                    used += cut.units[place] * (cut.columns.unit_bytes * scale)
            for spread, takes, at in zip(self._spreads, self._takes, self._at, strict=True):
                sizes = np.asarray(spread.bytes * scale, dtype=np.float64)
                if spread.devices == "all":
                    used += takes * float(sum(sizes[device] for device in group))
                else:
                    used += at[self._type_of[place]] * self._on_group(sizes, place)
            self._program.at_most(used, sum(memory[device] * scale for device in group))

    def _on_group(self, values: Floats, place: int) -> float:
        """Return the sum, over a group's devices in one domain of a type, of a table's values by position in it."""
        size = self._task.topology.fast_domain_size
        group = self._groups[place]
        domains = len(self._types[self._type_of[place]])
        return float(sum(values[device % size] for device in group)) / domains

    def _columns(self, place: int) -> Sum:
        """Return the total columns of pieces on a group."""
        return Sum.of(cut.units[place] * float(cut.columns.unit_columns) for cut in self._cuts if place in cut.units)

    def _pieces(self, place: int, number: int) -> Sum:
        """Return the total time of a group's devices for pieces, first (0) or at last (1)."""
        return Sum.of(cut.ms[place][number] for cut in self._cuts if place in cut.ms)

    def _everywhere(self, devices: Sequence[int] | slice, number: int) -> Sum:
        """Return the least time of each of some devices for tables on all devices, and their operators."""
        found = Sum.of(
            takes * (float(spread.ms[devices, number].min()) * self._unit)
            for takes, spread in zip(self._takes, self._spreads, strict=True)
            if spread.devices == "all"
        )
        fixed = float(self._fixed[number])
        return found + self._any_rows * fixed + self._any_replicas * fixed

    def _own_of_domain(self, place: int, number: int) -> Sum:
        """Return a group's mean time for tables that single domains hold, without their operator."""
        share = self._unit / len(self._groups[place])
        return Sum.of(
            at[self._type_of[place]] * (self._on_group(spread.ms[:, number], place) * share)
            for spread, at in zip(self._spreads, self._at, strict=True)
            if spread.devices == "domain"
        )

    def _in_domain(self, place: int, number: int) -> Sum:
        """Return a group's mean time for tables that single domains hold, with their operator."""
        found = self._own_of_domain(place, number)
        if not found.terms:
            return found
        kind = self._type_of[place]
        fixed = float(self._fixed[number]) / len(self._types[kind])
        return found + Sum.of(case.variable * (fixed * case.most) for case in self._domain_users[kind])

    def _largest_sum(self, growing: Sum) -> float:
        """Return an upper bound of a sum over kinds: of each table the largest."""
        factors = dict.fromkeys((v for v, _ in growing.terms), 0.0)
        for variable, factor in growing.terms:
            factors[variable] += factor
        largest = [0.0] * self._task.num_tables
        kinds = [(cut.columns.table, [*cut.units.values(), *itertools.chain(*cut.ms.values())]) for cut in self._cuts]
        kinds += [(spread.table, list(at.values())) for spread, at in zip(self._spreads, self._at, strict=True)]
        for table, variables in kinds:
            numbers = [variable.number for variable in variables]
            of_kind = sum(self._program.upper(n) * factors[n] for n in numbers if n in factors)
            largest[table] = max(largest[table], of_kind)
        return sum(largest)


def _device_counts(devices: int, in_domain: int) -> list[tuple[int, int]]:
    """Return cases of how many devices have pieces: the least and the largest number of each, from 1 to all."""
    # All devices, and all but those of one domain, are cases of their own: the others are likely to be bad plans.
    ends = {int(share * devices) for share in _SHARES} | {devices - 1, devices}
    ends |= {devices - in_domain - 1, devices - in_domain}
    found = sorted(end for end in ends if end > 0)
    return [(before + 1, end) for before, end in zip([0, *found], found, strict=False)]
