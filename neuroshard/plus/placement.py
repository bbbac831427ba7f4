"""Placements priced by a linear model: construction, descent, and kicks.

Construction cuts tables evenly until no piece exceeds limits, and places pieces one after another, largest first. A
kick takes tables off their devices, cuts them anew and places them again.
"""

from collections.abc import Iterator

import numpy as np

from neuroshard.plus import moves
from neuroshard.plus.linear_model import LARGE, LinearModel
from neuroshard.plus.moves import GIVER, LOAD, NONE, ROW_MS, WIDTH
from shardgym.arrays import Floats, Ints

#: Devices that units are given to, the least loaded ones; and of large tasks, where a step costs more.
_MOST_TARGETS = 48
_FEW_TARGETS = 8
#: Tables that a kick takes off at most, and random numbers for each, besides the one that says how many tables.
KICK_MOVES = 4
DRAWS_PER_TABLE = 5
DRAWS_PER_KICK = 1 + KICK_MOVES * DRAWS_PER_TABLE
#: Moves of one descent after a kick; more than any makes that ends by itself.
_MOST_STEPS = 10_000

#: Largest pieces that are tried, as multiples of what a device has to take on average.
_SHARES = (2.0, 1.4, 1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.14, 0.1, 0.05)
#: Where tables take more than this share of the memory, large pieces go first, too, as nothing else may fit later.
_TIGHT = 0.6
#: More units, ms or bytes than anything has.
_ANY = 2**60


class Placement:
    """Units of each table on each device, priced by a model. The constructor copies units, or starts empty if None."""

    def __init__(self, model: LinearModel, units: Ints | None = None) -> None:
        count = len(model.memory)
        tables = len(model.first)
        self._model = model.first, model.rows, model.prices
        self._whole = model.units
        self.units: Ints = np.zeros((count, tables), dtype=np.int64)  #: shape (D, T)
        #: Of each device the memory, its time if it holds anything, its time besides, and three values that follow from
        #: the units: width, bytes, and load, its time up to the last exchange; times in ms; shape (D, 6).
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

    def hold(self, units: Ints) -> None:
        """Set the units, shape (D, T)."""
        self.units[:] = units
        moves.price(self.units, self.devices, *self._model, 0, len(self.devices), 1)

    def rank(self) -> tuple[float, float]:
        """Return the bytes beyond memory, and the objective in ms: less is better."""
        missing, value, _, _ = moves.soft_maxima(self.devices, self._model[2])
        return missing, value

    def place(self, tables: Ints, units: Ints) -> None:
        """Place pieces one after another, given their tables and units."""
        moves.place(self.units, self.devices, *self._model, tables, units)

    def givers(self) -> list[int]:
        """Return the devices that must give: the overfull ones, else the most loaded ones and the widest one."""
        count = moves.givers(self.devices, self._model[2], self._chosen, self._terms)
        found: list[int] = self._chosen[:count].tolist()
        return found

    def best_move(self, giver: int) -> Ints | None:
        """Return the best move of a device, `moves.GIVER` and so on, or None if no move improves the placement."""
        moves.best_move(
            self.units, self.devices, *self._model, giver, self._targets, self._move,
            self._order, self._amounts, self._terms, self._backs
        )  # fmt: skip
        return None if self._move[GIVER] == NONE else self._move.copy()

    def descend(self, most_steps: int = _MOST_STEPS) -> tuple[bool, int]:
        """Make the best move of one of the most loaded devices until none improves the placement.

        Moves first reduce bytes beyond memory. Returns whether the descent ended within `most_steps` moves, and the
        number of moves tried.
        """
        return moves.descend(
            self.units, self.devices, *self._model, most_steps, self._targets, self._move,
            self._order, self._chosen, self._amounts, self._terms, self._backs
        )  # fmt: skip

    def cut_anew(self, draws: Floats) -> None:
        """Take tables off, the first one from the most loaded device; place each in one piece less, as many, or more.

        `draws` are `DRAWS_PER_KICK` random numbers from 0 to 1.
        """
        taken: dict[int, float] = {}
        for n in range(1 + int(draws[0] * KICK_MOVES)):
            where, which, table_held, number = draws[1 + (DRAWS_PER_TABLE - 1) * n :][:4].tolist()
            device = int(self.devices[:, LOAD].argmax()) if n == 0 or where <= 0.3 else int(which * len(self.devices))
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
        self.hold(self.units)
        tables = np.array([table for _, many, _ in pieces for table in many], dtype=np.int64)
        self.place(tables, np.array([units for *_, sizes in pieces for units in sizes], dtype=np.int64))


def kick_and_descend(model: LinearModel, best: Ints, draws: Floats) -> tuple[list[Ints], int]:
    """Disturb the best placement, units of shape (D, T), and descend again, for each of (N, `DRAWS_PER_KICK`) draws.

    Returns the units of every placement that beat all before it, and the number of moves tried.
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


def constructed(model: LinearModel) -> Iterator[Placement]:
    """Yield placements of whole tables, of tables cut to ever smaller costs, and of tables cut to every power of two.

    A placement may exceed its devices' memory if pieces find no room.
    """
    whole = model.first + model.units
    cost = float((model.row_ms[whole] + (model.unit_ms + model.widest_ms) * model.units).sum()) / len(model.memory)
    used = model.row_bytes[whole].sum() / max(model.memory.sum(), 1)
    limits = [(float(_ANY), _ANY), *((share * cost, _ANY) for share in _SHARES)]
    limits += [(float(_ANY), 2**n) for n in range(int(model.units.max() - 1).bit_length())]
    for by_bytes in (0.0, 0.5, 1.0) if used > _TIGHT else (0.0,):
        for most_ms, most_units in limits:
            # Pieces of at most half a device are easier to place.
            most_bytes = int(model.memory.max()) // (2 if by_bytes == 1 else 1)
            yield cut_and_place(model, most_ms, most_units, most_bytes, by_bytes)


def cut_and_place(model: LinearModel, most_ms: float, most_units: int, most_bytes: int, by_bytes: float) -> Placement:
    """Cut every table into the fewest even pieces within limits, and return all pieces placed, largest first.

    Tables whose single units exceed a limit are cut into units; `most_ms` includes the price of width. The size of a
    piece is its share of all ms, or `by_bytes` times its share of all bytes if that is larger.
    """
    price_of_unit = model.unit_ms + model.widest_ms
    low, high = np.ones_like(model.units), model.units
    while (low < high).any():
        # Of tables that are settled, where both are equal, this is both.
        units = (low + high + 1) // 2
        rows = model.first + units
        within = (units <= most_units) & (model.row_ms[rows] + price_of_unit * units <= most_ms)
        within &= model.row_bytes[rows] <= most_bytes
        within |= low == high
        low, high = np.where(within, units, low), np.where(within, high, units - 1)
    pieces = -(-model.units // low)
    tables = np.repeat(np.arange(len(pieces)), pieces)
    number = np.arange(len(tables)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    units = model.units[tables] // pieces[tables] + (number < model.units[tables] % pieces[tables])
    whole = model.first + model.units
    all_ms = model.row_ms[whole].sum() + price_of_unit * model.units.sum()
    rows = model.first[tables] + units
    ms_share = (model.row_ms[rows] + price_of_unit * units) / all_ms
    sizes = np.maximum(ms_share, by_bytes * model.row_bytes[rows] / max(float(model.row_bytes[whole].sum()), 1.0))
    order = (-sizes).argsort(kind="stable")
    placement = Placement(model)
    placement.place(tables[order], units[order])
    return placement
