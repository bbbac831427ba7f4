"""Forms in which devices share tables as arrays, and compiled code that places them and adds them up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from neuroshard.jit import jit
from neuroshard.plus.sharing import Form
from shardgym.arrays import Floats, Ints

#: No form, or no table.
NONE = -1
#: NumPy adds so many values up one by one, so many in partial sums, and more in halves.
_ONE_BY_ONE = 8
_IN_PARTS = 128


class FormArrays(NamedTuple):
    """Forms by number, those of a table next to each other.

    Attributes:
        tables: of each form, shape (F,).
        devices: that share it, those of a node or all, shape (F,).
        bytes: that it takes on these devices, zeros after the last, shape (F, D).
        ms: that they compute for it alone, likewise.
        vectors: what it adds to the sums of devices, those of all forms one after another, shape (R, V).
        rows: where its first vector is, shape (F,).
        steps: 1, or 0 where one vector is that of all its devices, shape (F,).
    """

    tables: Ints
    devices: Ints
    bytes: Ints
    ms: Floats
    vectors: Floats
    rows: Ints
    steps: Ints

    @classmethod
    def of(cls, forms: Sequence[Form], shape: tuple[int, int], compute_ms: Callable[[Floats], Floats]) -> FormArrays:
        """Return forms as arrays.

        Args:
            forms: in the order of their tables.
            shape: of the sums, devices and entries of a vector.
            compute_ms: returns what devices compute, shape (n, V) to (n,).
        """
        devices = np.array([len(form.bytes) for form in forms], dtype=np.int64)
        alike = [bool((form.vectors == form.vectors[0]).all()) for form in forms]
        parts = [form.vectors[:1] if same else form.vectors for form, same in zip(forms, alike, strict=True)]
        counts = np.array([len(part) for part in parts], dtype=np.int64)
        rows = np.cumsum(counts) - counts
        vectors = np.concatenate([*parts, np.zeros((0, shape[1]))])
        vectors_ms = compute_ms(vectors)
        steps = np.where(alike, 0, 1)
        sizes = np.zeros((len(forms), shape[0]), dtype=np.int64)
        ms = np.zeros(sizes.shape)
        for n, form in enumerate(forms):
            sizes[n, : devices[n]] = form.bytes
            ms[n, : devices[n]] = vectors_ms[rows[n] : rows[n] + counts[n]]
        tables = np.array([form.table for form in forms], dtype=np.int64)
        return cls(tables, devices, sizes, ms, vectors, rows, steps.astype(np.int64))


class Choice(NamedTuple):
    """Which tables are shared, and what that comes to; the last two follow from the first two.

    Attributes:
        forms: number of each table's form, -1 for none, shape (T,).
        firsts: first device of each, shape (T,).
        sums: added vectors of each device, shape (D, V).
        bytes: of each device, shape (D,).
    """

    forms: Ints
    firsts: Ints
    sums: Floats
    bytes: Ints

    def same(self, other: Choice) -> bool:
        """Say whether the same tables are shared in the same forms at the same places."""
        return np.array_equal(self.forms, other.forms) and np.array_equal(self.firsts, other.firsts)


class Changes(NamedTuple):
    """Tables that change how they are sharded, one each.

    Attributes:
        tables: shape (n,).
        forms: number of the new form of each, -1 for columns, shape (n,).
        firsts: its first device, shape (n,).
    """

    tables: Ints
    forms: Ints
    firsts: Ints

    def some(self, which: Ints) -> Changes:
        """Return some of them."""
        return Changes(self.tables[which], self.forms[which], self.firsts[which])


@jit
def added_up(forms: FormArrays, chosen: Ints, firsts: Ints, devices: int) -> Floats:
    """Return the added vectors of devices, shape (D, V), in the order of tables; arguments as in a `Choice`."""
    sums = np.zeros((devices, forms.vectors.shape[1]))
    for table in range(len(chosen)):
        if chosen[table] >= 0:
            _add(forms, chosen[table], firsts[table], sums, 1.0)
    return sums


@jit
def _add(forms: FormArrays, form: int, first: int, sums: Floats, sign: float) -> None:
    """Add a form to the sums of its devices, or take it off, where `sign` is -1."""
    for n in range(forms.devices[form]):
        vector = forms.vectors[forms.rows[form] + n * forms.steps[form]]
        device = sums[first + n]
        for k in range(len(vector)):
            device[k] += sign * vector[k]


@jit
def placed(
    forms: FormArrays, now: Choice, changes: Changes, room: Ints, busy_ms: Floats
) -> tuple[bool, Ints, Ints, Ints]:  # fmt: skip
    """Place the forms of several changes, one after another: on all devices, or those of the node with least to do.

    Args:
        forms: in which tables can be shared.
        now: what is shared before.
        changes: to make.
        room: bytes that are left on each device before, shape (D,).
        busy_ms: that each device computes before, shape (D,).

    Returns:
        Whether there is room for all, `forms` and `firsts` of the `Choice`, and the bytes that are left.
    """
    room = room.copy()
    chosen, firsts = now.forms.copy(), now.firsts.copy()
    for table in changes.tables:
        form = chosen[table]
        if form >= 0:
            for d in range(forms.devices[form]):
                room[firsts[table] + d] += forms.bytes[form, d]
            chosen[table] = NONE
            firsts[table] = 0
    added_ms = np.zeros(len(room))
    for n in range(len(changes.tables)):
        form = changes.forms[n]
        if form < 0:
            continue
        first = _least_busy(forms, form, room, busy_ms, added_ms)
        if first < 0:
            return False, chosen, firsts, room
        chosen[changes.tables[n]] = form
        firsts[changes.tables[n]] = first
        for d in range(forms.devices[form]):
            room[first + d] -= forms.bytes[form, d]
            # Changes that were best one by one would all go to the same node.
            added_ms[first + d] += forms.ms[form, d]
    return True, chosen, firsts, room


@jit
def _least_busy(forms: FormArrays, form: int, room: Ints, busy_ms: Floats, added_ms: Floats) -> int:
    """Return the first device of the node with room that has least to do, 0 for all devices; -1 for no room."""
    count = forms.devices[form]
    best = NONE
    least = np.inf
    for first in range(0, len(room), count):
        fits = True
        for d in range(count):
            fits &= forms.bytes[form, d] <= room[first + d]
        if not fits:
            continue
        if count == len(room):
            return 0
        ms = added(busy_ms[first : first + count] + added_ms[first : first + count]) / count
        if best < 0 or ms < least:
            best = first
            least = ms
    return best


@jit
def least_busy_of_all(forms: FormArrays, room: Ints, busy_ms: Floats) -> Ints:
    """Return the first device of each form where it is placed alone, -1 for no room, shape (F,); see `placed`."""
    firsts = np.empty(len(forms.tables), dtype=np.int64)
    nothing = np.zeros(len(room))
    for form in range(len(firsts)):
        firsts[form] = _least_busy(forms, form, room, busy_ms, nothing)
    return firsts


@jit
def added(values: Floats) -> float:
    """Return the sum of some values, rounded as NumPy's is, which adds eight partial sums, and halves of many."""
    count = len(values)
    total: float = 0.0
    if count < _ONE_BY_ONE:
        for value in values:
            total += value
        return total
    if count <= _IN_PARTS:
        parts = values[:8].copy()
        whole = count - count % 8
        for start in range(8, whole, 8):
            parts += values[start : start + 8]
        total = ((parts[0] + parts[1]) + (parts[2] + parts[3])) + ((parts[4] + parts[5]) + (parts[6] + parts[7]))
        for value in values[whole:]:
            total += value
        return total
    half = count // 2 - count // 2 % 8
    return added(values[:half]) + added(values[half:])


