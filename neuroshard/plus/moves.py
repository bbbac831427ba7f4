"""Placements priced by a linear model, and what a descent does with them, in compiled code.

In a move of a descent, a device gives units of a table to another, maybe for others. One kind of move is many. Giving
all of a table away moves a shard, or merges two where the other device holds some of the table already; giving away a
part is a split, or a shift of the cut where the other device holds some. A kick takes tables off their devices, cuts
them anew and places them again.

Compiled functions have plain loops over few arrays, and write to arrays that they are given: numba compiles that sooner
than records, array expressions and new arrays.
"""

from __future__ import annotations

import math

import numpy as np

from neuroshard.jit import jit
from neuroshard.plus.linear_model import FLOOR, LARGE, SOFT_MS, SOFT_UNITS, UNIT_MS, WIDEST_MS, LinearModel
from shardgym.arrays import Floats, Ints
from shardgym.costs.ties import QUANTUM

#: Columns of `Placement.devices`. Bytes and units are whole numbers, which are exact.
MEMORY, DEVICE_MS, SHARED_MS, WIDTH, BYTES, LOAD = range(6)
#: Columns of `LinearModel.rows`.
ROW_MS, ROW_BYTES = range(2)
#: Rows of what a device may give back: a table or `NONE`, units; what the device that they go to, and the one that they
#: come from, then have more in bytes and in ms; loads of both after a move, and bytes without room.
_TABLE, _UNITS, _GIVER_BYTES, _TAKER_BYTES, _GIVER_MS, _TAKER_MS, _GIVER_LOAD, _TAKER_LOAD, _MISSING = range(9)
NONE = -1
#: Most loaded devices that are tried before a plan counts as done.
_SOURCES = 2
#: Devices that units are given to, the least loaded ones; and of large tasks, where a step costs more.
_MOST_TARGETS = 48
_FEW_TARGETS = 8
#: A move has to bring more than this share of the objective.
_LEAST_GAIN = 1e-7
#: So that there are no logarithms of 0.
_NEXT_TO_NOTHING = 1e-300
#: Tables that a kick takes off at most, and random numbers for each, besides the one that says how many tables.
KICK_MOVES = 4
DRAWS_PER_TABLE = 5
DRAWS_PER_KICK = 1 + KICK_MOVES * DRAWS_PER_TABLE
#: Moves of one descent after a kick; more than any makes that ends by itself.
_MOST_STEPS = 10_000


