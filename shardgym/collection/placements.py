"""Shards as searches meet them: tables of a task, some cut by columns, placed well or badly on some devices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardgym.collection.stream import Stream
from shardgym.costs.fbgemm.content import Piece
from shardgym.table import EmbeddingTable

#: Widths of the suites' tables, and the unit in which columns are cut.
DIMS = (4, 8, 16, 32, 64, 128)
UNIT = 4

#: Tables of a task by its number of devices, as in the suites for four and eight devices.
_TABLES = {2: (5, 30), 4: (10, 59), 8: (20, 120)}
_CUT_STEPS = 10
_PARTIAL = 0.3


def draw_placed(rng: Stream, tables: Sequence[EmbeddingTable]) -> list[Piece]:
    """Return what one device of a random placement of a random task holds, at least one piece.

    The task's widths, its column cuts, the order of placement, the measure that is balanced and how often it is ignored
    are random; in some draws only the first tables are placed yet, as in the middle of a search.
    """
    devices = rng.choice(tuple(_TABLES))
    dims = DIMS[: rng.whole(1, len(DIMS))]
    chosen = rng.sample(tables, min(len(tables), rng.whole(*_TABLES[devices])))
    pieces = _cut(rng, [whole_piece(table, rng.choice(dims)) for table in chosen])
    placed = pieces[: rng.whole(1, len(pieces))] if rng.chance(_PARTIAL) else pieces
    held = [device for device in _place(rng, placed, devices) if device]
    return rng.choice(held)


def whole_piece(table: EmbeddingTable, width: int) -> Piece:
    """Return all rows of a table at a width; the table's own width is a placeholder that nothing measures."""
    return Piece(table, (0, table.num_embeddings), width)


def cut_in_two(rng: Stream, width: int) -> tuple[int, int]:
    """Cut a width of at least two units, half of the time evenly, else anywhere."""
    units = width // UNIT
    first = units // 2 if rng.chance(0.5) else rng.whole(1, units - 1)
    return first * UNIT, width - first * UNIT


def _cut(rng: Stream, pieces: list[Piece]) -> list[Piece]:
    """Cut a few pieces by columns, wide ones more often; halves may be cut again."""
    for _ in range(rng.whole(0, _CUT_STEPS) if rng.chance(0.6) else 0):
        wide = [i for i, piece in enumerate(pieces) if piece.width >= 2 * UNIT]
        if not wide:
            break
        i = max((rng.choice(wide), rng.choice(wide)), key=lambda k: pieces[k].width)
        first, second = cut_in_two(rng, pieces[i].width)
        pieces = [*pieces[:i], pieces[i]._replace(width=first), *pieces[i + 1 :], pieces[i]._replace(width=second)]
    return pieces


def _load(measure: str, piece: Piece) -> float:
    if measure == "size":
        return piece.num_rows * piece.width
    if measure == "dim":
        return piece.width
    lookups = piece.width * piece.table.pooling_factor
    return lookups if measure == "lookup" else lookups * math.log10(max(10, piece.num_rows))


def _place(rng: Stream, pieces: Sequence[Piece], devices: int) -> list[list[Piece]]:
    """Place the largest first, each on the least loaded device or, with a probability of its own, on any."""
    measure, ignored = rng.choice(("size", "dim", "lookup", "size_lookup")), rng.uniform()
    held: list[list[Piece]] = [[] for _ in range(devices)]
    loads = [0.0] * devices
    for piece in sorted(pieces, key=lambda p: -_load(measure, p)):
        least = loads.index(min(loads))
        device = rng.whole(0, devices - 1) if rng.chance(ignored) else least
        held[device].append(piece)
        loads[device] += _load(measure, piece)
    return held