@jit
def sums_after(
    forms: FormArrays, now: Choice, changes: Changes, base: Floats, columns: Floats, pieces: Floats, heaviest: Ints
) -> Floats:  # fmt: skip
    """Return the added vectors of devices after each of several changes, shape (n, D, V), none less than 0.

    Args:
        forms: in which tables can be shared.
        now: what is shared before.
        changes: of one table each.
        base: added vectors of devices before, columns included, shape (D, V).
        columns: what each device has of the columns of a table that is not shared, shape (T, V).
        pieces: of a table, which the first device has at least, shape (T, V).
        heaviest: table whose piece it has after each change, -1 for none, shape (n,).
    """
    devices, length = base.shape
    sums = np.empty((len(changes.tables), devices, length))
    for n in range(len(changes.tables)):
        after = sums[n]
        after[:] = base
        table, form = changes.tables[n], changes.forms[n]
        if now.forms[table] < 0:
            after -= columns[table]
        else:
            _add(forms, now.forms[table], now.firsts[table], after, -1.0)
        if form < 0:
            after += columns[table]
        else:
            _add(forms, form, changes.firsts[n], after, 1.0)
        if heaviest[n] >= 0:
            for k in range(length):
                after[0, k] = max(after[0, k], pieces[heaviest[n], k])
        # What is left of a device that gave everything away is rounding.
        for d in range(devices):
            for k in range(length):
                after[d, k] = max(after[d, k], 0.0)
    return sums


def compile_choices() -> None:
    """Call all compiled code once, with a table that two devices share."""
    one = np.ones(2, dtype=np.int64)
    form = Form(0, "data_parallel", np.ones((2, 2)), one, 0 * one, 0 * one)
    forms = FormArrays.of([form], (2, 2), lambda sums: sums.sum(axis=1))
    table = np.zeros(1, dtype=np.int64)
    nothing = Choice(table + NONE, table, np.zeros((2, 2)), 0 * one)
    changes = Changes(table, table, least_busy_of_all(forms, one, np.zeros(2)))
    _, chosen, firsts, _ = placed(forms, nothing, changes, one, np.zeros(2))
    added_up(forms, chosen, firsts, 2)
    rows = np.zeros((1, 2))
    sums_after(forms, nothing, changes, np.zeros((2, 2)), rows, rows, table)
