"""Placements to start from: tables cut evenly until no piece is too much, placed one after another, largest first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuroshard.plus.linear_model import LinearModel
from neuroshard.plus.placement import Placement

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
            yield cut_and_place(model, most_ms, most_units, most_bytes, by_bytes)


def cut_and_place(model: LinearModel, most_ms: float, most_units: int, most_bytes: int, by_bytes: float) -> Placement:
    """Cut every table into the fewest even pieces within limits, and return all pieces placed, largest first.

    Args:
        model: prices.
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
    placement = Placement(model)
    placement.place(tables[order], units[order])
    return placement
