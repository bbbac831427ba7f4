"""What a device may give back for units of a table, and a quick look at all such moves of two devices, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neuroshard.jit import jit
from neuroshard.plus.linear_model import LinearModel, Placement, load_after
from shardgym.arrays import Bools, Floats, Ints

#: No table.
NONE = -1


class Backs(NamedTuple):
    """What a device may give back for something: nothing, or units of one of its tables, each an entry, shape (n,).

    Attributes:
        tables: -1 for nothing.
        units: of the table.
        giver_bytes: that the device which it goes to then has more.
        taker_bytes: that the device which it comes from then has more, less than 0.
        giver_after: ms of what the device which it goes to has of the table, afterwards.
        giver_before: likewise before.
        taker_after: of the device that it comes from.
        taker_before: likewise.
    """

    tables: Ints
    units: Ints
    giver_bytes: Ints
    taker_bytes: Ints
    giver_after: Floats
    giver_before: Floats
    taker_after: Floats
    taker_before: Floats


class Pair(NamedTuple):
    """A giver and a taker as they are; see `LinearModel` for the last four.

    Attributes:
        giver_load: in ms.
        taker_load: likewise.
        giver_width: in units.
        taker_width: likewise.
        giver_ms: of the giver, if it holds anything.
        taker_ms: of the taker.
        floor: units.
        unit_ms: per unit of width.
    """

    giver_load: float
    taker_load: float
    giver_width: int
    taker_width: int
    giver_ms: float
    taker_ms: float
    floor: int
    unit_ms: float


@jit
def backs_of(model: LinearModel, placement: Placement, giver: int, taker: int) -> Backs:
    """Return what a taker may give back; nothing comes first, of any row."""
    theirs = tables_on(placement, taker)
    amounts = np.empty(7, dtype=np.int64)
    tables = np.empty(1 + 4 * len(theirs), dtype=np.int64)
    units = np.empty_like(tables)
    tables[0] = NONE
    units[0] = 0
    count = 1
    for table in theirs:
        for n in range(parts_of(placement.units[taker, table], amounts)):
            tables[count] = table
            units[count] = amounts[n]
            count += 1
    more, less = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    backs = Backs(
        tables[:count], units[:count], more, less,
        np.empty(count), np.empty(count), np.empty(count), np.empty(count),
    )  # fmt: skip
    for k in range(count):
        back = tables[k]
        to_row = model.first[back] + placement.units[giver, back]
        from_row = model.first[back] + placement.units[taker, back]
        backs.giver_bytes[k] = model.row_bytes[to_row + units[k]] - model.row_bytes[to_row]
        backs.taker_bytes[k] = model.row_bytes[from_row - units[k]] - model.row_bytes[from_row]
        backs.giver_after[k] = model.row_ms[to_row + units[k]]
        backs.giver_before[k] = model.row_ms[to_row]
        backs.taker_after[k] = model.row_ms[from_row - units[k]]
        backs.taker_before[k] = model.row_ms[from_row]
    return backs


@jit
def loads_after(backs: Backs, both: Pair, k: int, more: int, own_ms: float, their_ms: float) -> tuple[float, float]:
    """Return the loads of giver and taker where the taker gets so many units more and gives the k-th back."""
    giver_ms = own_ms + backs.giver_after[k] - backs.giver_before[k]
    taker_ms = their_ms + backs.taker_after[k] - backs.taker_before[k]
    giver_load = load_after(
        both.giver_load, giver_ms, both.giver_width, both.giver_width - more, both.floor, both.unit_ms, both.giver_ms
    )
    taker_load = load_after(
        both.taker_load, taker_ms, both.taker_width, both.taker_width + more, both.floor, both.unit_ms, both.taker_ms
    )
    return giver_load, taker_load


@jit
def look(
    backs: Backs, both: Pair, table: int, units: int, own_ms: float, their_ms: float, own_bytes: int,
    their_bytes: int, missing: int, promising: Bools,
) -> int:  # fmt: skip
    """Write down which moves may make a placement better, for all that may come back; return how many there are.

    Most do not, which is cheap to see: bytes are missing, or one of both devices takes longer than the slower one now.
    """
    highest = max(both.giver_load, both.taker_load)
    count = 0
    for k in range(len(promising)):
        giver_load, taker_load = loads_after(backs, both, k, units - backs.units[k], own_ms, their_ms)
        then = max(0, own_bytes + backs.giver_bytes[k]) + max(0, their_bytes + backs.taker_bytes[k])
        other = backs.tables[k] != table
        count += other
        slower = (giver_load > highest) | (taker_load > highest)
        promising[k] = other & ((then < missing) | ((then == missing) & (not slower)))
    return count


@jit
def tables_on(placement: Placement, device: int) -> Ints:
    """Return the tables of which a device holds anything."""
    tables = np.empty(placement.units.shape[1], dtype=np.int64)
    count = 0
    for table in range(len(tables)):
        if placement.units[device, table] > 0:
            tables[count] = table
            count += 1
    return tables[:count]


@jit
def parts_of(held: int, amounts: Ints) -> int:
    """Write down all, half and one of some units, each number once; return how many numbers."""
    amounts[0] = held
    count = 1
    if held > 1:
        amounts[1] = held // 2
        count = 2
    if held > 3:
        amounts[2] = 1
        count = 3
    if held > 2 and held % 2 == 1:
        amounts[count] = held - held // 2
        count += 1
    return count
