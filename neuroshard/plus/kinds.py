"""Which tables devices share, by rows or as replicas: by averages at first, then from plan to plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from neuroshard.plus.linear_model import LinearModel
from neuroshard.plus.local_search import Allocation, IteratedLocalSearch
from neuroshard.plus.pricing import Pricing
from neuroshard.plus.sharing import Form, Place, Shared
from shardgym.arrays import Floats, Ints
from shardgym.costs.links import LOADS
from shardgym.incumbent import Budget

#: Numbers in the vectors of placements that are priced together.
_NUMBERS_PER_CALL = 2_000_000
#: A change has to bring more than this share of the time.
_LEAST_GAIN = 1e-4
#: Rounds of changes by averages; each makes many.
_ROUNDS = 30
#: Of the changes of a plan that look best, so many are tried.
_TRIED = 4
#: Shared tables of which a round asks what their columns would take.
_MOST_BACK = 64
#: Pieces into which the columns of a table that was shared are cut.
_PIECES = (1, 2, 4, 8)


class Change(NamedTuple):
    """One table changes how it is sharded; to columns, where there is no place."""

    table: int
    place: Place | None

    @property
    def kind(self) -> str:
        """TorchRec's sharding type, or "columns"."""
        return "columns" if self.place is None else self.place.form.kind


def shared_on_average(pricing: Pricing, forms: Sequence[Sequence[Form]], budget: Budget) -> list[Shared]:
    """Return the tables that devices should share if the columns of all others could be spread evenly.

    The last choice is the best one, the others are on the way to it; empty where sharing brings nothing.

    From nothing shared, every change of one table is priced. The best 1, 2, 4, ... of all, and of each kind, are made
    together, whichever brings most, until none brings anything: the first table of a kind may cost more than it brings,
    as exchanges of its own start up.

    Args:
        pricing: of the task, where nothing is shared.
        forms: in which tables can be shared.
        budget: of time.

    Raises:
        OutOfTime: the budget is spent.
    """
    average = _AverageDevices(pricing, forms)
    shared = pricing.shared
    way: list[Shared] = []
    now_ms = float(average.totals([shared])[0])
    for _ in range(_ROUNDS):
        budget.check()
        changes = average.changes(shared)
        if not changes:
            break
        order = average.totals_after(shared, changes).argsort(kind="stable").tolist()
        several = []
        for kind in (None, *sorted({change.kind for change in changes})):
            best = [changes[n] for n in order if kind in (None, changes[n].kind)]
            firsts = {change.table: change for change in reversed(best)}
            best = [change for change in best if firsts[change.table] is change]
            counts = sorted({min(2**n, len(best)) for n in range(len(best).bit_length() + 1)})
            several += [made for count in counts if (made := average.made(shared, best[:count])) is not None]
        if not several:
            break
        totals = average.totals(several)
        if totals.min() >= now_ms * (1 - _LEAST_GAIN):
            break
        now_ms = float(totals.min())
        shared = several[int(totals.argmin())]
        way.append(shared)
    return way


def shared_for_room(pricing: Pricing, forms: Sequence[Sequence[Form]]) -> Iterator[Shared]:
    """Yield what to share where columns find no room: the 1, 2, 4, ... largest tables, in their smallest pieces."""
    smallest = [min(of_table, key=lambda form: int(form.bytes.max())) for of_table in forms if of_table]
    smallest.sort(key=lambda form: (-int(pricing.shards.bytes[pricing.shards.whole[form.table]]), form.table))
    average = _AverageDevices(pricing, forms)
    for count in sorted({min(2**n, len(smallest)) for n in range(len(smallest).bit_length() + 1)} - {0}):
        changes = [Change(form.table, Place(form, 0)) for form in smallest[:count]]
        made = average.made(pricing.shared, changes)
        if made is not None:
            yield made