class Placement:
    """What devices hold, priced by a model.

    Args:
        model: of prices.
        units: of each table on each device, which are copied, shape (D, T); nothing when None.

    Attributes:
        units: as given.
        devices: of each the memory, what it takes if it holds anything, what it takes besides, and what follows from
            the units: width, bytes, and load, which is what it takes up to the last exchange in ms; shape (D, 6).
    """

    def __init__(self, model: LinearModel, units: Ints | None = None) -> None:
        count = len(model.memory)
        tables = len(model.first)
        self._model = model.first, model.rows, model.prices
        self._whole = model.units
        self.units: Ints = np.zeros((count, tables), dtype=np.int64)
        self.devices: Floats = np.zeros((count, 6))
        self.devices[:, :WIDTH] = np.column_stack([model.memory, model.device_ms, model.shared_ms])
        self._targets = min(_MOST_TARGETS if self.units.size <= LARGE else _FEW_TARGETS, count - 1) + 1
        self._move = np.zeros(6, dtype=np.int64)
        # What compiled code writes to: numbers of devices, units, exponentials, and what may come back.
        self._order, self._chosen = np.zeros((2, count), dtype=np.int64)
        self._amounts = np.zeros(7, dtype=np.int64)
        self._terms = np.zeros((3, count))
        self._backs = np.zeros((9, 1 + 4 * tables))
        self.hold(self.units if units is None else units)

    @property
    def widths(self) -> Floats:
        """Units of each device, shape (D,)."""
        return self.devices[:, WIDTH]

    @property
    def bytes(self) -> Floats:
        """Bytes of each device, shape (D,)."""
        return self.devices[:, BYTES]

    @property
    def load(self) -> Floats:
        """Load of each device in ms, shape (D,)."""
        return self.devices[:, LOAD]

    def hold(self, units: Ints) -> None:
        """Hold other units, shape (D, T)."""
        self.units[:] = units
        self._price()

    def _price(self) -> None:
        price(self.units, self.devices, *self._model, 0, len(self.devices), 1)

    def rank(self) -> tuple[float, float]:
        """Return the bytes that devices have no room for, and what is minimised, in ms: less is better."""
        missing, value, _, _ = soft_maxima(self.devices, self._model[2])
        return missing, value

    def place(self, tables: Ints, units: Ints) -> None:
        """Place pieces, so many units of a table each, one after another."""
        place(self.units, self.devices, *self._model, tables, units)

    def givers(self) -> list[int]:
        """Return the devices that have to give: those that hold too much, else the most loaded, and the widest."""
        count = givers(self.devices, self._model[2], self._chosen, self._terms)
        found: list[int] = self._chosen[:count].tolist()
        return found

    def best_move(self, giver: int) -> Ints | None:
        """Return the move of a device that makes the placement best; None where none makes it better.

        A move is giver, taker, table, units; table that comes back or `NONE`, and its units; shape (6,).
        """
        best_move(
            self.units, self.devices, *self._model, giver, self._targets, self._move,
            self._order, self._amounts, self._terms, self._backs
        )  # fmt: skip
        return None if self._move[0] == NONE else self._move.copy()

    def descend(self, most_steps: int = _MOST_STEPS) -> tuple[bool, int]:
        """Make the best move of one of the most loaded devices, until none makes the placement better.

        Bytes that devices have no room for become fewer first. Returns whether the descent came to an end within
        `most_steps` moves, and how many moves were looked at.
        """
        return descend(
            self.units, self.devices, *self._model, most_steps, self._targets, self._move,
            self._order, self._chosen, self._amounts, self._terms, self._backs
        )  # fmt: skip

    def cut_anew(self, draws: Floats) -> None:
        """Take tables off, the first of them from the most loaded device; place each in a piece less, as many, or more.

        Args:
            draws: random numbers from 0 to 1, shape (`DRAWS_PER_KICK`,).
        """
        taken: dict[int, float] = {}
        for n in range(1 + int(draws[0] * KICK_MOVES)):
            where, which, table_held, number = draws[1 + (DRAWS_PER_TABLE - 1) * n :][:4].tolist()
            device = int(self.load.argmax()) if n == 0 or where <= 0.3 else int(which * len(self.devices))
            held = np.flatnonzero(self.units[device])
            if len(held):
                taken.setdefault(int(held[int(table_held * len(held))]), number)
        last = draws[1 + (DRAWS_PER_TABLE - 1) * (n + 1) :].tolist()
        pieces = []
        for (table, number), change in zip(taken.items(), last, strict=False):
            # As many pieces as before half of the time.
            count = np.count_nonzero(self.units[:, table]) + (-1, 0, 0, 1)[int(change * 4)]
            units = int(self._whole[table])
            parts = min(max(1, int(count)), units)
            sizes = [units // parts + (n < units % parts) for n in range(parts)]
            largest_ms = self._model[1][self._model[0][table] + sizes[0], ROW_MS]
            pieces.append((largest_ms * (0.7 + 0.6 * number), [table] * len(sizes), sizes))
        pieces.sort(key=lambda piece: -piece[0])
        self.units[:, list(taken)] = 0
        self._price()
        tables = np.array([table for _, many, _ in pieces for table in many], dtype=np.int64)
        self.place(tables, np.array([units for *_, sizes in pieces for units in sizes], dtype=np.int64))


def kick_and_descend(model: LinearModel, best: Ints, draws: Floats) -> tuple[list[Ints], int]:
    """Disturb the best placement and descend again, as often as there are draws.

    Args:
        model: of prices.
        best: units of the placement, shape (D, T).
        draws: random numbers from 0 to 1, of every kick, shape (N, `DRAWS_PER_KICK`).

    Returns:
        The units of every placement that was better than all before, and how many moves were looked at.
    """
    better: list[Ints] = []
    looked_at = 0
    placement = Placement(model, best)
    least = placement.rank()
    for draw in draws:
        placement.hold(better[-1] if better else best)
        placement.cut_anew(draw)
        looked_at += placement.descend()[1]
        rank = placement.rank()
        if rank < least:
            least = rank
            better.append(placement.units.copy())
    return better, looked_at


@jit
def price(
    units: Ints, devices: Floats, first: Ints, rows: Floats, prices: Floats, start: int, stop: int, step: int
) -> None:  # fmt: skip
    """Work out width, bytes and load of a range of devices; anew, so that rounding does not add up."""
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
    """Return bytes without room, the time of a step with soft maxima in ms, and the largest load and width.

    Every device adds an exponential to soft maxima. With hard maxima, nothing that happens on other devices than the
    slowest or the widest would count. A width is the floor at least.
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
    """Return the load of a device whose shards take so much more, and whose width is `after` and no longer `before`."""
    then = load + more_ms + unit_ms * (max(after, floor) - max(before, floor))
    if after == 0.0 and before > 0.0:
        then -= device_ms
    if after > 0.0 and before == 0.0:
        then += device_ms
    return then


@jit
def place(
    units: Ints, devices: Floats, first: Ints, rows: Floats, prices: Floats, tables: Ints, sizes: Ints
) -> None:  # fmt: skip
    """Give each of some pieces to the device with room that is least loaded then, width included.

    Where none has room for all of its units, the device that has room for most gets as many as fit, and so on. Where no
    unit fits anywhere, the device that has least too much gets the rest.
    """
    floor = prices[FLOOR]
    unit_ms = prices[UNIT_MS]
    for n in range(len(tables)):
        table = tables[n]
        left = sizes[n]
        while left > 0:
            best = -1
            least = np.inf
            given = left
            for device in range(len(devices)):
                row = first[table] + units[device, table]
                more_bytes = rows[row + left, ROW_BYTES] - rows[row, ROW_BYTES]
                if devices[device, BYTES] + more_bytes > devices[device, MEMORY]:
                    continue
                width = devices[device, WIDTH]
                ms = load_after(
                    devices[device, LOAD], rows[row + left, ROW_MS] - rows[row, ROW_MS], width, width + left,
                    floor, unit_ms, devices[device, DEVICE_MS],
                )  # fmt: skip
                ms += prices[WIDEST_MS] * max(width + left, floor)
                if ms < least:
                    best = device
                    least = ms
            if best < 0:
                best = 0
                given = 0
                for device in range(len(devices)):
                    row = first[table] + units[device, table]
                    room = devices[device, MEMORY] - devices[device, BYTES]
                    fitting = 0
                    while fitting < left and rows[row + fitting + 1, ROW_BYTES] - rows[row, ROW_BYTES] <= room:
                        fitting += 1
                    if fitting > given:
                        best = device
                        given = fitting
            if given == 0:
                given = left
                for device in range(len(devices)):
                    excess = devices[device, BYTES] - devices[device, MEMORY]
                    if excess < devices[best, BYTES] - devices[best, MEMORY]:
                        best = device
            row = first[table] + units[best, table]
            width = devices[best, WIDTH]
            devices[best, LOAD] = load_after(
                devices[best, LOAD], rows[row + given, ROW_MS] - rows[row, ROW_MS], width, width + given,
                floor, unit_ms, devices[best, DEVICE_MS],
            )  # fmt: skip
            devices[best, BYTES] += rows[row + given, ROW_BYTES] - rows[row, ROW_BYTES]
            devices[best, WIDTH] = width + given
            units[best, table] += given
            left -= given


@jit
def lowest(terms: Floats, length: int, order: Ints, count: int) -> None:
    """Write down where the lowest of the last row's values are, in ascending order; of equal ones the first first."""
    for n in range(length):
        order[n] = n
    for n in range(count):
        best = n
        for k in range(n + 1, length):
            value = terms[2, order[k]]
            least = terms[2, order[best]]
            if value < least or (value == least and order[k] < order[best]):
                best = k
        swapped = order[n]
        order[n] = order[best]
        order[best] = swapped


@jit
def givers(devices: Floats, prices: Floats, order: Ints, terms: Floats) -> int:
    """Write down the devices that have to give; return how many. See `Placement.givers`."""
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
        move[0] = NONE
        for n in range(givers(devices, prices, chosen, terms)):
            looked_at += best_move(
                units, devices, first, rows, prices, chosen[n], targets, move, order, amounts, terms, backs
            )
            if move[0] != NONE:
                break
        if move[0] == NONE:
            return True, looked_at
        units[move[0], move[2]] -= move[3]
        units[move[1], move[2]] += move[3]
        if move[4] != NONE:
            units[move[1], move[4]] -= move[5]
            units[move[0], move[4]] += move[5]
        low = min(move[0], move[1])
        high = max(move[0], move[1])
        price(units, devices, first, rows, prices, low, high + 1, high - low)
    return False, looked_at


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


@jit
def best_move(
    units: Ints, devices: Floats, first: Ints, rows: Floats, prices: Floats, giver: int, targets: int, move: Ints,
    order: Ints, amounts: Ints, terms: Floats, backs: Floats,
) -> int:  # fmt: skip
    """Write down the move of a device that makes the placement best, or `NONE` where none does.

    Returns how many moves were looked at.
    """
    floor = prices[FLOOR]
    unit_ms = prices[UNIT_MS]
    widest_ms = prices[WIDEST_MS]
    soft_ms = prices[SOFT_MS]
    soft_units = prices[SOFT_UNITS]
    missing, best, max_load, max_width = soft_maxima(devices, prices)
    best -= _LEAST_GAIN * (max_load + widest_ms * max_width)
    now = best
    best_missing = missing
    move[0] = NONE
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
        # What the taker may give back: nothing comes first, of any row.
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
            numbers = parts_of(held, amounts)
            quarter = held // 4
            if quarter > 1:
                amounts[numbers] = quarter
                amounts[numbers + 1] = held - quarter
                numbers += 2
            mean_ms = (rows[own_row, ROW_MS] - rows[first[table], ROW_MS]) / held + unit_ms
            balancing = (giver_load - taker_load) / (2 * mean_ms + 1e-12)
            if 1 < balancing < held:
                amounts[numbers] = int(balancing)
                numbers += 1
            for n in range(numbers):
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
                    if then_missing >= missing and then >= now:
                        continue
                    if move[0] == NONE or then_missing < best_missing or (then_missing == best_missing and then < best):
                        best = then
                        best_missing = then_missing
                        move[0] = giver
                        move[1] = taker
                        move[2] = table
                        move[3] = part
                        move[4] = int(backs[_TABLE, k])
                        move[5] = int(backs[_UNITS, k])
    return looked_at
