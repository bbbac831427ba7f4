"""Descents by the linear model and kicks in between, in compiled code.

In a move of a descent, a device gives units of a table to another, maybe for others. One kind of move is many. Giving
all of a table away moves a shard, or merges two where the other device holds some of the table already; giving away a
part is a split, or a shift of the cut where the other device holds some. A kick takes tables off their devices, cuts
them anew and places them again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neuroshard.jit import jit
from neuroshard.plus.backs import NONE, Pair, backs_of, loads_after, look, parts_of, tables_on
from neuroshard.plus.construction import even_part, place_piece
from neuroshard.plus.linear_model import (
    LARGE,
    LinearModel,
    Placement,
    overflow,
    price_device,
    soft_maxima,
    value,
)
from shardgym.arrays import Floats, Ints
from shardgym.costs.ties import QUANTUM

#: Devices that units are given to, the least loaded ones; and of large tasks, where a step costs more.
_MOST_TARGETS = 48
_FEW_TARGETS = 8
#: A move has to bring more than this share of the objective.
_LEAST_GAIN = 1e-7
#: So that there are no logarithms of 0.
_NEXT_TO_NOTHING = 1e-300
#: Random numbers for every table that a kick may take off, besides the one that says how many tables.
DRAWS_PER_TABLE = 5
#: Moves of one descent after a kick; more than any makes that ends by itself.
_MOST_STEPS = 10_000


class Shortlist(NamedTuple):
    """The best K moves that were found, the best one first.

    Attributes:
        moves: giver, taker, table, units; table that comes back or -1, and its units; shape (K, 6).
        values: of the objective in ms, shape (K,).
        missing: bytes that devices then have no room for, shape (K,).
    """

    moves: Ints
    values: Floats
    missing: Ints

    @classmethod
    def of_length(cls, length: int) -> Shortlist:
        """Return one with room for so many."""
        return cls(np.zeros((length, 6), dtype=np.int64), np.zeros(length), np.zeros(length, dtype=np.int64))


@jit
def descend(
    model: LinearModel, placement: Placement, sources: int, shortlist: Shortlist, most_steps: int
) -> tuple[bool, int]:  # fmt: skip
    """Make the best move of one of the most loaded devices, until none makes the placement better.

    Bytes that devices have no room for become fewer first. Returns whether the descent came to an end within
    `most_steps` moves, and how many moves were looked at.
    """
    looked_at = 0
    for _ in range(most_steps):
        found = 0
        for giver in givers(model, placement, sources):
            found, more = best_moves(model, placement, giver, shortlist)
            looked_at += more
            if found > 0:
                make(model, placement, shortlist.moves[0])
                break
        if found == 0:
            return True, looked_at
    return False, looked_at


@jit
def givers(model: LinearModel, placement: Placement, sources: int) -> Ints:
    """Return the devices that have to give: those that hold too much, else the most loaded, and the widest."""
    relief = np.empty(len(model.memory))
    too_full = 0
    widest = 0
    for device in range(len(model.memory)):
        relief[device] = np.inf
        if placement.bytes[device] > model.memory[device]:
            relief[device] = -placement.load[device]
            too_full += 1
        if placement.widths[device] > placement.widths[widest]:
            widest = device
    if too_full > 0:
        return lowest(relief, min(sources + 1, too_full))
    most = lowest(-placement.load, min(sources + 1, len(relief)))
    if len(most) <= sources:
        return most
    for n in range(sources):
        if most[n] == widest or model.widest_ms == 0:
            return most[:sources]
    most[sources] = widest
    return most


@jit
def lowest(values: Floats, count: int) -> Ints:
    """Return where the lowest of some values are, in ascending order; of equal ones the first comes first."""
    order = np.arange(len(values))
    for n in range(count):
        best = n
        for k in range(n + 1, len(order)):
            value, least = values[order[k]], values[order[best]]
            if value < least or (value == least and order[k] < order[best]):
                best = k
        order[n], order[best] = order[best], order[n]
    return order[:count]


@jit
def make(model: LinearModel, placement: Placement, move: Ints) -> None:
    """Make a move of a shortlist."""
    giver, taker, table, units, back, back_units = move
    placement.units[giver, table] -= units
    placement.units[taker, table] += units
    if back != NONE:
        placement.units[taker, back] -= back_units
        placement.units[giver, back] += back_units
    price_device(model, placement, giver)
    price_device(model, placement, taker)


@jit
def best_moves(
    model: LinearModel, placement: Placement, giver: int, shortlist: Shortlist
) -> tuple[int, int]:  # fmt: skip
    """Find the moves of a device that make the placement best; return how many, and how many were looked at."""
    soft_ms = model.soft_ms
    soft_units = model.soft_units
    soft = soft_maxima(model, placement)
    now = value(model, placement)
    now -= _LEAST_GAIN * (soft.load + model.widest_ms * soft.width)
    missing = overflow(model, placement)
    row_ms = model.row_ms
    row_bytes = model.row_bytes
    floor = model.floor
    unit_ms = model.unit_ms
    held = tables_on(placement, giver)
    amounts = np.empty(7, dtype=np.int64)
    load_terms = np.empty(len(model.memory))
    width_terms = np.empty(len(model.memory))
    for device in range(len(model.memory)):
        load_terms[device] = np.exp((placement.load[device] - soft.load) / soft_ms)
        width_terms[device] = np.exp((max(placement.widths[device], floor) - soft.width) / soft_units)
    found = 0
    looked_at = 0
    most_targets = _MOST_TARGETS if placement.units.size <= LARGE else _FEW_TARGETS
    for taker in lowest(placement.load, min(most_targets + 1, len(model.memory))):
        if taker == giver:
            continue
        backs = backs_of(model, placement, giver, int(taker))
        promising = np.empty(len(backs.tables), dtype=np.bool_)
        both = Pair(
            placement.load[giver],
            placement.load[taker],
            placement.widths[giver],
            placement.widths[taker],
            model.device_ms[giver],
            model.device_ms[taker],
            floor,
            unit_ms,
        )
        giver_room = model.memory[giver] - placement.bytes[giver]
        taker_room = model.memory[taker] - placement.bytes[taker]
        # What all other devices add to the soft maxima and to the missing bytes. It is added up, as what subtraction
        # leaves of a large sum would be rounding.
        other_loads = _NEXT_TO_NOTHING
        other_widths = _NEXT_TO_NOTHING
        for device in range(len(model.memory)):
            if device != giver and device != taker:
                other_loads += load_terms[device]
                other_widths += width_terms[device]
        other_missing = missing - max(0, -giver_room) - max(0, -taker_room)
        for table in held:
            own_row = model.first[table] + placement.units[giver, table]
            their_row = model.first[table] + placement.units[taker, table]
            for n in range(_amounts(model, placement, giver, int(taker), int(table), amounts)):
                units = amounts[n]
                own_ms = row_ms[own_row - units] - row_ms[own_row]
                their_ms = row_ms[their_row + units] - row_ms[their_row]
                own_bytes = row_bytes[own_row - units] - row_bytes[own_row] - giver_room
                their_bytes = row_bytes[their_row + units] - row_bytes[their_row] - taker_room
                looked_at += look(
                    backs,
                    both,
                    int(table),
                    int(units),
                    own_ms,
                    their_ms,
                    own_bytes,
                    their_bytes,
                    missing - other_missing,
                    promising,
                )
                for k in range(len(promising)):
                    if not promising[k]:
                        continue
                    then_missing = other_missing + max(0, own_bytes + backs.giver_bytes[k])
                    then_missing += max(0, their_bytes + backs.taker_bytes[k])
                    more = units - backs.units[k]
                    giver_load, taker_load = loads_after(backs, both, k, int(more), own_ms, their_ms)
                    loads = other_loads
                    loads += np.exp((giver_load - soft.load) / soft_ms)
                    loads += np.exp((taker_load - soft.load) / soft_ms)
                    then = soft.load + soft_ms * np.log(loads)
                    if model.widest_ms > 0:
                        widths = other_widths
                        widths += np.exp((max(both.giver_width - more, floor) - soft.width) / soft_units)
                        widths += np.exp((max(both.taker_width + more, floor) - soft.width) / soft_units)
                        then += model.widest_ms * (soft.width + soft_units * np.log(widths))
                    then = np.rint(then * (1 / QUANTUM)) * QUANTUM
                    if then_missing < missing or then < now:
                        move = (giver, int(taker), int(table), int(units), int(backs.tables[k]), int(backs.units[k]))
                        found = _enlist(shortlist, found, move, then, then_missing)
    return found, looked_at


@jit
def _amounts(model: LinearModel, placement: Placement, giver: int, taker: int, table: int, amounts: Ints) -> int:
    """Write down how many units of a table a device may give; return how many such numbers there are."""
    held = placement.units[giver, table]
    count = parts_of(held, amounts)
    quarter = held // 4
    if quarter > 1:
        amounts[count] = quarter
        amounts[count + 1] = held - quarter
        count += 2
    row = model.first[table]
    unit_ms = (model.row_ms[row + held] - model.row_ms[row]) / held + model.unit_ms
    balancing = (placement.load[giver] - placement.load[taker]) / (2 * unit_ms + 1e-12)
    if 1 < balancing < held:
        amounts[count] = int(balancing)
        count += 1
    return count


@jit
def _enlist(shortlist: Shortlist, found: int, move: tuple[int, ...], value: float, missing: int) -> int:
    """Put a move into the list if it is good enough, before the first one that is not better; return the length."""
    length = len(shortlist.values)
    place = found
    while place > 0:
        before = shortlist.missing[place - 1]
        if missing > before or (missing == before and value >= shortlist.values[place - 1]):
            break
        place -= 1
    if place == length:
        return found
    found = min(found + 1, length)
    for n in range(found - 1, place, -1):
        for k in range(len(move)):
            shortlist.moves[n, k] = shortlist.moves[n - 1, k]
        shortlist.values[n] = shortlist.values[n - 1]
        shortlist.missing[n] = shortlist.missing[n - 1]
    for k in range(len(move)):
        shortlist.moves[place, k] = move[k]
    shortlist.values[place] = value
    shortlist.missing[place] = missing
    return found


def kick_and_descend(
    model: LinearModel, best: Placement, draws: Floats, sources: int, shortlist: Shortlist
) -> tuple[list[Ints], int]:
    """Disturb the best placement and descend again, as often as there are draws; keep what is better.

    Args:
        model: prices.
        best: is improved.
        draws: random numbers from 0 to 1, of every kick, shape (N, 1 + `DRAWS_PER_TABLE` x most tables of one).
        sources: devices that are tried before a descent ends.
        shortlist: of length 1; overwritten.

    Returns:
        The units of every placement that was better than all before, and how many moves were looked at.
    """
    better = []
    looked_at = 0
    least = overflow(model, best), value(model, best)
    other = best.copy()
    for draw in draws:
        best.copy_to(other)
        cut_anew(model, other, draw)
        looked_at += descend(model, other, sources, shortlist, _MOST_STEPS)[1]
        rank = overflow(model, other), value(model, other)
        if rank < least:
            least = rank
            other.copy_to(best)
            better.append(best.units.copy())
    return better, looked_at


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
    for n in lowest(-sizes, len(sizes)):
        table = tables[n]
        for piece in range(pieces[n]):
            place_piece(model, placement, table, even_part(model.units[table], pieces[n], piece))


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
        device = lowest(-placement.load, 1)[0]
        if n > 0 and draws[draw] > 0.3:
            device = int(draws[draw + 1] * len(model.memory))
        held = tables_on(placement, device)
        if len(held) > 0:
            table = held[int(draws[draw + 2] * len(held))]
            new = True
            for other in range(taken):
                new = new and tables[other] != table
            if new:
                tables[taken] = table
                numbers[taken] = draws[draw + 3]
                taken += 1
        draw += DRAWS_PER_TABLE - 1
    return tables[:taken], numbers[:taken], draw
