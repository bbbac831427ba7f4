"""Compiled code of a descent: prices of a placement, moves, and the best move of a device.

In a move, a device gives units of a table to another device, which may give units of another table back. Giving all
units moves a shard, or merges it into one of the same table; giving a part splits a shard, or shifts a cut between two.

Compiled functions have plain loops over few arrays, and write their results to arguments, because numba compiles these
faster than records, array expressions and new arrays.
"""

import math

import numpy as np

from neuroshard.jit import jit
from neuroshard.plus.linear_model import FLOOR, SOFT_MS, SOFT_UNITS, UNIT_MS, WIDEST_MS
from shardgym.arrays import Floats, Ints
from shardgym.costs.ties import QUANTUM

#: Columns of `Placement.devices`. Bytes and units are whole numbers, which are exact.
MEMORY, DEVICE_MS, SHARED_MS, WIDTH, BYTES, LOAD = range(6)
#: Columns of `LinearModel.rows`.
ROW_MS, ROW_BYTES = range(2)
#: Rows of what a device may give back: a table or `NONE`, units; what the device that they go to, and the one that they
#: come from, then have more in bytes and in ms; loads of both after a move, and bytes without room.
_TABLE, _UNITS, _GIVER_BYTES, _TAKER_BYTES, _GIVER_MS, _TAKER_MS, _GIVER_LOAD, _TAKER_LOAD, _MISSING = range(9)
#: What makes up a move: devices, a table and its units, and the table that comes back, or `NONE`, and its units.
GIVER, TAKER, TABLE, UNITS, BACK_TABLE, BACK_UNITS = range(6)
NONE = -1
#: Most loaded devices that are tried before a plan counts as done.
_SOURCES = 2
#: A move must save more than this share of the objective.
_LEAST_GAIN = 1e-7
#: So that there are no logarithms of 0.
_NEXT_TO_NOTHING = 1e-300


@jit
def price(
    units: Ints, devices: Floats, first: Ints, rows: Floats, prices: Floats, start: int, stop: int, step: int
) -> None:  # fmt: skip
    """Compute width, bytes and load of a range of devices from scratch, so that rounding errors do not add up."""
    for device in range(start, stop, step):
        width = 0.0
        used = 0.0
        ms = 0.0
        for table in range(len(first)):
            held = units[device, table]
            if held > 0:
                row = first[table] + held
                width += held
                used += rows[row, ROW_BYTES]
                ms += rows[row, ROW_MS]
        if width > 0:
            ms += devices[device, DEVICE_MS]
        devices[device, WIDTH] = width
        devices[device, BYTES] = used
        devices[device, LOAD] = devices[device, SHARED_MS] + ms + prices[UNIT_MS] * max(width, prices[FLOOR])


@jit
def soft_maxima(devices: Floats, prices: Floats) -> tuple[float, float, float, float]:
    """Return bytes beyond memory, the time of a step with soft maxima in ms, and the largest load and width.

    Every device adds an exponential to the soft maxima; with hard maxima, only the slowest and the widest device would
    count. Widths count as at least the floor.
    """
    floor = prices[FLOOR]
    load = -np.inf
    width = floor
    missing = 0.0
    for device in range(len(devices)):
        load = max(load, devices[device, LOAD])
        width = max(width, devices[device, WIDTH])
        missing += max(0.0, devices[device, BYTES] - devices[device, MEMORY])
    loads = 0.0
    widths = 0.0
    for device in range(len(devices)):
        loads += math.exp((devices[device, LOAD] - load) / prices[SOFT_MS])
        widths += math.exp((max(devices[device, WIDTH], floor) - width) / prices[SOFT_UNITS])
    ms = load + prices[SOFT_MS] * math.log(loads)
    ms += prices[WIDEST_MS] * (width + prices[SOFT_UNITS] * math.log(widths))
    return missing, np.rint(ms * (1 / QUANTUM)) * QUANTUM, load, width


@jit
def load_after(
    load: float, more_ms: float, before: float, after: float, floor: float, unit_ms: float, device_ms: float
) -> float:
    """Return a device's load after its shards take `more_ms` more and its width changes from `before` to `after`."""
    then = load + more_ms + unit_ms * (max(after, floor) - max(before, floor))
    if after == 0.0 and before > 0.0:
        then -= device_ms
    if after > 0.0 and before == 0.0:
        then += device_ms
    return then


