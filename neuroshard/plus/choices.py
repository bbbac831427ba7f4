"""A greedy choice of tables to share among devices, assuming that all other columns are spread evenly.

The choice prices every change of one table as if all devices did the same. It makes the best 1, 2, 4, ... changes
together, of all kinds and of each kind, because the first table of a kind may not pay: it starts exchanges of its own.
It prices the results device by device, and continues from the best.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from neuroshard.plus.pricing import Pricing
from neuroshard.plus.sharing import Form, Place, Shared, shared
from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.links import LOADS
from shardgym.evaluation.solver import Budget

#: Plans x devices that are priced together; larger batches leave the processor's cache.
_DEVICES_PER_CALL = 16_384
#: A change must save more than this share of the time.
_LEAST_GAIN = 1e-4
#: Rounds of changes; each makes many.
_ROUNDS = 30
#: Choices of the climb that are searched from: the end of it, and the last ones on the way.
_WAY = 3
#: In columns.
_NONE = -1


class _Choice(NamedTuple):
    """Shared tables: each table's form and first device, (T,), with the sums, (D, V), and bytes, (D,), of devices."""

    forms: Ints
    firsts: Ints
    sums: Floats
    bytes: Ints


def shared_on_average(pricing: Pricing, forms: Sequence[Sequence[Form]], budget: Budget) -> list[Shared]:
    """Return the tables that devices should share, the best choice first; nothing if sharing does not pay."""
    average = _AverageDevices(pricing, forms)
    everything = list(average.everything())
    everything = [everything[n] for n in average.totals(everything).argsort(kind="stable").tolist()]
    # Where most tables should be shared, what leads there from none may cost more at first.
    ways = [average.climbed(start, budget) for start in (average.nothing, *everything[:1])]
    order = average.totals([way[-1] for way in ways]).argsort(kind="stable").tolist()
    found = [*ways[order[0]][: -_WAY - 1 : -1], *(ways[n][-1] for n in order[1:]), *everything[1:]]
    different = {(choice.forms.tobytes(), choice.firsts.tobytes()): choice for choice in reversed(found)}
    return [average.shared(choice) for choice in reversed(different.values()) if (choice.forms >= 0).any()]


def shared_for_room(pricing: Pricing, forms: Sequence[Sequence[Form]], budget: Budget) -> Iterator[Shared]:
    """Yield tables to share if columns find no room: at least the largest ones, then improvements by further changes.

    These are first the tables whose narrowest piece fits on no device, then the 1, 2, 4, ... largest, all in their
    smallest pieces. Raises `OutOfTime` when the budget is spent.
    """
    shards = pricing.shards
    average = _AverageDevices(pricing, forms)
    sizes = shards.bytes[shards.whole]
    largest = sorted(average.smallest(), key=lambda n: (-int(sizes[average.tables[n]]), int(average.tables[n])))
    too_large = int((shards.bytes[shards.first + 1] > max(shards.task.capacity_bytes)).sum())
    for made in average.made(average.nothing, np.array(largest, dtype=np.int64), at_least=too_large):
        for choice in (average.climbed(made, budget, keep=made.forms >= 0)[-1], made):
            yield average.shared(choice)


