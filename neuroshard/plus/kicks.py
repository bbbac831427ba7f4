"""Kicks, by compiled code: some tables are taken off their devices, cut anew and placed again."""

from __future__ import annotations

import numpy as np

from neuroshard.plus.construction import even_part, place_in_order
from neuroshard.plus.moves import Shortlist, descend
from neuroshard.plus.optional_jit import jit
from neuroshard.plus.placement import LinearModel, Placement, copy_to, overflow, price_device, value
from shardgym.arrays import Floats, Ints

#: Random numbers for every table that a kick may take off, besides the one that says how many tables.
DRAWS_PER_TABLE = 5
#: Moves of one descent; more than any makes that ends by itself.
_MOST_STEPS = 10_000


@jit
def kick_and_descend(
    model: LinearModel, best: Placement, other: Placement, draws: Floats, sources: int, shortlist: Shortlist,
    better: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Disturb the best placement and descend again, as often as there are draws; keep what is better.

    Args:
        model: prices.
        best: is improved.
        other: of the same shape; overwritten.
        draws: random numbers from 0 to 1, of every kick, shape (N, 1 + `DRAWS_PER_TABLE` x most tables of one).
        sources: devices that are tried before a descent ends.
        shortlist: of length 1; overwritten.
        better: overwritten by the units of every placement that was better than all before, shape (N, D, T).

    Returns:
        How many those are, and how many moves were looked at.
    """
    found = 0
    looked_at = 0
    best_value = value(model, best)
    missing = overflow(model, best)
    for kick in range(len(draws)):
        copy_to(best, other)
        cut_anew(model, other, draws[kick])
        looked_at += descend(model, other, sources, shortlist, _MOST_STEPS)[1]
        other_value = value(model, other)
        other_missing = overflow(model, other)
        if other_missing < missing or (other_missing == missing and other_value < best_value):
            copy_to(other, best)
            best_value = other_value
            missing = other_missing
            for device in range(len(model.memory)):
                for table in range(len(model.first)):
                    better[found, device, table] = other.units[device, table]
            found += 1
    return found, looked_at


@jit
def cut_anew(model: LinearModel, placement: Placement, draws: Floats) -> None:
    """Take tables off, the first of them from the most loaded device, and place each in a piece less, as many, or more.

    Args:
        model: prices.
        placement: is changed.
        draws: random numbers from 0 to 1, shape (1 + `DRAWS_PER_TABLE` x most tables).
    """
    most = (len(draws) - 1) // DRAWS_PER_TABLE
    tables, sizes, draw = _tables_taken(model, placement, draws, 1 + int(draws[0] * most))
    pieces = np.empty_like(tables)
    for n in range(len(tables)):
        table = tables[n]
        before = 0
        for device in range(len(model.memory)):
            if placement.units[device, table] > 0:
                before += 1
                placement.units[device, table] = 0
                price_device(model, placement, device)
        # As many pieces as before half of the time.
        change = (-1, 0, 0, 1)[int(draws[draw + n] * 4)]
        pieces[n] = min(max(1, before + change), model.units[table])
        row = model.first[table] + even_part(model.units[table], pieces[n], 0)
        sizes[n] = model.row_ms[row] * (0.7 + 0.6 * sizes[n])
    for n in np.argsort(-sizes, kind="mergesort"):
        table = tables[n]
        units = np.empty(pieces[n], dtype=np.int64)
        for piece in range(pieces[n]):
            units[piece] = even_part(model.units[table], pieces[n], piece)
        place_in_order(model, placement, np.full(pieces[n], table), units, units.astype(np.float64))


@jit
def _tables_taken(
    model: LinearModel, placement: Placement, draws: Floats, count: int
) -> tuple[Ints, Floats, int]:  # fmt: skip
    """Draw different tables, a random number for each of them, and how many draws that took."""
    tables = np.empty(count, dtype=np.int64)
    numbers = np.empty(count)
    taken = 0
    draw = 1
    for n in range(count):
        device = int(np.argmax(placement.load))
        if n > 0 and draws[draw] > 0.3:
            device = int(draws[draw + 1] * len(model.memory))
        held = np.flatnonzero(placement.units[device])
        if len(held) > 0:
            table = held[int(draws[draw + 2] * len(held))]
            if not (tables[:taken] == table).any():
                tables[taken] = table
                numbers[taken] = draws[draw + 3]
                taken += 1
        draw += DRAWS_PER_TABLE - 1
    return tables[:taken], numbers[:taken], draw