class _AverageDevices:
    """Placements in which each device has the same part of all columns; `pricing` and `forms` as above."""

    def __init__(self, pricing: Pricing, forms: Sequence[Sequence[Form]]) -> None:
        self._pricing = pricing
        self._forms = forms
        shards = pricing.shards
        devices = shards.task.num_devices
        self._memory = np.array(shards.task.capacity_bytes, dtype=np.int64)
        whole_ms = pricing.compute(pricing.vectors[shards.whole]).sum(axis=1)
        # What takes longer than an average device is cut, and then more is read and exchanged.
        pieces = np.ceil(whole_ms * devices / max(float(whole_ms.sum()), 1e-12)).clip(1, shards.units).astype(np.int64)
        units = shards.units // pieces
        self._share: Floats = pricing.vectors[shards.first + units] * (shards.units / units)[:, None] / devices
        self._bytes: Ints = shards.bytes[shards.whole]

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
                if place is not None and (now is None or now.form.kind != form.kind):
                    found.append(Change(table, place))
        return found

    def made(self, shared: Shared, changes: Sequence[Change]) -> Shared | None:
        """Return what is shared after several changes; None where memory does not allow it."""
        busy_ms = self._pricing.compute(shared.sums).sum(axis=1)
        added: Floats = np.zeros(len(busy_ms))
        places = []
        after = shared.changed([change.table for change in changes], [])
        room = self._memory - after.bytes
        for change in changes:
            if change.place is None:
                continue
            form = change.place.form
            # Changes that were best one by one would all go to the same node.
            place = least_busy(form, room, busy_ms + added)
            if place is None:
                return None
            places.append(place)
            room[place.devices] -= form.bytes
            added[place.devices] += self._pricing.compute(form.vectors).sum(axis=1)
        after = after.changed([], places)
        others = self._bytes[~after.tables(len(self._bytes))].sum()
        return after if others <= (self._memory - after.bytes).sum() else None

    def totals(self, several: Sequence[Shared]) -> Floats:
        """Return what steps take in ms, shape (n,)."""
        sums = [shared.sums + self._share[~shared.tables(len(self._share))].sum(axis=0) for shared in several]
        return np.concatenate([self._priced(sums[n : n + 1]) for n in range(len(sums))])

    def totals_after(self, shared: Shared, changes: Sequence[Change]) -> Floats:
        """Return the same after each of several changes."""
        base = shared.sums + self._share[~shared.tables(len(self._share))].sum(axis=0)
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
            parts.append(self._priced(sums))
        return np.concatenate(parts)

    def _priced(self, sums: Floats | Sequence[Floats]) -> Floats:
        # What is left of a device that gave everything away is rounding.
        rounded = np.maximum(np.asarray(sums), 0.0)
        return self._pricing.totals(self._pricing.compute(rounded), rounded[..., -LOADS:])


def least_busy(form: Form, room: Ints, busy_ms: Floats) -> Place | None:
    """Return where a form has room: all devices, or those of the node that has least to do; None for nowhere."""
    count = len(form.bytes)
    places = [Place(form, first) for first in range(0, len(room), count)]
    fitting = [place for place in places if (form.bytes <= room[place.devices]).all()]
    return min(fitting, key=lambda place: float(busy_ms[place.devices].mean()), default=None)


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


def model_beside(model: LinearModel, pricing: Pricing) -> LinearModel:
    """Return a model where devices share what they do by this pricing."""
    shared_ms = pricing.compute(pricing.shared.sums).sum(axis=1)
    return model._replace(units=pricing.units, memory=pricing.memory, shared_ms=shared_ms)


def _changed(best: Allocation, forms: Sequence[Sequence[Form]]) -> list[tuple[Ints, Shared]]:
    """Return what the most promising changes lead to: units of each table on each device, and what is shared."""
    pricing, shared = best.pricing, best.pricing.shared
    devices = len(best.units)
    busy_ms = best.compute.sum(axis=1)
    used = pricing.shards.bytes[pricing.shards.first + best.units].sum(axis=1)
    room = pricing.memory - used
    slowest = {int(busy_ms.argmax()), int(best.units.sum(axis=1).argmax())}
    tables = np.flatnonzero(best.units[sorted(slowest)].any(axis=0)).tolist()
    found: list[tuple[Ints, Shared, Floats]] = []
    for table in [*tables, *list(shared.places)[:_MOST_BACK]]:
        now = shared.places.get(table)
        units = best.units.copy()
        units[:, table] = 0
        rows = pricing.shards.first[table] + best.units[:, table]
        left = best.sums - pricing.vectors[rows]
        more_room = room + pricing.shards.bytes[rows]
        if now is not None:
            left[now.devices] -= now.form.vectors
            more_room[now.devices] += now.form.bytes
        for form in forms[table]:
            place = least_busy(form, more_room, busy_ms)
            if place is None or (now is not None and now.form.kind == form.kind):
                continue
            sums = left.copy()
            sums[place.devices] += form.vectors
            found.append((units, shared.changed([table], [place]), sums))
        if now is None:
            continue
        without = shared.changed([table], [])
        left_ms = pricing.compute(np.maximum(left, 0.0)).sum(axis=1)
        for pieces in _PIECES:
            if pieces > min(devices, int(pricing.shards.units[table])):
                break
            placed = units.copy()
            sums = left.copy()
            parts = np.full(pieces, pricing.shards.units[table] // pieces)
            parts[: int(pricing.shards.units[table]) % pieces] += 1
            for device, part in zip(left_ms.argsort(kind="stable").tolist(), parts.tolist(), strict=False):
                placed[device, table] = part
                sums[device] += pricing.vectors[pricing.shards.first[table] + part]
            if (pricing.shards.bytes[pricing.shards.first[table] + placed[:, table]] <= more_room).all():
                found.append((placed, without, sums))
    if not found:
        return []
    values = []
    step = max(1, _NUMBERS_PER_CALL // best.sums.size)
    for start in range(0, len(found), step):
        sums = np.maximum(np.array([sums for _, _, sums in found[start : start + step]]), 0.0)
        values.append(pricing.objective(pricing.compute(sums), sums[..., -LOADS:])[1])
    order = np.concatenate(values).argsort(kind="stable")[:_TRIED]
    return [found[n][:2] for n in order.tolist()]