@jit
def load_with(
    units: Ints, devices: Floats, first: Ints, rows: Floats, prices: Floats, device: int, table: int, more: int
) -> float:  # fmt: skip
    """Return a device's load after it takes more units of a table."""
    row = first[table] + units[device, table]
    width = devices[device, WIDTH]
    return load_after(
        devices[device, LOAD], rows[row + more, ROW_MS] - rows[row, ROW_MS], width, width + more, prices[FLOOR],
        prices[UNIT_MS], devices[device, DEVICE_MS],
    )  # fmt: skip


@jit
def place(
    units: Ints, devices: Floats, first: Ints, rows: Floats, prices: Floats, tables: Ints, sizes: Ints
) -> None:  # fmt: skip
    """Place each piece on the device with room whose load, including width, is then smallest.

    If no device has room for all units, the device with most room gets as many as fit, and so on. If no unit fits
    anywhere, the least overfull device gets the rest.
    """
    for n in range(len(tables)):
        table = tables[n]
        left = sizes[n]
        while left > 0:
            given = left
            device = least_loaded(units, devices, first, rows, prices, table, left)
            if device == NONE:
                device, given = roomiest(units, devices, first, rows, table, left)
            row = first[table] + units[device, table]
            devices[device, LOAD] = load_with(units, devices, first, rows, prices, device, table, given)
            devices[device, BYTES] += rows[row + given, ROW_BYTES] - rows[row, ROW_BYTES]
            devices[device, WIDTH] += given
            units[device, table] += given
            left -= given


@jit
def least_loaded(
    units: Ints, devices: Floats, first: Ints, rows: Floats, prices: Floats, table: int, more: int
) -> int:  # fmt: skip
    """Return the device with room for more units of a table whose load is then smallest, or `NONE`."""
    best = NONE
    least = np.inf
    for device in range(len(devices)):
        row = first[table] + units[device, table]
        more_bytes = rows[row + more, ROW_BYTES] - rows[row, ROW_BYTES]
        if devices[device, BYTES] + more_bytes <= devices[device, MEMORY]:
            ms = load_with(units, devices, first, rows, prices, device, table, more)
            ms += prices[WIDEST_MS] * max(devices[device, WIDTH] + more, prices[FLOOR])
            if ms < least:
                best = device
                least = ms
    return best


@jit
def roomiest(units: Ints, devices: Floats, first: Ints, rows: Floats, table: int, more: int) -> tuple[int, int]:
    """Return the device with room for most of some units of a table, and how many fit; else the least overfull, all."""
    best = NONE
    most = 0
    most_room = -np.inf
    for device in range(len(devices)):
        row = first[table] + units[device, table]
        room = devices[device, MEMORY] - devices[device, BYTES]
        fitting = 0
        while fitting < more and rows[row + fitting + 1, ROW_BYTES] - rows[row, ROW_BYTES] <= room:
            fitting += 1
        if fitting > most or (most == 0 and room > most_room):
            best = device
            most = fitting
            most_room = room
    return best, most if most > 0 else more


@jit
def lowest(terms: Floats, length: int, order: Ints, count: int) -> None:
    """Write the positions of the lowest values of the last row to `order`, ascending, ties by position."""
    for n in range(length):
        order[n] = n
    for n in range(count):
        best = n
        for k in range(n + 1, length):
            value = terms[2, order[k]]
            least = terms[2, order[best]]
            if value < least or (value == least and order[k] < order[best]):
                best = k
        order[n], order[best] = order[best], order[n]


@jit
def givers(devices: Floats, prices: Floats, order: Ints, terms: Floats) -> int:
    """Write the devices that must give to `order` and return their number, see `Placement.givers`."""
    too_full = 0
    widest = 0
    for device in range(len(devices)):
        if devices[device, BYTES] > devices[device, MEMORY]:
            too_full += 1
        if devices[device, WIDTH] > devices[widest, WIDTH]:
            widest = device
    for device in range(len(devices)):
        gives = too_full == 0 or devices[device, BYTES] > devices[device, MEMORY]
        terms[2, device] = -devices[device, LOAD] if gives else np.inf
    count = min(_SOURCES + 1, too_full if too_full > 0 else len(devices))
    lowest(terms, len(devices), order, count)
    if too_full > 0 or count <= _SOURCES:
        return count
    for n in range(_SOURCES):
        if order[n] == widest or prices[WIDEST_MS] == 0:
            return _SOURCES
    order[_SOURCES] = widest
    return count


