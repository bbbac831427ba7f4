"""Placements to start from: tables cut evenly until no piece is too much, placed one after another, largest first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuroshard.jit import jit
from neuroshard.plus.linear_model import LinearModel, Placement, load_after, price
from shardgym.arrays import Ints

#: Largest pieces that are tried, as multiples of what a device has to take on average.
_SHARES = (2.0, 1.4, 1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.14, 0.1, 0.05)
#: Where tables take more than this share of the memory, large pieces go first, too, as nothing else may fit later.
_TIGHT = 0.6
#: More units, ms or bytes than anything has.
_ANY = 2**60


def constructed(model: LinearModel) -> Iterator[Placement]:
    """Yield placements of whole tables, of tables cut to ever smaller costs, and of tables cut to every power of two.

    Pieces may find no room; then a placement holds more than its devices can.
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
            placement = Placement.empty(len(model.memory), len(model.first))
            cut_and_place(model, placement, most_ms, most_units, most_bytes, by_bytes)
            yield placement


def cut_and_place(
    model: LinearModel, placement: Placement, most_ms: float, most_units: int, most_bytes: int, by_bytes: float
) -> None:  # fmt: skip
    """Cut every table into the fewest even pieces within limits, and place all pieces, largest first.

    Args:
        model: prices.
        placement: is overwritten.
        most_ms: of a piece, the price of its width included.
        most_units: of a piece.
        most_bytes: of a piece. Tables of which a single unit exceeds a limit are cut into units.
        by_bytes: a piece is as large as its share of all ms or this x its share of all bytes, whichever is more.
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
    placement.units[:] = 0
    price(model, placement)
    place_in_order(model, placement, tables[order], units[order])


@jit
def even_part(units: int, parts: int, number: int) -> int:
    """Return the units of one of several parts that differ by one unit at most, the larger ones first."""
    return units // parts + (1 if number < units % parts else 0)


@jit
def place_in_order(model: LinearModel, placement: Placement, tables: Ints, units: Ints) -> None:
    """Place pieces one after another."""
    for n in range(len(tables)):
        place_piece(model, placement, tables[n], units[n])


@jit
def place_piece(model: LinearModel, placement: Placement, table: int, units: int) -> None:
    """Give units of a table to the device with room that is least loaded then, width included.

    Where none has room for all of them, the device that has room for most gets as many as fit, and so on. Where no unit
    fits anywhere, the device that has least too much gets the rest.
    """
    while units > 0:
        device = _least_loaded(model, placement, table, units)
        given = units
        if device < 0:
            device, given = _most_room(model, placement, table, units)
        if given == 0:
            for other in range(len(model.memory)):
                if placement.bytes[other] - model.memory[other] < placement.bytes[device] - model.memory[device]:
                    device = other
            given = units
        row = model.first[table] + placement.units[device, table]
        width = placement.widths[device] + given
        placement.load[device] = load_after(
            placement.load[device], model.row_ms[row + given] - model.row_ms[row], placement.widths[device], width,
            model.floor, model.unit_ms, model.device_ms[device],
        )  # fmt: skip
        placement.bytes[device] += model.row_bytes[row + given] - model.row_bytes[row]
        placement.widths[device] = width
        placement.units[device, table] += given
        units -= given


@jit
def _least_loaded(model: LinearModel, placement: Placement, table: int, units: int) -> int:
    """Return the device with room that takes least with so many more units of a table; -1 for none."""
    best = -1
    least = np.inf
    for device in range(len(model.memory)):
        row = model.first[table] + placement.units[device, table]
        more_bytes = model.row_bytes[row + units] - model.row_bytes[row]
        if placement.bytes[device] + more_bytes > model.memory[device]:
            continue
        width = placement.widths[device] + units
        ms = load_after(
            placement.load[device], model.row_ms[row + units] - model.row_ms[row], placement.widths[device], width,
            model.floor, model.unit_ms, model.device_ms[device],
        )  # fmt: skip
        ms += model.widest_ms * max(width, model.floor)
        if ms < least:
            best = device
            least = ms
    return best


@jit
def _most_room(model: LinearModel, placement: Placement, table: int, units: int) -> tuple[int, int]:
    """Return the device with room for most of so many units of a table, and for how many."""
    best = 0
    most = 0
    for device in range(len(model.memory)):
        row = model.first[table] + placement.units[device, table]
        room = model.memory[device] - placement.bytes[device]
        fitting = 0
        while fitting < units and model.row_bytes[row + fitting + 1] - model.row_bytes[row] <= room:
            fitting += 1
        if fitting > most:
            best = device
            most = fitting
    return best, most