class _AverageDevices:
    """Placements that spread columns evenly over devices, with the heaviest piece on the first one."""

    def __init__(self, pricing: Pricing, forms: Sequence[Sequence[Form]]) -> None:
        self._pricing = pricing
        shards = pricing.shards
        devices = shards.task.num_devices
        self.forms = [form for of_table in forms for form in of_table]
        self.tables: Ints = np.array([form.table for form in self.forms], dtype=np.int64)
        ways = sorted({form.way for form in self.forms})
        self._num_kinds = len(ways)
        self._kinds: Ints = np.array([ways.index(form.way) for form in self.forms], dtype=np.int64)
        whole_ms = pricing.compute(pricing.vectors[shards.whole]).sum(axis=1)
        # What takes longer than an average device is cut, and then more is read and exchanged.
        pieces = np.ceil(whole_ms * devices / max(float(whole_ms.sum()), 1e-12)).clip(1, shards.units).astype(np.int64)
        units = shards.units // pieces
        self._piece: Floats = pricing.vectors[shards.first + units]
        self._share: Floats = self._piece * (shards.units / units)[:, None] / devices
        self._heaviest: Ints = (-pricing.compute(self._piece).sum(axis=1)).argsort(kind="stable")
        self._rank: Ints = self._heaviest.argsort(kind="stable")
        self._bytes: Ints = shards.bytes[shards.whole]
        none = np.zeros((0, self._share.shape[1]))
        #: What each form brings to an average device, shape (F, V), and what its memory costs.
        self._means: Floats = np.array([none, *(form.vectors.sum(axis=0) / devices for form in self.forms)][1:] or none)
        of_forms = np.array([form.bytes.sum() for form in self.forms], dtype=np.float64)
        columns = pricing.row_bytes[shards.whole][self.tables]
        self._charges: Floats = np.append(pricing.byte_ms * (of_forms - columns) / devices, 0.0)
        of_nodes = [n for n, form in enumerate(self.forms) if len(form.bytes) < devices]
        ms = pricing.compute(np.array([self.forms[n].vectors for n in of_nodes])).sum(axis=-1) if of_nodes else []
        #: What the devices of a node take for each form that one node has.
        self._node_ms: dict[int, Floats] = dict(zip(of_nodes, ms, strict=True))
        nowhere = np.zeros(len(forms), dtype=np.int64)
        shape = devices, self._share.shape[1]
        self.nothing = _Choice(nowhere + _NONE, nowhere, np.zeros(shape), np.zeros(devices, dtype=np.int64))

    def shared(self, choice: _Choice) -> Shared:
        """Return the shared tables of a choice."""
        places = zip(choice.forms.tolist(), choice.firsts.tolist(), strict=True)
        return shared((Place(self.forms[form], first) for form, first in places if form >= 0), choice.sums.shape)

    def everything(self) -> Iterator[_Choice]:
        """For each way to share tables, yield the choice with all tables that can be shared so, if memory allows it."""
        for kind in range(self._num_kinds):
            yield from list(self.made(self.nothing, self._heaviest_to(kind, self.nothing)))[-1:]

    def smallest(self) -> list[int]:
        """Return, per table that can be shared, the number of the form with the smallest pieces."""
        found: dict[int, int] = {}
        for n, form in enumerate(self.forms):
            least = found.get(form.table)
            if least is None or form.bytes.max() < self.forms[least].bytes.max():
                found[form.table] = n
        return list(found.values())

    def climbed(self, choice: _Choice, budget: Budget, keep: Bools | None = None) -> list[_Choice]:
        """Return successive choices after changes until none helps; tables to `keep` stay shared."""
        way = [choice]
        now_ms = float(self.totals(way)[0])
        for _ in range(_ROUNDS):
            budget.check()
            several = [made for order in self._orders(choice, keep) for made in self.made(choice, order)]
            totals = self.totals(several)
            if not several or totals.min() >= now_ms * (1 - _LEAST_GAIN):
                break
            now_ms = float(totals.min())
            choice = several[int(totals.argmin())]
            way.append(choice)
        return way

    def _orders(self, choice: _Choice, keep: Bools | None) -> list[Ints]:
        """Return the best changes of different tables, of all kinds and of each kind; ~table is a change to columns."""
        back = np.flatnonzero(choice.forms >= 0 if keep is None else (choice.forms >= 0) & ~keep)
        possible = np.flatnonzero(choice.forms[self.tables] != np.arange(len(self.forms)))
        tables = np.concatenate([back, self.tables[possible]])
        now = choice.forms[tables]
        after = np.concatenate([self._share[back], self._means[possible]])
        after -= np.where(now[:, None] < 0, self._share[tables], self._means[now] if len(self.forms) else 0.0)
        after += choice.sums.mean(axis=0) + self._share[choice.forms < 0].sum(axis=0)
        changes = np.concatenate([~back, possible])
        charges = self._charges[np.maximum(changes, _NONE)] - self._charges[now]
        order = (self._alike(np.maximum(after, 0.0)) + charges).argsort(kind="stable")
        kinds = np.concatenate([np.full(len(back), _NONE), self._kinds[possible]])
        orders = []
        for of_kind in (order, *(order[kinds[order] == kind] for kind in np.unique(kinds).tolist())):
            _, firsts = np.unique(tables[of_kind], return_index=True)
            orders.append(changes[of_kind[np.sort(firsts)]])
        return [*orders, *(self._heaviest_to(kind, choice) for kind in range(self._num_kinds))]

    def _heaviest_to(self, kind: int, choice: _Choice) -> Ints:
        """Return changes of the heaviest unshared tables to a kind, which only pay together."""
        forms = np.flatnonzero((self._kinds == kind) & (choice.forms[self.tables] < 0))
        return forms[self._rank[self.tables[forms]].argsort(kind="stable")]

    def made(self, choice: _Choice, changes: Ints, at_least: int = 1) -> Iterator[_Choice]:
        """Yield the choices after the first 1, 2, 4, ..., and all, of some changes, as far as memory allows."""
        pricing = self._pricing
        forms = choice.forms.copy()
        firsts = choice.firsts.copy()
        sums = choice.sums.copy()
        sizes = choice.bytes.copy()
        memory = np.array(pricing.shards.task.capacity_bytes, dtype=np.int64)
        busy_ms = pricing.compute(sums).sum(axis=1)
        for n, change in enumerate(changes.tolist(), 1):
            table = ~change if change < 0 else int(self.tables[change])
            if forms[table] >= 0:
                place = Place(self.forms[forms[table]], int(firsts[table]))
                sums[place.devices] -= place.form.vectors
                sizes[place.devices] -= place.form.bytes
                forms[table], firsts[table] = _NONE, 0
            if change >= 0:
                new = least_busy(self.forms[change], memory - sizes, busy_ms)
                if new is None:
                    return
                sums[new.devices] += new.form.vectors
                sizes[new.devices] += new.form.bytes
                forms[table], firsts[table] = change, new.first
                if change in self._node_ms:
                    # Changes that were best one by one would all go to the same node.
                    busy_ms[new.devices] += self._node_ms[change]
            counts = n >= at_least and (n & (n - 1) == 0 or n == len(changes))
            if counts and self._bytes[forms < 0].sum() <= (memory - sizes).sum():
                yield _Choice(forms.copy(), firsts.copy(), np.maximum(sums, 0.0), sizes.copy())

    def totals(self, several: Sequence[_Choice]) -> Floats:
        """Return the times of steps in ms, shape (n,)."""
        found = []
        for choice in several:
            in_columns = choice.forms < 0
            sums = choice.sums + self._share[in_columns].sum(axis=0)
            # Tables can be cut so far: a piece that takes longer than an even part decides the step.
            for table in self._heaviest[in_columns[self._heaviest]][:1].tolist():
                np.maximum(sums[0], self._piece[table], out=sums[0])
            compute = self._pricing.compute(sums)
            ms = self._pricing.totals(compute[None], sums[None, :, -LOADS:])
            found.append(float(ms[0]) + float(self._charges[choice.forms].sum()))
        return np.array(found)

    def _alike(self, sums: Floats) -> Floats:
        """Return the times of steps in which all devices do the same, (n, V) to (n,)."""
        devices = self._pricing.shards.task.num_devices
        compute = np.repeat(self._pricing.compute(sums)[:, None], devices, axis=1)
        step = max(1, _DEVICES_PER_CALL // devices)
        parts = [np.zeros(0)]
        for start in range(0, len(sums), step):
            some = slice(start, start + step)
            loads = np.repeat(sums[some, None, -LOADS:], devices, axis=1)
            parts.append(self._pricing.totals(compute[some], loads))
        return np.concatenate(parts)


def least_busy(form: Form, room: Ints, busy_ms: Floats) -> Place | None:
    """Return a place with room for a form, all devices or the least busy node; None if there is none."""
    count = len(form.bytes)
    if len(room) == count:
        return Place(form, 0) if (form.bytes <= room).all() else None
    fits = (form.bytes <= room.reshape(-1, count)).all(axis=1)
    if not fits.any():
        return None
    busy = busy_ms.reshape(-1, count).mean(axis=1)
    return Place(form, int(np.where(fits, busy, np.inf).argmin()) * count)