@jit
def descend(
    units: Ints, devices: Floats, first: Ints, rows: Floats, prices: Floats, most_steps: int, targets: int, move: Ints,
    order: Ints, chosen: Ints, amounts: Ints, terms: Floats, backs: Floats,
) -> tuple[bool, int]:  # fmt: skip
    """See `Placement.descend`."""
    looked_at = 0
    for _ in range(most_steps):
        move[GIVER] = NONE
        for n in range(givers(devices, prices, chosen, terms)):
            looked_at += best_move(
                units, devices, first, rows, prices, chosen[n], targets, move, order, amounts, terms, backs
            )
            if move[GIVER] != NONE:
                break
        if move[GIVER] == NONE:
            return True, looked_at
        units[move[GIVER], move[TABLE]] -= move[UNITS]
        units[move[TAKER], move[TABLE]] += move[UNITS]
        if move[BACK_TABLE] != NONE:
            units[move[TAKER], move[BACK_TABLE]] -= move[BACK_UNITS]
            units[move[GIVER], move[BACK_TABLE]] += move[BACK_UNITS]
        low = min(move[GIVER], move[TAKER])
        high = max(move[GIVER], move[TAKER])
        price(units, devices, first, rows, prices, low, high + 1, high - low)
    return False, looked_at


@jit
def parts_of(held: int, amounts: Ints) -> int:
    """Write the distinct ones of all, half and one of some units to `amounts`; return how many there are."""
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


@jit
def parts_given(held: int, balancing: float, amounts: Ints) -> int:
    """Write how many of some units a device may give, the one that balances loads included; return their number."""
    count = parts_of(held, amounts)
    quarter = held // 4
    if quarter > 1:
        amounts[count] = quarter
        amounts[count + 1] = held - quarter
        count += 2
    if 1 < balancing < held:
        amounts[count] = int(balancing)
        count += 1
    return count


@jit
def parts_back(units: Ints, first: Ints, rows: Floats, giver: int, taker: int, amounts: Ints, backs: Floats) -> int:
    """Write what a taker may give back to `backs`, nothing first; return how many possibilities there are."""
    for kind in range(len(backs)):
        backs[kind, 0] = 0.0
    backs[_TABLE, 0] = NONE
    count = 1
    for table in range(len(first)):
        held = units[taker, table]
        if held > 0:
            to_row = first[table] + units[giver, table]
            from_row = first[table] + held
            for n in range(parts_of(held, amounts)):
                part = amounts[n]
                backs[_TABLE, count] = table
                backs[_UNITS, count] = part
                backs[_GIVER_BYTES, count] = rows[to_row + part, ROW_BYTES] - rows[to_row, ROW_BYTES]
                backs[_TAKER_BYTES, count] = rows[from_row - part, ROW_BYTES] - rows[from_row, ROW_BYTES]
                backs[_GIVER_MS, count] = rows[to_row + part, ROW_MS] - rows[to_row, ROW_MS]
                backs[_TAKER_MS, count] = rows[from_row - part, ROW_MS] - rows[from_row, ROW_MS]
                count += 1
    return count


