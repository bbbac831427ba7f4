"""Which tables devices share, by rows or as replicas: by averages at first, then from plan to plan."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from neuroshard.plus.linear_model import LARGE, LinearModel, model_beside
from neuroshard.plus.local_search import Allocation, IteratedLocalSearch
from neuroshard.plus.pricing import Pricing
from neuroshard.plus.sharing import Form, Place, Shared
from neuroshard.plus.standins import Standins
from shardgym.arrays import Floats, Ints
from shardgym.costs.links import LOADS
from shardgym.incumbent import Budget

#: Numbers in the vectors of placements that are priced together.
_NUMBERS_PER_CALL = 2_000_000
#: A change has to bring more than this share of the time.
_LEAST_GAIN = 1e-4
#: Rounds of changes by averages; each makes many.
_ROUNDS = 30
#: Choices of the best climb that are searched from: the end of it, and the last ones on the way.
_WAY = 3
#: Of the changes of a plan that look best, so many are tried.
_TRIED = 4
#: Shared tables of which a round asks what their columns would take, and of large tasks.
_MOST_BACK = 64
_FEW_BACK = 8
#: Pieces into which the columns of a table that was shared are cut.
_PIECES = (1, 2, 4, 8)


class Change(NamedTuple):
    """One table changes how it is sharded; to columns, where there is no place."""

    table: int
    place: Place | None

    @property
    def kind(self) -> str:
        """How it is sharded, see `Form.way`, or "columns"."""
        return "columns" if self.place is None else self.place.form.way


def shared_on_average(pricing: Pricing, forms: Sequence[Sequence[Form]], budget: Budget) -> list[Shared]:
    """Return what devices should share if the columns of all other tables could be spread evenly, the best first.

    Each choice is the end of a climb, or the last ones on the way of the best; one starts where nothing is shared, and
    for each kind one where all tables are that can be. Empty where sharing brings nothing.

    Args:
        pricing: of the task, where nothing is shared.
        forms: in which tables can be shared.
        budget: of time.

    Raises:
        OutOfTime: the budget is spent.
    """
    average = _AverageDevices(pricing, forms)
    nothing = average.nothing
    starts = [nothing]
    for kind in sorted({form.way for of_table in forms for form in of_table}):
        everything = average.made(nothing, average.heaviest_to(kind, nothing))
        if everything is not None:
            starts.append(everything)
    ways = [average.climbed(start, budget) for start in starts]
    ends = [way[-1] for way in ways]
    order = average.totals(ends).argsort(kind="stable").tolist()
    found: list[Shared] = []
    for shared in [*ways[order[0]][: -_WAY - 1 : -1], *(ends[n] for n in order[1:])]:
        if shared.places and not any(same(shared, other) for other in found):
            found.append(shared)
    return [average.standins.full(shared) for shared in found]


def same(one: Shared, other: Shared) -> bool:
    """Say whether the same tables are shared in the same forms at the same places."""
    return one.places.keys() == other.places.keys() and all(
        place.form is other.places[table].form and place.first == other.places[table].first
        for table, place in one.places.items()
    )


def shared_for_room(pricing: Pricing, forms: Sequence[Sequence[Form]], budget: Budget) -> Iterator[Shared]:
    """Yield what to share where columns find no room: the largest tables at least, and what climbs lead to from there.

    First those of which not even the narrowest piece fits on a device, then the 1, 2, 4, ... largest, all in their
    smallest pieces. Arguments and errors are those of `shared_on_average`.
    """
    shards = pricing.shards
    average = _AverageDevices(pricing, forms)
    by_table = average.standins.forms
    largest = [min(of_table, key=lambda form: int(form.bytes.max())) for of_table in by_table if of_table]
    largest.sort(key=lambda form: (-int(shards.bytes[shards.whole[form.table]]), form.table))
    too_large = shards.bytes[shards.first + 1] > max(shards.task.capacity_bytes)
    for count in dict.fromkeys([int(too_large.sum()), *_doublings(len(largest))]):
        made = average.made(average.nothing, [Change(form.table, Place(form, 0)) for form in largest[:count]])
        if made is not None and made.places:
            for shared in (average.climbed(made, budget, keep=frozenset(made.places))[-1], made):
                yield average.standins.full(shared)


def _doublings(count: int) -> list[int]:
    """Return 1, 2, 4, ... below a count, and the count; nothing for 0."""
    return sorted({min(2**n, count) for n in range(count.bit_length() + 1)} - {0})


class _AverageDevices:
    """Placements in which each device has the same part of all columns, and one the heaviest piece of them.

    Only so many columns can be cut from a table: where a piece takes longer than an even part, it decides the step.
    `pricing` and `forms` as above; what is shared is so by `standins`.
    """

    def __init__(self, pricing: Pricing, forms: Sequence[Sequence[Form]]) -> None:
        self._pricing = pricing
        self.standins = Standins(pricing.shards.task, forms, pricing.vectors.shape[1])
        self.nothing = self.standins.nothing
        self._forms = self.standins.forms
        self._every = 2 if pricing.shards.task.num_devices * len(forms) > LARGE else 1
        shards = pricing.shards
        devices = shards.task.num_devices
        self._memory = self.standins.memory
        whole_ms = pricing.compute(pricing.vectors[shards.whole]).sum(axis=1)
        # What takes longer than an average device is cut, and then more is read and exchanged.
        pieces = np.ceil(whole_ms * devices / max(float(whole_ms.sum()), 1e-12)).clip(1, shards.units).astype(np.int64)
        units = shards.units // pieces
        self._share: Floats = pricing.vectors[shards.first + units] * (shards.units / units)[:, None] / devices
        self._bytes: Ints = shards.bytes[shards.whole]
        self._charge_ms: Floats = pricing.byte_ms * pricing.row_bytes[shards.whole] / devices
        self._form_ms: dict[tuple[int, str], Floats] = {}
        self._piece: Floats = pricing.vectors[shards.first + units]
        piece_ms = pricing.compute(self._piece).sum(axis=1)
        self._heaviest: list[int] = (-piece_ms).argsort(kind="stable").tolist()
        self._rank = {table: rank for rank, table in enumerate(self._heaviest)}

    def climbed(self, shared: Shared, budget: Budget, keep: Container[int] = ()) -> list[Shared]:
        """Return what changes lead to from something shared, one after the other, until none brings anything.

        Every change of one table is priced. Then the best 1, 2, 4, ... of all, the best of each kind, and those of the
        heaviest tables to each kind are made together, whichever brings most: the first table of a kind may cost more
        than it brings, as exchanges of its own start up; and of several heavy tables the last one decides the step. Of
        large tasks these are 1, 4, 16, ... Tables to `keep` stay shared.

        Raises:
            OutOfTime: the budget is spent.
        """
        way = [shared]
        now_ms = float(self.totals(way)[0])
        for _ in range(_ROUNDS):
            budget.check()
            changes = [one for one in self.changes(shared) if one.place is not None or one.table not in keep]
            if not changes:
                break
            order = self.totals_after(shared, changes).argsort(kind="stable").tolist()
            kinds = sorted({change.kind for change in changes})
            ranked = [first_of_tables(changes[n] for n in order)]
            ranked += [first_of_tables(changes[n] for n in order if changes[n].kind == kind) for kind in kinds]
            ranked += [self.heaviest_to(kind, shared) for kind in kinds]
            groups = [best[:count] for best in ranked for count in _doublings(len(best))[:: self._every]]
            several = [made for group in groups if (made := self.made(shared, group)) is not None]
            if not several:
                break
            totals = self.totals(several)
            if totals.min() >= now_ms * (1 - _LEAST_GAIN):
                break
            now_ms = float(totals.min())
            shared = several[int(totals.argmin())]
            way.append(shared)
        return way

    def heaviest_to(self, kind: str, shared: Shared) -> list[Change]:
        """Return the changes to a kind of tables that are not shared, those of the heaviest pieces first."""
        return [
            Change(table, Place(form, 0))
            for table in self._heaviest
            if table not in shared.places
            for form in self._forms[table]
            if form.way == kind
        ]

    def changes(self, shared: Shared) -> list[Change]:
        """Return the changes of one table that memory allows; of nodes, tables go to the one with least to do."""
        room = self._memory - shared.bytes
        busy_ms = self._pricing.compute(shared.sums).sum(axis=1)
        found = []
        for table, forms in enumerate(self._forms):
            now = shared.places.get(table)
            if now is not None:
                found.append(Change(table, None))
            for form in forms:
                place = least_busy(form, room, busy_ms)
                if place is not None and (now is None or now.form.way != form.way):
                    found.append(Change(table, place))
        return found

    def made(self, shared: Shared, changes: Sequence[Change]) -> Shared | None:
        """Return what is shared after several changes; None where memory does not allow it."""
        busy_ms = self._pricing.compute(shared.sums).sum(axis=1)
        added: Floats = np.zeros(len(busy_ms))
        places = []
        room = self._memory - shared.bytes
        for change in changes:
            now = shared.places.get(change.table)
            if now is not None:
                room[now.devices] += now.form.bytes
        for change in changes:
            if change.place is None:
                continue
            form = change.place.form
            # Changes that were best one by one would all go to the same node.
            place = least_busy(form, room, busy_ms if len(form.bytes) == len(room) else busy_ms + added)
            if place is None:
                return None
            places.append(place)
            room[place.devices] -= form.bytes
            added[place.devices] += self._busy_ms(form)
        after = shared.changed([change.table for change in changes], places)
        others = self._bytes[~after.tables(len(self._bytes))].sum()
        return after if others <= self.standins.total(self._memory - after.bytes) else None

    def _busy_ms(self, form: Form) -> Floats:
        """Return what devices compute for a form alone, shape (n,)."""
        key = (form.table, form.way)
        if key not in self._form_ms:
            self._form_ms[key] = self._pricing.compute(form.vectors).sum(axis=1)
        return self._form_ms[key]

    def totals(self, several: Sequence[Shared]) -> Floats:
        """Return what steps take in ms, shape (n,)."""
        step = max(1, _NUMBERS_PER_CALL // several[0].sums.size)
        parts = []
        for start in range(0, len(several), step):
            batch = several[start : start + step]
            columns = [self._share[~shared.tables(len(self._share))].sum(axis=0) for shared in batch]
            sums = np.array([shared.sums for shared in batch]) + np.array(columns)[:, None]
            heaviest = [next(iter(self._cut_first(shared)), None) for shared in batch]
            charges = [sum(self._charged(place) for place in shared.places.values()) for shared in batch]
            parts.append(self._priced(self._with_heaviest(sums, heaviest)) + charges)
        return np.concatenate(parts)

    def totals_after(self, shared: Shared, changes: Sequence[Change]) -> Floats:
        """Return the same after each of several changes."""
        base = shared.sums + self._share[~shared.tables(len(self._share))].sum(axis=0)
        cut = self._cut_first(shared)
        heaviest = [self._heavier(cut, change) for change in changes]
        step = max(1, _NUMBERS_PER_CALL // base.size)
        parts = []
        for start in range(0, len(changes), step):
            sums = np.tile(base, (min(step, len(changes) - start), 1, 1))
            for n, change in enumerate(changes[start : start + step]):
                now = shared.places.get(change.table)
                if now is None:
                    sums[n] -= self._share[change.table]
                else:
                    sums[n, now.devices] -= now.form.vectors
                if change.place is None:
                    sums[n] += self._share[change.table]
                else:
                    sums[n, change.place.devices] += change.place.form.vectors
            parts.append(self._priced(self._with_heaviest(sums, heaviest[start : start + step])))
        charges = [
            0.0 if place is None else self._charged(place)
            for place in (place for change in changes for place in (change.place, shared.places.get(change.table)))
        ]
        before = sum(self._charged(place) for place in shared.places.values())
        more: Floats = before + np.array(charges[::2]) - np.array(charges[1::2])
        return np.concatenate(parts) + more

    def _charged(self, place: Place) -> float:
        """Return what memory costs that a table takes where devices share it, beyond what its columns take."""
        if not self._pricing.byte_ms:
            return 0.0
        taken = float(place.form.bytes.sum()) * self._pricing.byte_ms / len(self._memory)
        return taken - float(self._charge_ms[place.form.table])

    def _cut_first(self, shared: Shared) -> list[int]:
        """Return the two tables with the heaviest pieces of those that are not shared, or fewer."""
        return list(itertools.islice((table for table in self._heaviest if table not in shared.places), 2))

    def _heavier(self, cut: Sequence[int], change: Change) -> int | None:
        """Return the table with the heaviest piece after a change; `cut` has the two heaviest ones before."""
        left = [table for table in cut if table != change.table]
        if change.place is None:
            left.append(change.table)
        return min(left, key=self._rank.__getitem__, default=None)

    def _with_heaviest(self, sums: Floats, tables: Sequence[int | None]) -> Floats:
        """Give the first device of each placement at least the piece of a table."""
        for n, table in enumerate(tables):
            if table is not None:
                np.maximum(sums[n, 0], self._piece[table], out=sums[n, 0])
        return sums

    def _priced(self, sums: Floats | Sequence[Floats]) -> Floats:
        # What is left of a device that gave everything away is rounding.
        rounded = np.maximum(np.asarray(sums), 0.0)
        compute = self.standins.for_all(self._pricing.compute(rounded))
        return self._pricing.totals(compute, self.standins.for_all(rounded[..., -LOADS:]))


def first_of_tables(changes: Iterable[Change]) -> list[Change]:
    """Return the first change of each table."""
    firsts: dict[int, Change] = {}
    for change in changes:
        firsts.setdefault(change.table, change)
    return list(firsts.values())


def least_busy(form: Form, room: Ints, busy_ms: Floats) -> Place | None:
    """Return where a form has room: all devices, or those of the node that has least to do; None for nowhere."""
    count = len(form.bytes)
    if len(room) == count:
        return Place(form, 0) if (form.bytes <= room).all() else None
    fits = (form.bytes <= room.reshape(-1, count)).all(axis=1)
    if not fits.any():
        return None
    busy = busy_ms.reshape(-1, count).mean(axis=1)
    return Place(form, int(np.where(fits, busy, np.inf).argmin()) * count)


def with_better_kinds(
    best: Allocation,
    forms: Sequence[Sequence[Form]],
    model: LinearModel,
    search_beside: Callable[[Shared], IteratedLocalSearch],
) -> Allocation:
    """Return what an allocation becomes by changes of one table at a time, each followed by a descent.

    A table of the most loaded devices becomes shared, a shared one gets another form, or its columns are placed. Of all
    such changes, those that look best by exact prices are tried.

    Args:
        best: to start from.
        forms: in which tables can be shared.
        model: of the prices.
        search_beside: returns the search over the columns of the tables that are not shared.
    """
    improved = True
    while improved:
        improved = False
        changed = _changed(best, forms)
        for units, shared in changed:
            search = search_beside(shared)
            other = search.descended(model_beside(model, search.pricing), [units])
            if other.value < best.value * (1 - _LEAST_GAIN):
                best = other
                improved = True
                break
    return best


def _changed(best: Allocation, forms: Sequence[Sequence[Form]]) -> list[tuple[Ints, Shared]]:
    """Return what the most promising changes lead to: units of each table on each device, and what is shared."""
    pricing, shared, devices = best.pricing, best.pricing.shared, len(best.units)
    busy_ms = best.compute.sum(axis=1)
    used = pricing.shards.bytes[pricing.shards.first + best.units].sum(axis=1)
    room = pricing.memory - used
    slowest = {int(busy_ms.argmax()), int(best.units.sum(axis=1).argmax())}
    tables = np.flatnonzero(best.units[sorted(slowest)].any(axis=0)).tolist()
    found: list[tuple[Ints, Change, Floats, float]] = []
    for table in [*tables, *list(shared.places)[: _MOST_BACK if best.units.size <= LARGE else _FEW_BACK]]:
        now = shared.places.get(table)
        nowhere = np.zeros_like(best.units[:, table])
        rows = pricing.shards.first[table] + best.units[:, table]
        left = best.sums - pricing.vectors[rows]
        more_room = room + pricing.shards.bytes[rows]
        if now is not None:
            left[now.devices] -= now.form.vectors
            more_room[now.devices] += now.form.bytes
        for form in forms[table]:
            place = least_busy(form, more_room, busy_ms)
            if place is None or (now is not None and now.form.way == form.way):
                continue
            sums = left.copy()
            sums[place.devices] += form.vectors
            charge_ms = pricing.byte_ms * float(form.bytes.sum()) / devices
            found.append((nowhere, Change(table, place), sums, charge_ms))
        if now is None:
            continue
        left_ms = pricing.compute(np.maximum(left, 0.0)).sum(axis=1)
        for pieces in _PIECES:
            if pieces > min(devices, int(pricing.shards.units[table])):
                break
            placed = nowhere.copy()
            sums = left.copy()
            parts = np.full(pieces, pricing.shards.units[table] // pieces)
            parts[: int(pricing.shards.units[table]) % pieces] += 1
            for device, part in zip(left_ms.argsort(kind="stable").tolist(), parts.tolist(), strict=False):
                placed[device] = part
                sums[device] += pricing.vectors[pricing.shards.first[table] + part]
            if (pricing.shards.bytes[pricing.shards.first[table] + placed] <= more_room).all():
                charge_ms = pricing.byte_ms * float(pricing.row_bytes[pricing.shards.whole[table]]) / devices
                found.append((placed, Change(table, None), sums, charge_ms))
    if not found:
        return []
    values = []
    step = max(1, _NUMBERS_PER_CALL // best.sums.size)
    for start in range(0, len(found), step):
        sums = np.maximum(np.array([one[2] for one in found[start : start + step]]), 0.0)
        values.append(pricing.objective(pricing.compute(sums), sums[..., -LOADS:])[1])
    charged = np.concatenate(values) + [one[3] for one in found]

    def changed(placed: Ints, change: Change) -> tuple[Ints, Shared]:
        units = best.units.copy()
        units[:, change.table] = placed
        return units, shared.changed([change.table], [] if change.place is None else [change.place])

    if pricing.moving is not None:
        after = (changed(placed, change) for placed, change, *_ in found)
        charged = charged + [pricing.beside(beside).moving_ms(units) for units, beside in after]
    return [changed(*found[n][:2]) for n in charged.argsort(kind="stable")[:_TRIED].tolist()]
