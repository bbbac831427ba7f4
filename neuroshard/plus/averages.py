"""Which tables devices should share if the columns of all others could be spread evenly: climbs by averages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from neuroshard.plus.form_arrays import (
    NONE,
    Changes,
    Choice,
    FormArrays,
    added_up,
    least_busy_of_all,
    placed,
    sums_after,
)
from neuroshard.plus.linear_model import LARGE
from neuroshard.plus.pricing import Pricing
from neuroshard.plus.sharing import Form, Place, Shared, shared
from neuroshard.plus.standins import Standins
from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.links import LOADS
from shardgym.evaluation.incumbent import Budget

#: Plans x devices that are priced together; larger batches leave the processor's cache.
_DEVICES_PER_CALL = 16_384
#: A change has to bring more than this share of the time.
_LEAST_GAIN = 1e-4
#: Rounds of changes by averages; each makes many.
_ROUNDS = 30
#: Tables that are not shared at all.
_COLUMNS = "columns"


def doublings(count: int) -> list[int]:
    """Return 1, 2, 4, ... below a count, and the count; nothing for 0."""
    return sorted({min(2**n, count) for n in range(count.bit_length() + 1)} - {0})


class AverageDevices:
    """Placements in which each device has the same part of all columns, and one the heaviest piece of them.

    Only so many columns can be cut from a table: where a piece takes longer than an even part, it decides the step.
    What is shared is so by `standins`.

    Args:
        pricing: of the task, where nothing is shared.
        forms: in which tables can be shared.

    Attributes:
        standins: devices that stand for all.
        forms: by number, those of tables one after another.
        nothing: no table is shared.
    """

    def __init__(self, pricing: Pricing, forms: Sequence[Sequence[Form]]) -> None:
        self._pricing = pricing
        self.standins = Standins(pricing.shards.task, forms, pricing.vectors.shape[1])
        self._memory = self.standins.memory
        shape = len(self._memory), pricing.vectors.shape[1]
        self.forms: list[Form] = [form for of_table in self.standins.forms for form in of_table]
        self._arrays = FormArrays.of(self.forms, shape, self._compute_ms)
        tables = len(forms)
        self.nothing = Choice(
            np.full(tables, NONE), np.zeros(tables, dtype=np.int64), np.zeros(shape), np.zeros(shape[0], dtype=np.int64)
        )
        #: Places of forms' ways, and of columns, in the order of their names.
        names = sorted({_COLUMNS, *(form.way for form in self.forms)})
        self._kinds: Ints = np.array([names.index(form.way) for form in self.forms], dtype=np.int64)
        self._columns_kind = names.index(_COLUMNS)
        #: Of each kind, the number of each table's form, shape (T,).
        self._of_kind: Ints = np.full((len(names), tables), NONE)
        self._of_kind[self._kinds, self._arrays.tables] = np.arange(len(self.forms))
        self._every = 2 if pricing.shards.task.num_devices * len(forms) > LARGE else 1
        shards = pricing.shards
        devices = shards.task.num_devices
        whole_ms = pricing.compute(pricing.vectors[shards.whole]).sum(axis=1)
        # What takes longer than an average device is cut, and then more is read and exchanged.
        pieces = np.ceil(whole_ms * devices / max(float(whole_ms.sum()), 1e-12)).clip(1, shards.units).astype(np.int64)
        units = shards.units // pieces
        self._share: Floats = pricing.vectors[shards.first + units] * (shards.units / units)[:, None] / devices
        self._bytes: Ints = shards.bytes[shards.whole]
        self._piece: Floats = pricing.vectors[shards.first + units]
        piece_ms = pricing.compute(self._piece).sum(axis=1)
        self._heaviest: Ints = (-piece_ms).argsort(kind="stable")
        self._rank: Ints = self._heaviest.argsort(kind="stable")
        # What memory costs that a table takes where devices share it, beyond what its columns take.
        form_bytes = self._arrays.bytes.sum(axis=1)
        columns_ms = pricing.byte_ms * pricing.row_bytes[shards.whole] / devices
        charges = form_bytes * pricing.byte_ms / len(self._memory) - columns_ms[self._arrays.tables]
        #: Of each form, and last of none.
        self._charges: Floats = np.append(charges, 0.0)

    def full(self, choice: Choice) -> Shared:
        """Return what all devices share where stand-ins share this."""
        places = (
            Place(self.forms[form], first)
            for form, first in zip(choice.forms.tolist(), choice.firsts.tolist(), strict=True)
            if form >= 0
        )
        return self.standins.full(shared(places, choice.sums.shape))

    def climbed(self, choice: Choice, budget: Budget, keep: Bools | None = None) -> list[Choice]:
        """Return what changes lead to from something shared, one after the other, until none brings anything.

        Every change of one table is priced. Then the best 1, 2, 4, ... of all, the best of each kind, and those of the
        heaviest tables to each kind are made together, whichever brings most: the first table of a kind may cost more
        than it brings, as exchanges of its own start up; and of several heavy tables the last one decides the step. Of
        large tasks these are 1, 4, 16, ... Tables to `keep`, shape (T,), stay shared.

        Raises:
            OutOfTime: the budget is spent.
        """
        way = [choice]
        now_ms = float(self.totals(way)[0])
        kept = np.zeros(len(choice.forms), dtype=np.bool_) if keep is None else keep
        for _ in range(_ROUNDS):
            budget.check()
            busy_ms = self._compute_ms(choice.sums)
            changes = self._changes(choice, busy_ms, kept)
            if not len(changes.tables):
                break
            order = self._totals_after(choice, changes).argsort(kind="stable")
            of_kind = np.where(changes.forms < 0, self._columns_kind, self._kinds[changes.forms])
            kinds = np.unique(of_kind).tolist()
            ranked = [_first_of_tables(changes, order)]
            ranked += [_first_of_tables(changes, order[of_kind[order] == kind]) for kind in kinds]
            ranked += [self._heaviest_to(kind, choice) for kind in kinds]
            groups = (
                best.some(np.arange(count)) for best in ranked for count in doublings(len(best.tables))[:: self._every]
            )
            several = [made for group in groups if (made := self._made(choice, group, busy_ms)) is not None]
            if not several:
                break
            totals = self.totals(several)
            if totals.min() >= now_ms * (1 - _LEAST_GAIN):
                break
            now_ms = float(totals.min())
            choice = several[int(totals.argmin())]
            way.append(choice)
        return way

    def everything(self) -> Iterator[Choice]:
        """Yield, for each way to share tables, that all are that can be, where memory allows it."""
        for kind in np.unique(self._kinds).tolist():
            made = self.made(self._heaviest_to(kind, self.nothing).forms.tolist())
            if made is not None:
                yield made

    def smallest(self) -> list[int]:
        """Return the numbers of the forms with the smallest pieces of all tables that can be shared."""
        largest_piece = self._arrays.bytes.max(axis=1, initial=0)
        order = np.lexsort((largest_piece, self._arrays.tables))
        _, firsts = np.unique(self._arrays.tables[order], return_index=True)
        numbers: list[int] = order[firsts].tolist()
        return numbers

    def made(self, numbers: Sequence[int]) -> Choice | None:
        """Return that forms with these numbers are shared and nothing else; None where memory does not allow it."""
        forms = np.array(numbers, dtype=np.int64)
        changes = Changes(self._arrays.tables[forms], forms, np.zeros(len(forms), dtype=np.int64))
        return self._made(self.nothing, changes, self._compute_ms(self.nothing.sums))

    def _heaviest_to(self, kind: int, choice: Choice) -> Changes:
        """Return the changes to a kind of tables that are not shared, those of the heaviest pieces first."""
        forms = self._of_kind[kind]
        tables = self._heaviest[(choice.forms[self._heaviest] < 0) & (forms[self._heaviest] >= 0)]
        return Changes(tables, forms[tables], np.zeros(len(tables), dtype=np.int64))

    def _changes(self, choice: Choice, busy_ms: Floats, kept: Bools) -> Changes:
        """Return the changes of one table that memory allows; of nodes, tables go to the one with least to do."""
        to_forms = np.arange(len(self.forms))
        firsts = least_busy_of_all(self._arrays, self._memory - choice.bytes, busy_ms)
        possible = (firsts >= 0) & (choice.forms[self._arrays.tables] != to_forms)
        to_columns = np.flatnonzero((choice.forms >= 0) & ~kept)
        tables = np.concatenate([to_columns, self._arrays.tables[possible]])
        forms = np.concatenate([np.full(len(to_columns), NONE), to_forms[possible]])
        first = np.concatenate([np.zeros(len(to_columns), dtype=np.int64), firsts[possible]])
        return Changes(tables, forms, first).some(tables.argsort(kind="stable"))

    def _made(self, choice: Choice, changes: Changes, busy_ms: Floats) -> Choice | None:
        """Return what is shared after several changes; None where memory does not allow it."""
        fits, forms, firsts, room = placed(self._arrays, choice, changes, self._memory - choice.bytes, busy_ms)
        if not fits or self._bytes[forms < 0].sum() > self.standins.total(room):
            return None
        sums = added_up(self._arrays, forms, firsts, len(room))
        return Choice(forms, firsts, sums, self._memory - room)

    def totals(self, several: Sequence[Choice]) -> Floats:
        """Return what steps take in ms, shape (n,)."""
        parts = []
        step = self._step()
        for start in range(0, len(several), step):
            batch = several[start : start + step]
            columns = [self._share[choice.forms < 0].sum(axis=0) for choice in batch]
            sums = np.array([choice.sums for choice in batch]) + np.array(columns)[:, None]
            for n, choice in enumerate(batch):
                for table in self._cut_first(choice, 1):
                    np.maximum(sums[n, 0], self._piece[table], out=sums[n, 0])
            # What is left of a device that gave everything away is rounding.
            charges = [sum(self._charges[choice.forms[choice.forms >= 0]].tolist()) for choice in batch]
            parts.append(self._priced(np.maximum(sums, 0.0)) + charges)
        return np.concatenate(parts)

    def _totals_after(self, choice: Choice, changes: Changes) -> Floats:
        """Return the same after each of several changes."""
        base = choice.sums + self._share[choice.forms < 0].sum(axis=0)
        heaviest = self._heaviest_after(choice, changes)
        parts = []
        step = self._step()
        for start in range(0, len(changes.tables), step):
            some = np.arange(start, min(start + step, len(changes.tables)))
            sums = sums_after(self._arrays, choice, changes.some(some), base, self._share, self._piece, heaviest[some])
            parts.append(self._priced(sums))
        before = sum(self._charges[choice.forms[choice.forms >= 0]].tolist())
        more: Floats = before + self._charges[changes.forms] - self._charges[choice.forms[changes.tables]]
        return np.concatenate(parts) + more

    def _cut_first(self, choice: Choice, count: int) -> list[int]:
        """Return so many tables with the heaviest pieces of those that are not shared, or fewer."""
        tables: list[int] = self._heaviest[choice.forms[self._heaviest] < 0][:count].tolist()
        return tables

    def _heaviest_after(self, choice: Choice, changes: Changes) -> Ints:
        """Return the table with the heaviest piece after each change, -1 for none, shape (n,)."""
        tables = len(self._rank)
        # A rank behind all others is that of no table.
        ranks = np.full((3, len(changes.tables)), tables)
        for n, table in enumerate(self._cut_first(choice, 2)):
            ranks[n] = np.where(changes.tables == table, tables, self._rank[table])
        ranks[2] = np.where(changes.forms < 0, self._rank[changes.tables], tables)
        heaviest: Ints = np.append(self._heaviest, NONE)[ranks.min(axis=0)]
        return heaviest

    def _step(self) -> int:
        return max(1, _DEVICES_PER_CALL // self._pricing.shards.task.num_devices)

    def _compute_ms(self, sums: Floats) -> Floats:
        """Return what devices compute, shape (n, V) to (n,)."""
        ms: Floats = self._pricing.compute(sums).sum(axis=1)
        return ms

    def _priced(self, sums: Floats) -> Floats:
        """Return what steps take, shape (n, D, V) to (n,)."""
        compute = self.standins.for_all(self._pricing.compute(sums))
        return self._pricing.totals(compute, self.standins.for_all(sums[..., -LOADS:]))


def _first_of_tables(changes: Changes, order: Ints) -> Changes:
    """Return the first change of each table in an order."""
    _, firsts = np.unique(changes.tables[order], return_index=True)
    return changes.some(order[np.sort(firsts)])
