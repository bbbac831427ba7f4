"""The compiled parts of climbs by averages do what plain code does, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from test_plus_large import COSTS, task_in_nodes

from neuroshard.plus.averages import AverageDevices
from neuroshard.plus.form_arrays import NONE, Changes, Choice, FormArrays, added, least_busy_of_all, placed, sums_after
from neuroshard.plus.kinds import least_busy
from neuroshard.plus.pricing import Pricing
from neuroshard.plus.sharing import SHARED_TYPES, Form, Place, Shared, forms_of, shared
from neuroshard.shard_table import ShardTable
from shardgym.arrays import Floats, Ints

DEVICES = 32


def task_forms() -> tuple[list[Form], FormArrays, Pricing]:
    """Return forms of tables on four nodes, the same as arrays, and prices."""
    task, costs = task_in_nodes(DEVICES, interval=None), COSTS["gpu"].additive()
    pricing = Pricing(ShardTable(task), costs)
    forms = [form for of_table in forms_of(task, costs, SHARED_TYPES) for form in of_table]
    shape = DEVICES, pricing.vectors.shape[1]
    return forms, FormArrays.of(forms, shape, lambda sums: pricing.compute(sums).sum(axis=1)), pricing


def chosen_at_random(forms: list[Form], tables: int, rng: np.random.Generator) -> Changes:
    """Return a form of each of some tables, or columns."""
    numbers = []
    some = rng.permutation(tables)[: rng.integers(1, tables + 1)]
    for table in some:
        of_table = [n for n, form in enumerate(forms) if form.table == table]
        numbers.append(int(rng.choice([NONE, *of_table])))
    return Changes(some, np.array(numbers), np.zeros(len(some), dtype=np.int64))


def plainly_placed(
    forms: list[Form], now: Shared, changes: Changes, room: Ints, busy_ms: Floats, pricing: Pricing
) -> Shared | None:
    """Return what is shared after several changes; None where there is no room."""
    room, added_ms, places = room.copy(), np.zeros(DEVICES), []
    for table in changes.tables.tolist():
        if table in now.places:
            room[now.places[table].devices] += now.places[table].form.bytes
    for number in changes.forms.tolist():
        if number == NONE:
            continue
        form = forms[number]
        place = least_busy(form, room, busy_ms + added_ms)
        if place is None:
            return None
        places.append(place)
        room[place.devices] -= form.bytes
        added_ms[place.devices] += pricing.compute(form.vectors).sum(axis=1)
    return now.changed(changes.tables.tolist(), places)


def shared_of(choice: Choice, forms: list[Form]) -> Shared:
    pairs = zip(choice.forms.tolist(), choice.firsts.tolist(), strict=True)
    return shared([Place(forms[n], first) for n, first in pairs if n != NONE], choice.sums.shape)


def test_sums_are_rounded_as_those_of_numpy():
    rng = np.random.default_rng(0)
    for count in [*range(1, 40), 64, 72, 127, 128, 129, 144, 300, 1000]:
        values = rng.random((6, count)) * 10.0 ** rng.integers(-9, 9, (6, count))
        assert [added(row) for row in values] == values.sum(axis=1).tolist(), count


@pytest.mark.parametrize("tight", [False, True])
def test_changes_are_placed_as_plain_code_places_them(tight):
    """One set of changes after the other; without room, none."""
    forms, arrays, pricing = task_forms()
    task = pricing.shards.task
    rng = np.random.default_rng(1)
    memory = np.full(DEVICES, task.total_bytes // DEVICES * 2) if tight else np.array(task.capacity_bytes)
    none = np.zeros(task.num_tables, dtype=np.int64)
    now = Choice(none + NONE, none, np.zeros((DEVICES, arrays.vectors.shape[1])), np.zeros(DEVICES, dtype=np.int64))
    refused = 0
    for _ in range(60):
        changes = chosen_at_random(forms, task.num_tables, rng)
        busy_ms = rng.random(DEVICES)
        before = shared_of(now, forms)
        np.testing.assert_array_equal(before.sums, now.sums)
        plain = plainly_placed(forms, before, changes, memory - now.bytes, busy_ms, pricing)
        fits, chosen, firsts, room = placed(arrays, now, changes, memory - now.bytes, busy_ms)
        assert fits == (plain is not None)
        refused += not fits
        alone = least_busy_of_all(arrays, memory - now.bytes, busy_ms).tolist()
        places = [least_busy(form, memory - now.bytes, busy_ms) for form in forms]
        assert alone == [NONE if place is None else place.first for place in places]
        if plain is not None:
            now = Choice(chosen, firsts, plain.sums, memory - room)
            assert shared_of(now, forms).places == plain.places
            np.testing.assert_array_equal(now.bytes, plain.bytes)
    assert (refused > 0) == tight


def test_a_change_adds_its_form_and_takes_off_what_was_there():
    forms, arrays, pricing = task_forms()
    average = AverageDevices(pricing, forms_of(pricing.shards.task, pricing.costs, SHARED_TYPES))
    tables = pricing.shards.task.num_tables
    rng = np.random.default_rng(2)
    now = next(average.everything())
    columns = rng.random((tables, arrays.vectors.shape[1]))
    base = now.sums + columns[now.forms < 0].sum(axis=0)
    changes = chosen_at_random(forms, tables, rng)
    after = sums_after(arrays, now, changes, base, columns, columns, np.full(len(changes.tables), NONE))
    for n, (table, number) in enumerate(zip(changes.tables.tolist(), changes.forms.tolist(), strict=True)):
        then = shared_of(now, forms).changed([table], [] if number == NONE else [Place(forms[number], 0)])
        left = np.array([other not in then.places for other in range(tables)])
        np.testing.assert_allclose(after[n], then.sums + columns[left].sum(axis=0), rtol=1e-9, atol=1e-9)