@jit
def best_move(
    units: Ints, devices: Floats, first: Ints, rows: Floats, prices: Floats, giver: int, targets: int, move: Ints,
    order: Ints, amounts: Ints, terms: Floats, backs: Floats,
) -> int:  # fmt: skip
    """Write the best move of a device to `move`, or `NONE` if none helps; return the number of moves tried."""
    floor = prices[FLOOR]
    unit_ms = prices[UNIT_MS]
    widest_ms = prices[WIDEST_MS]
    soft_ms = prices[SOFT_MS]
    soft_units = prices[SOFT_UNITS]
    missing, best, max_load, max_width = soft_maxima(devices, prices)
    best -= _LEAST_GAIN * (max_load + widest_ms * max_width)
    best_missing = missing
    move[GIVER] = NONE
    for device in range(len(devices)):
        terms[0, device] = math.exp((devices[device, LOAD] - max_load) / soft_ms)
        terms[1, device] = math.exp((max(devices[device, WIDTH], floor) - max_width) / soft_units)
        terms[2, device] = devices[device, LOAD]
    lowest(terms, len(devices), order, targets)
    looked_at = 0
    giver_width = devices[giver, WIDTH]
    giver_room = devices[giver, MEMORY] - devices[giver, BYTES]
    for target in range(targets):
        taker = order[target]
        if taker == giver:
            continue
        count = parts_back(units, first, rows, giver, taker, amounts, backs)
        giver_load = devices[giver, LOAD]
        taker_load = devices[taker, LOAD]
        giver_ms = devices[giver, DEVICE_MS]
        taker_ms = devices[taker, DEVICE_MS]
        taker_width = devices[taker, WIDTH]
        taker_room = devices[taker, MEMORY] - devices[taker, BYTES]
        highest = max(giver_load, taker_load)
        # What all other devices add to the soft maxima and to the missing bytes. It is added up, as what subtraction
        # leaves of a large sum would be rounding.
        other_loads = _NEXT_TO_NOTHING
        other_widths = _NEXT_TO_NOTHING
        for device in range(len(devices)):
            if device != giver and device != taker:
                other_loads += terms[0, device]
                other_widths += terms[1, device]
        of_both = max(0.0, -giver_room) + max(0.0, -taker_room)
        other_missing = missing - of_both
        for table in range(len(first)):
            held = units[giver, table]
            if held == 0:
                continue
            own_row = first[table] + held
            their_row = first[table] + units[taker, table]
            mean_ms = (rows[own_row, ROW_MS] - rows[first[table], ROW_MS]) / held + unit_ms
            balancing = (giver_load - taker_load) / (2 * mean_ms + 1e-12)
            for n in range(parts_given(held, balancing, amounts)):
                part = amounts[n]
                own_ms = rows[own_row - part, ROW_MS] - rows[own_row, ROW_MS]
                their_ms = rows[their_row + part, ROW_MS] - rows[their_row, ROW_MS]
                own_bytes = rows[own_row - part, ROW_BYTES] - rows[own_row, ROW_BYTES] - giver_room
                their_bytes = rows[their_row + part, ROW_BYTES] - rows[their_row, ROW_BYTES] - taker_room
                # Most moves make nothing better, which is cheap to see: bytes are missing, or one of both devices takes
                # longer than the slower one now.
                for k in range(count):
                    more = part - backs[_UNITS, k]
                    own_load = load_after(
                        giver_load, own_ms + backs[_GIVER_MS, k], giver_width, giver_width - more, floor, unit_ms,
                        giver_ms,
                    )  # fmt: skip
                    their_load = load_after(
                        taker_load, their_ms + backs[_TAKER_MS, k], taker_width, taker_width + more, floor, unit_ms,
                        taker_ms,
                    )  # fmt: skip
                    backs[_GIVER_LOAD, k] = own_load
                    backs[_TAKER_LOAD, k] = their_load
                    then = max(0.0, own_bytes + backs[_GIVER_BYTES, k]) + max(0.0, their_bytes + backs[_TAKER_BYTES, k])
                    other = backs[_TABLE, k] != table
                    looked_at += other
                    slower = (own_load > highest) | (their_load > highest)
                    promising = other & ((then < of_both) | ((then == of_both) & (not slower)))
                    backs[_MISSING, k] = then if promising else np.inf
                for k in range(count):
                    if backs[_MISSING, k] == np.inf:
                        continue
                    then_missing = other_missing + backs[_MISSING, k]
                    more = part - backs[_UNITS, k]
                    loads = other_loads
                    loads += math.exp((backs[_GIVER_LOAD, k] - max_load) / soft_ms)
                    loads += math.exp((backs[_TAKER_LOAD, k] - max_load) / soft_ms)
                    then = max_load + soft_ms * math.log(loads)
                    if widest_ms > 0:
                        widths = other_widths
                        widths += math.exp((max(giver_width - more, floor) - max_width) / soft_units)
                        widths += math.exp((max(taker_width + more, floor) - max_width) / soft_units)
                        then += widest_ms * (max_width + soft_units * math.log(widths))
                    then = np.rint(then * (1 / QUANTUM)) * QUANTUM
                    if then_missing < best_missing or (then_missing == best_missing and then < best):
                        best = then
                        best_missing = then_missing
                        move[GIVER] = giver
                        move[TAKER] = taker
                        move[TABLE] = table
                        move[UNITS] = part
                        move[BACK_TABLE] = int(backs[_TABLE, k])
                        move[BACK_UNITS] = int(backs[_UNITS, k])
    return looked_at
